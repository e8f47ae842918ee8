"""``quintet batch run``: a file of requests, through the same parsing, engine and store as a server's batches."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import filecmp
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from quintet.batch import ENDED, Batch, File, NewBatch, Purpose, Status
from quintet.batches.desk import Desk
from quintet.batches.folder import Folder, strange
from quintet.batches.runner import Runner
from quintet.batches.validation import Limits
from quintet.cli import engines, fleet
from quintet.cli.console import ConsoleReport, OptionError
from quintet.cli.early import INTERRUPTED
from quintet.cli.interrupt import end_within, on_interrupt, unless
from quintet.cli.loading import ready
from quintet.dialects.catalog import PROVIDERS
from quintet.engines.names import ANY
from quintet.engines.registry import Registry
from quintet.errors import counted, one_line
from quintet.inputs.capabilities import Capabilities
from quintet.models.files import sha256, sync
from quintet.request import FRESH_SEED_BITS
from quintet.server.alone import alone

_LIMITS = Limits(1_000_000, one_model=False)
_LOOK_S = 0.2
_CLOSE_S, _PATIENT_S = 2.0, 60.0  # who has pressed Ctrl-C does not wait long
_INPUT = "input"
_FINGERPRINT = "fingerprint"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that have none
_CHANGED = {
    "sha256": "{file} has changed",
    _FINGERPRINT: "what computes has changed (the model's file, --kv-type, another option of numbers, or this program)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
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
        begun = asyncio.run(_now(desk))
        if begun is None or begun.status not in ENDED:  # else a run may have been killed that had put one of the two in its place
            _require_free(options)
        with ConsoleReport() as report:
            served = fleet.plan(fleet.FleetOptions((engine.model,), engine), report)
        about = _about(options, served.names.default.name)
        asyncio.run(_require_same(desk, options, about))  # before a model is loaded in vain
        served = replace(served, names=replace(served.names, patterns=((ANY, served.names.default.model),)))  # whatever a line names
        ended = uvloop.run(_compute(served, desk, folder, options, about))
    finally:
        desk.close()
        folder.leave()
    if ended is None or ended.status not in ENDED:
        done, total = (_done(ended), ended.total) if ended else (0, 0)
        sys.stderr.write(f"{done} of {counted(total, 'line')} done; the same command goes on with the others.\n")
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
    with _usable(options.done):  # the longest name of all
        for folder in (options.work, options.done):
            _require_ours(folder)
        if not options.work.exists():
            _require_free(options)  # before a folder is made


def _require_ours(folder: Path) -> None:
    """
    Raises:
        OptionError: it is no batch's, or has something else in it, which would be removed with it.
    """
    found = strange(folder, {_INPUT})
    if found is not None:
        what = "no folder" if found == folder else f"a folder with {found.relative_to(folder)} in it"
        raise OptionError(f"{folder} is {what}, and is to be a batch's, which is removed when all is done; give another --output.")


def _require_free(options: BatchOptions) -> None:
    """
    Raises:
        OptionError: something is where answers or refusals are to be.
    """
    for path in (options.output, options.errors):
        if os.path.lexists(path):
            raise _taken(path)


def _taken(path: Path) -> OptionError:
    return OptionError(f"{path} is there already; remove it, or give another name.")


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


def _about(options: BatchOptions, model: str) -> dict[str, str]:
    """What all that answers are made of follows from, as far as it is known before the model is loaded."""
    return {"sha256": sha256(options.file), "model": model, "dialect": options.dialect, "seed": str(options.seed)}


def _engine(about: Capabilities) -> dict[str, str]:
    """The rest of it: which bits come out, and which lines are too long."""
    return {_FINGERPRINT: about.fingerprint, "ctx-size": str(about.context)}


async def _require_same(desk: Desk, options: BatchOptions, about: Mapping[str, str]) -> None:
    """
    Raises:
        OptionError: a batch was begun, and not with these very settings.
    """
    before = await _now(desk)
    old = (before.asked.metadata if before else None) or about
    changed = next((name for name, value in about.items() if old.get(name) != value), None)
    if changed is None:
        return
    what = _CHANGED.get(changed, f"--{changed} is another").format(file=options.file)
    raise OptionError(
        f"{what} since the batch in {options.work} was begun; give what it was begun with, or remove that folder to begin anew."
    )


async def _begin(desk: Desk, folder: Folder, options: BatchOptions, about: Mapping[str, str], engine: Mapping[str, str]) -> None:
    """Another run goes on with it from here on."""
    made = _batch(options, about, engine)
    draft = folder.draft()
    try:
        with options.file.open("rb") as file:
            while data := file.read(1 << 20):
                draft.write(data)
        draft.keep(_INPUT)
    finally:
        draft.drop()
    kept = File(
        id=_INPUT,
        owner="",
        name=options.file.name,
        purpose=Purpose.BATCH,
        size=draft.size,
        created=made.created,
        expires=None,
        lines=draft.lines,
    )
    await desk.do(lambda store: store.add_file(kept))
    await desk.do(lambda store: store.add_batch(made, 1))


def _batch(options: BatchOptions, about: Mapping[str, str], engine: Mapping[str, str]) -> Batch:
    """All that answers are made of follows from the file and the settings, so that they are the same in every run."""
    name = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()
    asked = NewBatch(input_file=_INPUT, endpoint="/v1/completions", window="", window_s=None, metadata={**about, **engine}, bare=True)
    return Batch(
        id=f"batch_{name[:32]}", owner="", dialect=options.dialect, asked=asked, created=int(options.file.stat().st_mtime), expires=None
    )


def _seed(about: Mapping[str, str]) -> Callable[[int], int]:
    """Of a line's number. Neither what a model is called nor in whose words it is asked makes other texts."""
    name = f"{about['sha256']}/{about['seed']}"
    return lambda line: int.from_bytes(hashlib.sha256(f"{name}/{line}".encode()).digest()[:8]) >> (64 - FRESH_SEED_BITS)


async def _compute(served: fleet.Fleet, desk: Desk, folder: Folder, options: BatchOptions, about: Mapping[str, str]) -> Batch | None:
    """How it stands when all is done, or at Ctrl-C; ``None`` = nothing was begun.

    Raises:
        OptionError: another engine has computed what is done.
    """
    interrupted = on_interrupt()
    registry = served.open()
    try:
        if await unless(interrupted, _loaded(registry)):
            (entry,) = registry.entries.values()
            assert entry.backend is not None
            engine = _engine(entry.backend.capabilities)
            await _require_same(desk, options, engine)
            if await _now(desk) is None:
                await _begin(desk, folder, options, about, engine)
            runner = Runner(folder, desk, alone(registry), time.time, limits=_LIMITS, keep=0.0, seed=_seed(about))
            running = asyncio.create_task(runner.run())
            try:
                await unless(interrupted, _watch(desk, running))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        return await _now(desk)
    finally:
        await end_within(_CLOSE_S if interrupted.is_set() else _PATIENT_S, INTERRUPTED, registry.close())


async def _loaded(registry: Registry) -> None:
    for entry in registry.entries.values():
        assert entry.backend is not None
        await ready(entry.backend, entry.name)


async def _now(desk: Desk) -> Batch | None:
    """The folder's one batch, once it is begun."""
    found, _ = await desk.do(lambda store: store.batches("", "", 1))
    return found[0] if found else None


async def _watch(desk: Desk, running: asyncio.Task[None]) -> None:
    """Until it has ended."""
    with _bar() as show:
        while (now := await _now(desk)) and now.status not in ENDED:
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
            where = f", line {fault.line}" if fault.line else ""
            sys.stderr.write(f"error: {one_line(f'{options.file}{where}: {fault.message}')}\n")
        _remove(options)
        return 1
    for id_, path in ((batch.output_file, options.output), (batch.error_file, options.errors)):
        if id_ is not None and folder.content(id_).exists():
            with _usable(path):
                _put(folder.content(id_), path)
    for place in {options.output.parent, options.errors.parent}:
        sync(place)
    _remove(options)
    tokens = batch.tokens
    refused = f", {batch.failed} refused, see {options.errors}" if batch.failed else ""
    sys.stderr.write(
        f"{counted(batch.completed, 'line')} answered{refused}; {counted(tokens.prompt, 'prompt token')}, {tokens.completion} generated.\n"
    )
    return 1 if batch.failed else 0


def _put(content: Path, path: Path) -> None:
    """All of a file in its place, or nothing, on whatever file system that is.

    Raises:
        OptionError: what was put there while the batch was computed is another; it stays.
    """
    try:
        try:
            _move(content, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(content, path)
    except FileExistsError:
        if not (path.is_file() and filecmp.cmp(content, path, shallow=False)):  # a run that was killed here may have left the same
            raise _taken(path) from None


def _move(file: Path, place: Path) -> None:
    """
    Raises:
        FileExistsError: something is there.
    """
    try:
        os.link(file, place)  # where a rename would write over what is there
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from None
        file.rename(place)
    else:
        file.unlink()


def _copy(content: Path, path: Path) -> None:
    beside = path.with_name(f".{content.name}")  # the same in each run: what a killed one left is written over
    try:
        with content.open("rb") as whole, os.fdopen(os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            shutil.copyfileobj(whole, file)
            file.flush()
            os.fsync(file.fileno())
        _move(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _remove(options: BatchOptions) -> None:
    """At once, as far as the next run can see."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(options.done)  # of a run that was killed here
    shutil.rmtree(options.work.replace(options.done))
