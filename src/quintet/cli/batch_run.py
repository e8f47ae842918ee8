"""``quintet batch run``: a file of requests, through the same parsing, engine and store as a server's batches."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from quintet.batch import ENDED, Batch, File, NewBatch, Purpose, Status
from quintet.batches.desk import Desk
from quintet.batches.folder import Folder
from quintet.batches.runner import Runner
from quintet.batches.validation import Limits
from quintet.cli import engines, fleet
from quintet.cli.console import ConsoleReport, OptionError
from quintet.cli.interrupt import INTERRUPTED, end_within, on_interrupt, unless
from quintet.cli.loading import ready
from quintet.dialects.catalog import PROVIDERS
from quintet.engines.registry import Registry
from quintet.models.files import sha256
from quintet.server.alone import alone

_MOST_LINES = 1_000_000
_LOOK_S = 0.2
_CLOSE_S, _PATIENT_S = 2.0, 60.0  # who has pressed Ctrl-C does not wait long
_INPUT = "input"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What to compute, and where the answers go.

    Args:
        seed: what the seeds of lines without one are made of, beside the file.
    """

    file: Path
    output: Path
    errors: Path
    dialect: str
    seed: int

    @property
    def work(self) -> Path:
        """The folder with what is done so far."""
        return self.output.with_name(f"{self.output.name}.batch")

    @property
    def done(self) -> Path:
        """The same while it is removed."""
        return self.work.with_name(f"{self.work.name}.done")


def run(engine: engines.EngineOptions, options: BatchOptions) -> int:
    """Compute what is left; the exit code: 1 if a line was refused.

    Raises:
        QuintetError: it cannot be begun, in one clear line.
    """
    _check(options)
    folder = Folder(options.work)
    if not folder.take():
        raise OptionError(f"{options.work} is in use: another process computes this batch.")
    desk = Desk(folder)
    try:
        with ConsoleReport() as report:
            served = fleet.plan(fleet.FleetOptions((engine.model,), engine, aliases=(f"*={engine.model}",)), report)
        batch = asyncio.run(_begun(desk, folder, options, served.names.default.name))
        ended = uvloop.run(_compute(served, desk, folder, batch))
    finally:
        desk.close()
        folder.leave()
    if ended.status not in ENDED:
        sys.stderr.write(f"{_done(ended)} of {ended.total} lines are done; the same command goes on with the others.\n")
        return INTERRUPTED
    return _hand_out(folder, options, ended)


def _check(options: BatchOptions) -> None:
    if options.dialect not in PROVIDERS:
        raise OptionError(f"--dialect must be one of {', '.join(PROVIDERS)}, got {options.dialect!r}.")
    _require_apart(options)
    with _usable(options.file):
        if not options.file.is_file():
            raise OptionError(f"{options.file} is no file.")
        options.file.open("rb").close()
    for path in (options.output, options.errors):
        with _usable(path):
            if not path.parent.is_dir():
                raise OptionError(f"{path.parent} is no folder.")
            if path.is_dir() or (path.exists() and not options.work.exists()):
                raise OptionError(f"{path} is there already; remove it, or give another name.")
    with _usable(options.done):
        options.done.is_dir()  # the longest name of all


def _require_apart(options: BatchOptions) -> None:
    """Answers and refusals are put in their places one after the other, and then the folder is removed: no file may be in another's place.

    Raises:
        OptionError: one is.
    """
    file, output, errors, work = (Path(os.path.realpath(path)) for path in (options.file, options.output, options.errors, options.work))
    if output == errors:
        raise OptionError(f"--output and --errors must be two files, got {options.output} for both.")
    for path, given in ((file, options.file), (output, options.output), (errors, options.errors)):
        if path.is_relative_to(work):
            raise OptionError(f"{given} must not be in {options.work}, which is removed when all is done.")
        if path == file and given is not options.file:
            raise OptionError(f"{given} is the file of requests; give another name for what comes of them.")


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """
    Raises:
        OptionError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise OptionError(f"cannot use {path}: {error.strerror}.") from None


async def _begun(desk: Desk, folder: Folder, options: BatchOptions, model: str) -> Batch:
    """The batch: the one that was begun with these very settings, or a new one.

    Raises:
        OptionError: another one was begun.
    """
    digest = sha256(options.file)
    about = {"sha256": digest, "model": model, "dialect": options.dialect, "seed": str(options.seed)}
    made = _batch(options, about, int(options.file.stat().st_mtime))
    before, _ = await desk.do(lambda store: store.batches("", "", 1))
    if before:
        old = before[0].asked.metadata or {}
        changed = [name for name, value in about.items() if old.get(name) != value]
        if changed:
            what = f"{options.file} has changed" if "sha256" in changed else f"--{changed[0]} is another"
            raise OptionError(f"{what} since the batch in {options.work} was begun; remove that folder to begin anew.")
        return before[0]
    draft = folder.draft()
    try:
        with options.file.open("rb") as file:
            while data := file.read(1 << 20):
                draft.write(data)
        draft.keep(_INPUT)
    finally:
        draft.drop()
    kept = File(_INPUT, "", options.file.name, Purpose.BATCH, draft.size, made.created, None, draft.lines)
    await desk.do(lambda store: store.add_file(kept))
    await desk.do(lambda store: store.add_batch(made, 1))
    return made


def _batch(options: BatchOptions, about: dict[str, str], created: int) -> Batch:
    """All that answers are made of follows from the file and the settings, so that they are the same in every run."""
    name = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()
    asked = NewBatch(_INPUT, "/v1/completions", "", None, about, bare=True)
    return Batch(f"batch_{name[:32]}", "", options.dialect, asked, created, None)


def _seed(batch: Batch) -> Callable[[int], int]:
    return lambda line: int.from_bytes(hashlib.sha256(f"{batch.id}/{line}/seed".encode()).digest()[:8]) >> 1


async def _compute(served: fleet.Fleet, desk: Desk, folder: Folder, batch: Batch) -> Batch:
    """How it stands when all is done, or at Ctrl-C."""
    interrupted = on_interrupt()
    registry = served.open()
    limits = Limits(_MOST_LINES, one_model=False)
    runner = Runner(folder, desk, alone(registry), time.time, limits=limits, keep=0.0, seed=_seed(batch))
    try:
        if await unless(interrupted, _loaded(registry)):
            running = asyncio.create_task(runner.run())
            try:
                await unless(interrupted, _watch(desk, batch, running))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        return await _now(desk, batch)
    finally:
        await end_within(_CLOSE_S if interrupted.is_set() else _PATIENT_S, INTERRUPTED, registry.close())


async def _loaded(registry: Registry) -> None:
    for entry in registry.entries.values():
        assert entry.backend is not None
        await ready(entry.backend, entry.name)


async def _now(desk: Desk, batch: Batch) -> Batch:
    found = await desk.do(lambda store: store.known(batch.id))
    assert found is not None
    return found


async def _watch(desk: Desk, batch: Batch, running: asyncio.Task[None]) -> None:
    """Until it has ended."""
    with _bar() as show:
        while (now := await _now(desk, batch)).status not in ENDED:
            show(_done(now), now.total)
            await asyncio.wait((running,), timeout=_LOOK_S)
            if running.done():
                running.result()


def _done(batch: Batch) -> int:
    return batch.completed + batch.failed


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar that takes lines that are done, and all; silence where it is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("lines", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _hand_out(folder: Folder, options: BatchOptions, batch: Batch) -> int:
    """Put the answers where they were wanted. Killed in between, the next run does what is left of it."""
    if batch.status is Status.FAILED:
        for fault in batch.faults:
            sys.stderr.write(f"{options.file}{f', line {fault.line}' if fault.line else ''}: {fault.message}\n")
        _remove(options)
        return 1
    for id_, path in ((batch.output_file, options.output), (batch.error_file, options.errors)):
        if id_ is not None and folder.content(id_).exists():
            with _usable(path):
                _put(folder.content(id_), path)
    for place in {options.output.parent, options.errors.parent}:
        fd = os.open(place, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    _remove(options)
    tokens = batch.tokens
    refused = f", {batch.failed} refused, see {options.errors}" if batch.failed else ""
    sys.stderr.write(f"{batch.completed} lines answered{refused}; {tokens.prompt} prompt tokens, {tokens.completion} generated.\n")
    return 1 if batch.failed else 0


def _put(content: Path, path: Path) -> None:
    """All of a file in its place, or nothing, on whatever file system that is."""
    try:
        content.replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = path.with_name(f".{content.name}")  # the same in each run: what a killed one left is written over
        try:
            with content.open("rb") as whole, os.fdopen(os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
                shutil.copyfileobj(whole, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _remove(options: BatchOptions) -> None:
    """At once, as far as the next run can see."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(options.done)  # of a run that was killed here
    shutil.rmtree(options.work.replace(options.done))
