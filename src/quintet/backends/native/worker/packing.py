"""Weights by way of packs: those of the pack that is kept, or a new pack, written a part at a time. In both cases the model's matrices are
the mapped file, which every engine of that model shares, unless the system maps it by small pages only and there is memory for a copy."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from quintet import machine
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.packed import checksums, huge_copy
from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.sizes import packed_bytes
from quintet.backends.native.core.types import U8
from quintet.backends.native.worker.mapping import mapped, on_huge_pages
from quintet.backends.native.worker.pack_directory import (
    ALIGN,
    PIECE,
    START,
    SUFFIX,
    Directory,
    Kind,
    Source,
    Tensor,
    UnusableError,
    write,
    write_views,
)
from quintet.backends.native.worker.packs import STAMP_NS, Pack, Packs
from quintet.models.spec import Tensors

PART = 256 << 20
"""Packed bytes that are in memory while a pack is written, twice: being packed, and being written. A larger tensor is a part of its own."""

MOST_IN_PART = 400
"""Tensors; the system takes so many pieces, and as many gaps, in one go."""

PIECES = 128
"""Pieces that are looked at before it is said how far that got."""

HUGE = 0.9
"""Share of a mapping below which it is copied."""

SETTLED_NS = 2_000_000_000
"""A file that was written so long ago cannot be changed any more and keep its times: clocks of file systems are finer."""

_log = logging.getLogger(__name__)


class LoadedWeights(NamedTuple):
    """A runner with its weights.

    Args:
        digest: of the model's files, see ``weights.Digest``.
    """

    runner: NativeRunner
    digest: str


class Packing:
    """One model's weights.

    Args:
        files: all that the model is made of.
        runner: makes one without weights.
        digest: begins to hash the files; what that gives waits for the end.
    """

    def __init__(
        self,
        packs: Packs,
        kind: Kind,
        files: Sequence[Path],
        tensors: Tensors,
        cpu: Cpu,
        runner: Callable[[], NativeRunner],
        digest: Callable[[], Callable[[], str]],
    ) -> None:
        self._packs, self._kind, self._files, self._tensors = packs, kind, files, tensors
        self._cpu, self._runner, self._digest = cpu, runner, digest
        self.need = sum(map(packed_bytes, tensors.values()))
        """Bytes of all tensors when they are packed."""

    def load(self, progress: Callable[[float], None]) -> LoadedWeights:
        """The weights of a pack that is kept, or of a new one.

        Raises:
            OSError: no pack can be written.
        """
        pack = self._find()
        if pack is not None:
            try:
                return LoadedWeights(self._take(pack, progress), pack.directory.digest)
            except (UnusableError, ValueError) as error:
                _log.warning("%s %s; the weights are packed again", self._packs.path / pack.name, error)
                self._packs.drop(pack.name)
            finally:
                os.close(pack.file)
        return self._write(progress)

    def _find(self) -> Pack | None:
        sources = self._sources()
        pack, alike = self._packs.find(self._kind, sources)
        if pack is not None or not alike:
            return pack
        settled = self._settled(sources)
        digest = self._digest()()  # the same model may lie elsewhere now, or its times have changed
        try:
            pack = self._packs.open(self._name(digest))
        except (OSError, UnusableError):
            return None
        old = pack.directory
        if old.digest != digest or old.kind != self._kind:
            os.close(pack.file)
            return None
        if self._sources() == sources:
            new = Directory(old.kind, digest, sources, settled, old.stamp, old.tensors)
            self._packs.renew(pack, new)
        return pack

    def _take(self, pack: Pack, progress: Callable[[float], None]) -> NativeRunner:
        directory, fits = pack.directory, self._fits()
        if not fits and not pack.stamped:
            raise UnusableError("was not written to its end, or was changed since")
        data = mapped(pack.file, directory.end, whole=fits)
        if fits:
            self._verify(directory, data, progress)
        runner = self._give(directory, data, fits=fits)
        self._packs.used(pack)
        if not pack.stamped:
            self._settle(pack.file, directory)
        return runner

    def _verify(self, directory: Directory, data: U8, progress: Callable[[float], None]) -> None:
        """Some at a time: all may come from a slow disk, and a start of which nothing is heard for long is taken for one that hangs."""
        pieces = [piece for tensor in directory.tensors for piece in _pieces(tensor.start, tensor.size)]
        sums = [checksum for tensor in directory.tensors for checksum in tensor.sums]
        for at in range(0, len(pieces), PIECES):
            if checksums(self._cpu, data, pieces[at : at + PIECES]).tolist() != sums[at : at + PIECES]:
                raise UnusableError("is damaged")
            progress(min(1.0, (at + PIECES) / len(pieces)))

    def _give(self, directory: Directory, data: U8, *, fits: bool) -> NativeRunner:
        if fits and on_huge_pages(data) < HUGE and 2 * directory.size < machine.memory_available():
            data = huge_copy(self._cpu, data)
        runner = self._runner()
        runner.give(self._tensors, {tensor.name: data[tensor.start : tensor.start + tensor.size] for tensor in directory.tensors})
        return runner

    def _write(self, progress: Callable[[float], None]) -> LoadedWeights:
        parts = list(self._parts())
        self._packs.make_room(self.need + START * (1 + len(parts)))
        sources = self._sources()
        settled, digest = self._settled(sources), self._digest()
        with self._packs.begin() as pack:
            tensors = self._write_tensors(pack.file, parts, progress)
            stamp = time.time_ns() // STAMP_NS * STAMP_NS
            directory = Directory(self._kind, digest(), sources, settled, stamp, tuple(tensors))
            write(pack.file, directory)
            runner = self._read_back(directory, pack.file, progress)
            if self._sources() == sources:  # else nobody knows what was packed
                pack.keep(self._name(directory.digest))
                self._settle(pack.file, directory)
        return LoadedWeights(runner, directory.digest)

    def _read_back(self, directory: Directory, file: int, progress: Callable[[float], None]) -> NativeRunner:
        fits = self._fits()
        data = mapped(file, directory.end, whole=fits)
        try:
            if fits:
                self._verify(directory, data, lambda _: progress(1.0))
        except UnusableError:
            raise OSError("what was written there reads differently") from None
        return self._give(directory, data, fits=fits)

    def _write_tensors(self, file: int, parts: Sequence[list[str]], progress: Callable[[float], None]) -> list[Tensor]:
        written: list[Tensor] = []
        last: Future[list[Tensor]] | None = None
        at, done = START, 0
        with ThreadPoolExecutor(1, "pack") as writer:
            for names in parts:
                part = self._runner()
                for name in names:
                    part.pack(name, self._tensors[name])
                    done += packed_bytes(self._tensors[name])
                    progress(done / self.need)
                views = {name: part.packed(name) for name in names}
                if last is not None:
                    written += last.result()
                last = writer.submit(self._put, file, views, at)
                at = _up(at + sum(_up(view.size, ALIGN) for view in views.values()), START)
            if last is not None:
                written += last.result()
        return written

    def _put(self, file: int, views: dict[str, U8], at: int) -> list[Tensor]:
        """Write tensors one after the other, in one go: the file's memory is on huge pages where it is written in large pieces."""
        tensors, out, start = [], [], at
        for name, view in views.items():
            sums = checksums(self._cpu, view, _pieces(0, view.size))
            tensors.append(Tensor(name, start, view.size, tuple(sums.tolist())))
            out += [view.data, memoryview(bytes(_up(view.size, ALIGN) - view.size))]
            start += _up(view.size, ALIGN)
        write_views(file, out, at)
        return tensors

    def _parts(self) -> Iterator[list[str]]:
        part: list[str] = []
        size = 0
        for name, tensor in self._tensors.items():
            need = packed_bytes(tensor)
            if part and (size + need > PART or len(part) == MOST_IN_PART):
                yield part
                part, size = [], 0
            part.append(name)
            size += need
        yield part

    def _settle(self, file: int, directory: Directory) -> None:
        """In its own time: a large file takes seconds to be on the disk, and nobody waits for that."""
        own = os.dup(file)

        def settle() -> None:
            try:
                self._packs.settle(own, directory)
            except OSError as error:
                _log.warning("a pack in %s is not safe on the disk: %s", self._packs.path, error)
            finally:
                os.close(own)

        threading.Thread(target=settle, name="pack", daemon=True).start()

    def _fits(self) -> bool:
        return self.need <= machine.memory_available()

    def _sources(self) -> tuple[Source, ...]:
        return tuple(Source.of(file.stat()) for file in self._files)

    def _settled(self, sources: Sequence[Source]) -> bool:
        return all(max(source.mtime_ns, source.ctime_ns) < time.time_ns() - SETTLED_NS for source in sources)

    def _name(self, digest: str) -> str:
        return f"{digest[:32]}-{self._kind.quantize}{SUFFIX}"


def _pieces(start: int, size: int) -> list[tuple[int, int]]:
    return [(start + at, min(PIECE, size - at)) for at in range(0, size, PIECE)]


def _up(size: int, align: int) -> int:
    return -(-size // align) * align
