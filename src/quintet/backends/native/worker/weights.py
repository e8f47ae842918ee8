"""A GGUF file -> a runner with its weights packed. Imports no tokenizer: a process that only computes needs none."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.runner import NativeRunner
from quintet.config import Quantize
from quintet.errors import ModelError
from quintet.models.files import parts
from quintet.models.gguf import open_model
from quintet.models.quantize import settled

NUMERICS = "1"
"""Raised whenever the same weights and tokens may give other bits than before; part of ``system_fingerprint``."""


def load_weights(
    path: Path, threads: int, context: int | None, isa: str, progress: Callable[[float], None], quantize: Quantize = "q8"
) -> tuple[NativeRunner, str]:
    """The runner and the fingerprint (``fp_`` and hex digits) of weights, tokenizer and numerics.

    Args:
        context: most tokens of a sequence; ``None`` or more than the model was trained on = what it was trained on.
        isa: force an instruction set (see ``cpu.isas``); empty = ``QUINTET_ISA``, else the best.
        quantize: what becomes of float matrices.

    Raises:
        ModelError: the file is unusable, or not what ``quantize`` is for, or the memory does not hold its weights.
    """
    digest = _Digest(path)
    file = open_model(path)
    choice = settled(path.name, file.tensors, quantize)
    if choice != "q8":
        digest.add(f"quantize {choice}")
    limit = min(context or file.spec.context, file.spec.context)
    try:
        runner = NativeRunner(file.spec, limit, Cpu(isa, threads), choice)
        runner.take(file.tensors, progress)
    except MemoryError:
        raise ModelError(f"{path.name}: there is not enough memory for its weights.") from None
    except ValueError as error:
        raise ModelError(f"{path.name}: {error}") from error
    return runner, f"fp_{digest.result()[:10]}"


class _Digest:
    """Hash of the weights' files and of what else decides the bits, computed beside the packing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256(f"quintet numerics {NUMERICS}\n".encode())
        self._added = ""
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._read, name="fingerprint", daemon=True)
        self._thread.start()

    def add(self, what: str) -> None:
        """Another thing that decides the bits, beside file and numerics version."""
        self._added += f"{what}\n"

    def _read(self) -> None:
        buffer = bytearray(1 << 20)
        try:
            for part in parts(self._path):
                with part.open("rb", buffering=0) as file:
                    while size := file.readinto(buffer):
                        self._hash.update(memoryview(buffer)[:size])
        except OSError as error:
            self._error = error

    def result(self) -> str:
        self._thread.join()
        if self._error is not None:
            raise ModelError(f"{self._path}: {self._error.strerror}")
        self._hash.update(self._added.encode())
        return self._hash.hexdigest()
