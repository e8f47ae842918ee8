"""A model's files -> a runner with its weights packed. Imports no tokenizer: a process that only computes needs none."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintet import machine
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.packed import LAYOUT
from quintet.backends.native.core.runner import NativeRunner, rotates_for_short
from quintet.backends.native.core.sizes import packed_bytes
from quintet.backends.native.worker.pack_directory import Kind
from quintet.backends.native.worker.packing import LoadedWeights, Packing
from quintet.backends.native.worker.packs import Packs
from quintet.config import CacheFolder, KvType, Quantize, Reduction
from quintet.errors import ModelError
from quintet.models.files import human, parts
from quintet.models.opening import open_model
from quintet.models.quantize import chosen, least, settled
from quintet.models.spec import Tensors

NUMERICS = "4"
"""Raised whenever the same weights, prompts and controls may give other ids, bits or draws than before; part of ``system_fingerprint``."""

_SLOW = (
    "the weights of %s, %s, are larger than the free memory, %s: they are read from the disk as they are needed; "
    "expect a token to take up to %.1f s on a disk of 1 GB/s"
)
_MAPPED = "with --pack-cache they are read from the disk as they are needed"
_log = logging.getLogger(__name__)


def load_weights(
    path: Path,
    *,
    threads: int,
    context: int | None,
    isa: str,
    progress: Callable[[float], None],
    packs: CacheFolder | None = None,
    quantize: Quantize = "q8",
    kv_type: KvType = "f16",
    wanted: int | None = None,
) -> tuple[NativeRunner, str]:
    """The runner and the fingerprint (``fp_`` and hex digits) of weights, tokenizer and numerics.

    Args:
        context: most tokens of a sequence; ``None`` or more than the model was trained on = what it was trained on.
        isa: force an instruction set (see ``cpu.isas``); empty = ``QUINTET_ISA``, else the best.
        packs: where packed weights are kept; ``None`` = they are not.
        quantize: what becomes of float matrices.
        kv_type: of keys and values.
        wanted: what was asked for in place of ``context``, before the memory had a say; ``None`` = the same. LongRoPE goes by it, so that
            no bit depends on how much memory there is.

    Raises:
        ModelError: the file is unusable, or not what ``quantize`` is for, or the memory does not hold its weights, or there are
            not so many threads to be had.
    """
    try:
        cpu = Cpu(isa, threads)
    except RuntimeError as error:
        raise ModelError(f"{threads} threads cannot be started ({error}); --threads asks for fewer.") from None
    return _load(
        path,
        cpu,
        context=context,
        wanted=wanted or context,
        progress=progress,
        packs=packs,
        quantize=quantize,
        kv_type=kv_type,
    )


def load_draft(path: Path, target: NativeRunner, progress: Callable[[float], None], packs: CacheFolder | None = None) -> NativeRunner:
    """The runner of a draft model, which computes with the ``target``'s threads, in turns with it.

    It takes as little memory as can be, since that is what its steps wait for, and no number that anybody sees depends on it.

    Raises:
        ModelError: as for ``load_weights``.
    """
    runner, _ = _load(
        path,
        target.cpu,
        context=target.context,
        wanted=target.context,
        progress=progress,
        packs=packs,
        quantize="least",
        kv_type=target.kv_type,
    )
    return runner


def halves(path: Path, other: Path, progress: Callable[[float], None]) -> tuple[Callable[[float], None], Callable[[float], None]]:
    """``progress`` for two models that are loaded one after the other, by the size of their files."""
    first, second = (sum(part.stat().st_size for part in parts(one) if part.exists()) for one in (path, other))
    border = first / max(first + second, 1)
    return lambda share: progress(share * border), lambda share: progress(border + share * (1 - border))


def _load(
    path: Path,
    cpu: Cpu,
    *,
    context: int | None,
    wanted: int | None,
    progress: Callable[[float], None],
    packs: CacheFolder | None,
    quantize: Reduction,
    kv_type: KvType,
) -> tuple[NativeRunner, str]:
    file, files = open_model(path), parts(path)
    choice: Reduction = "least" if quantize == "least" else settled(path.name, file.tensors, quantize)
    trained = file.spec.context
    context, asked_for = min(context or trained, trained), min(wanted or trained, trained)

    def empty() -> NativeRunner:
        return NativeRunner(file.spec, context, cpu, asked_for, float_activations=choice == "none", kv_type=kv_type)

    tensors = least(file.tensors) if choice == "least" else chosen(file.tensors, choice)
    source = _Source(path.name, choice, files, tensors, empty)
    try:
        runner, digest = _weights(packs, source, cpu, _forgetting(file.forget, progress))
    except MemoryError:
        raise ModelError(f"{path.name}: there is not enough memory for its weights.") from None
    except ValueError as error:
        raise ModelError(f"{path.name}: {error}") from error
    return runner, fingerprint(digest, kv_type, short=rotates_for_short(file.spec, asked_for))


def fingerprint(digest: str, kv_type: KvType, *, short: bool = False) -> str:
    """Of weights and numerics by their digest, and of what else changes bits.

    Args:
        short: see ``rotates_for_short``.
    """
    if short:
        digest = hashlib.sha256(f"{digest}\nrotations of short texts\n".encode()).hexdigest()
    if kv_type != "f16":
        digest = hashlib.sha256(f"{digest}\nkeys and values {kv_type}, attention in integers\n".encode()).hexdigest()
    return f"fp_{digest[:10]}"


def _forgetting(forget: Callable[[], None], progress: Callable[[float], None]) -> Callable[[float], None]:
    """``progress`` that also lets what was packed go: the process holds what it makes of a file, not the file as well."""

    def told(share: float) -> None:
        forget()
        progress(share)

    return told


@dataclass(frozen=True, slots=True)
class _Source:
    """What is loaded.

    Args:
        choice: what becomes of matrices.
        runner: makes one without weights.
    """

    name: str
    choice: Reduction
    files: Sequence[Path]
    tensors: Tensors
    runner: Callable[[], NativeRunner]

    def digest(self) -> Digest:
        return Digest(self.files, self.choice)


def _weights(packs: CacheFolder | None, source: _Source, cpu: Cpu, progress: Callable[[float], None]) -> LoadedWeights:
    without_pack = _MAPPED
    if packs is not None:
        try:
            return _by_pack(packs, source, cpu, progress)
        except _NoPackError as error:
            without_pack = str(error)
    return _in_memory(without_pack, source, progress)


class _NoPackError(Exception):
    """Why there can be no pack, as a part of a sentence."""


def _by_pack(packs: CacheFolder, source: _Source, cpu: Cpu, progress: Callable[[float], None]) -> LoadedWeights:
    """
    Raises:
        _NoPackError: the folder, or the disk, is not to be had.
    """
    try:
        with contextlib.closing(Packs(Path(packs.folder), packs.limit)) as folder:
            kind = Kind(NUMERICS, LAYOUT, source.choice)
            packing = Packing(folder, kind, source.files, source.tensors, cpu, source.runner, lambda: source.digest().result)
            if packing.need > (free := machine.memory_available()):
                _log.warning(_SLOW, source.name, human(packing.need), human(free), packing.need / 1e9)
            return packing.load(progress)
    except OSError as error:
        why = f"{error.strerror or error}"
        _log.warning("the packed weights of %s are not kept: %s", source.name, why)
        raise _NoPackError(f"they cannot be read from the disk as they are needed: {why}") from None


def _in_memory(without_pack: str, source: _Source, progress: Callable[[float], None]) -> LoadedWeights:
    """
    Args:
        without_pack: why there is no pack, or how to have one; of use where the memory is too small.
    """
    need, free = sum(map(packed_bytes, source.tensors.values())), machine.memory_available()
    if need > free:
        raise ModelError(f"{source.name}: the weights need {human(need)} of memory, and {human(free)} are free; {without_pack}.")
    digest, runner = source.digest(), source.runner()
    runner.take(source.tensors, progress)
    return LoadedWeights(runner, digest.result())


class Digest:
    """Hash of a model's files, of the numerics version and of what becomes of floats, computed beside the packing."""

    def __init__(self, files: Sequence[Path], choice: Reduction) -> None:
        self._files = files
        how = "" if choice == "q8" else f"quantize {choice}\n"
        self._hash = hashlib.sha256(f"quintet numerics {NUMERICS}\n{how}".encode())
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._read, name="fingerprint", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        buffer = bytearray(1 << 20)
        try:
            for part in self._files:
                with part.open("rb", buffering=0) as file:
                    while size := file.readinto(buffer):
                        self._hash.update(memoryview(buffer)[:size])
        except OSError as error:
            self._error = error

    def result(self) -> str:
        self._thread.join()
        if self._error is not None:
            raise ModelError(f"{self._files[0]}: {self._error.strerror}")
        return self._hash.hexdigest()
