"""A GGUF file -> a native model ready to step."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quintet import _core
from quintet.backends.native.core import F32, U8, Batch, Loaded, Loader
from quintet.errors import ModelError
from quintet.models.gguf import GgufFile, open_model
from quintet.models.spec import ModelSpec
from quintet.models.tokenizer import build_tokenizer

NUMERICS = "1"
"""Raised whenever the same weights and tokens may give other bits than before; part of ``system_fingerprint``."""


class NativeRunner:
    """``core.Runner`` over the native extension."""

    def __init__(self, spec: ModelSpec, context: int, isa: str, threads: int) -> None:
        self._model = _core.Model(_config(spec, context), isa, threads)
        self.vocab = spec.vocab
        self.context = context

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._model.isa)

    @property
    def page_bytes(self) -> int:
        return int(self._model.page_bytes)

    @property
    def row_bytes(self) -> int:
        return int(self._model.row_bytes)

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices."""
        return int(self._model.weight_bytes)

    def take(self, file: GgufFile, progress: Callable[[float], None]) -> None:
        """Pack every tensor of the file; ``progress`` hears shares of 1 by bytes."""
        total = sum(tensor.data.nbytes for tensor in file.tensors.values())
        done = 0
        for name, tensor in file.tensors.items():
            self._model.set(name, tensor.type, tensor.rows, tensor.cols, tensor.data)
            done += tensor.data.nbytes
            progress(done / total)
        self._model.finish()

    def allocate(self, pages: int) -> None:
        self._model.allocate(pages)

    def forward(self, batch: Batch) -> U8:
        rows: U8 = self._model.forward(batch.tokens, batch.lengths, batch.starts, batch.tables, batch.rows)
        return rows

    def logits(self, rows: U8) -> F32:
        logits: F32 = self._model.logits(np.ascontiguousarray(rows))
        return logits

    def copy_page(self, source: int, target: int) -> None:
        self._model.copy_page(source, target)


def native_loader(path: Path, threads: int, context: int | None = None, name: str = "", isa: str = "") -> Loader:
    """How to load ``path`` for ``threads`` threads.

    Args:
        context: most tokens of a sequence; ``None`` or more than the model was trained on = what it was trained on.
        name: public model name; empty = the file's stem.
        isa: force an instruction set (see ``core.isas``); empty = ``QUINTET_ISA``, else the best.
    """

    def load(progress: Callable[[float], None]) -> Loaded:
        digest = _Digest(path)
        file = open_model(path)
        limit = min(context or file.spec.context, file.spec.context)
        try:
            runner = NativeRunner(file.spec, limit, isa, threads)
            runner.take(file, progress)
        except (ValueError, MemoryError) as error:
            raise ModelError(f"{path.name}: {error or 'not enough memory for its weights'}") from error
        tokenizer = build_tokenizer(file.metadata)
        return Loaded(runner, tokenizer, name or path.stem, f"fp_{digest.result()[:10]}")

    return load


class _Digest:
    """Hash of the weights file and of the numerics version, computed beside the packing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256(f"quintet numerics {NUMERICS}\n".encode())
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._read, name="fingerprint", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        buffer = bytearray(1 << 20)
        try:
            with self._path.open("rb", buffering=0) as file:
                while size := file.readinto(buffer):
                    self._hash.update(memoryview(buffer)[:size])
        except OSError as error:
            self._error = error

    def result(self) -> str:
        self._thread.join()
        if self._error is not None:
            raise ModelError(f"{self._path}: {self._error.strerror}")
        return self._hash.hexdigest()


def _config(spec: ModelSpec, context: int) -> dict[str, object]:
    rope = spec.rope
    return {
        "context": context,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn,
        "vocab": spec.vocab,
        "norm_eps": spec.norm_eps,
        "qkv_bias": spec.qkv_bias,
        "tied": spec.tied,
        "interleaved": rope.interleaved,
        "rope_dim": rope.dim,
        "rope_base": rope.base,
        "rope_scaling": rope.scaling,
        "rope_factor": rope.factor,
        "rope_original_context": rope.original_context,
        "rope_attn_factor": rope.attn_factor,
        "rope_beta_fast": rope.beta_fast,
        "rope_beta_slow": rope.beta_slow,
        "rope_freq_factors": list(rope.freq_factors),
    }
