"""Has the lines of batches computed, a few at a time, and writes down what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quintet.batch import ENDED, NOTHING_USED, Batch, Fault, File, Purpose, Status, kept_s
from quintet.batches.desk import Desk
from quintet.batches.folder import BatchFolderError, Draft, Folder
from quintet.batches.lines import Answer, Line, answered_line, undone_line
from quintet.batches.store import Store
from quintet.batches.validation import Contents, Limits, body_of, draw_seed, validate
from quintet.turns import Turns

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks for batches that another process was asked for, that are cancelled, or whose time is over."""

TIDY_S = 60.0
"""Seconds between two looks for what is kept for too long."""

RETRY_S = 1.0
"""Seconds until a disk that was full is tried again."""

AT_ONCE = 16
"""Lines that an engine computes at once: enough to fill a step of the engine, few enough for it to be over soon when somebody waits."""

MOST_FAILURES = 6
"""So often an engine may fail over a line before that is its answer. Between two tries there is time for it to be started again, and, at
last, for a request that was taken for the cause of its death to get another chance."""

_PATIENCE = 6
"""Each further failure makes the wait before the next try so many times as long, up to ``_LONGEST_S``."""
_LONGEST_S = 700.0

_PIECE_BYTES = 4 * 1024 * 1024
"""Of an output file that are written in one piece of work, which others wait for."""
_AT_ONCE_UNDONE = 1000
"""Lines that are given up in one piece of work."""

_UNDONE = {
    Status.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    Status.CANCELLED: ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}
_STORE_ERRORS = (sqlite3.Error, OSError)


class AgainError(Exception):
    """A line cannot be computed now.

    Args:
        seconds: until it may be tried again.
        failed: what its answer is if that has happened too often; ``None`` = it is never too often.
    """

    def __init__(self, seconds: float, failed: Answer | None = None) -> None:
        super().__init__(seconds)
        self.seconds, self.failed = seconds, failed


@dataclass(frozen=True, slots=True)
class PendingLine:
    """A line that is to be computed.

    Args:
        body: the request's, as JSON text.
    """

    batch: Batch
    line: Line
    body: bytes


Compute = Callable[[PendingLine], Awaitable[Answer]]
"""Raises ``AgainError`` and nothing else."""


class Runner:
    """Sees batches through: from their validation over their lines to their files.

    Args:
        compute: what becomes of a line. The same line must give the same answer.
        now: Unix time in seconds.
        keep: seconds for which files are kept that say nothing less, and batches are known that have ended; 0 = for ever.
        seed: of a line's number; drawn when the batch's file is read, and written down.
        engine: what computes a batch's lines. Each computes ``at_once``: on one that is busy they may wait for hours, and another is idle.
    """

    def __init__(
        self,
        folder: Folder,
        desk: Desk,
        compute: Compute,
        now: Callable[[], float] = time.time,
        *,
        limits: Limits,
        keep: float,
        seed: Callable[[int], int] = draw_seed,
        at_once: int = AT_ONCE,
        engine: Callable[[Batch], str] = lambda _: "",
    ) -> None:
        self._folder, self._desk, self._compute, self._now = folder, desk, compute, now
        self._limits, self._keep, self._seed, self._at_once = limits, keep, seed, at_once
        self._engine = engine
        self._places: defaultdict[str, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, at_once))
        self._validating = Turns(1)  # a file's lines are held until all have been read
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._disk_fails = False  # and that was said
        self._said = set[str]()  # of what fails between batches

    def wake(self) -> None:
        """Look for new batches, and for those that are cancelled, now."""
        self._wake.set()

    async def run(self) -> None:
        """Compute whatever there is, until cancelled. As long as another process has the folder, wait."""
        try:
            while not self._taken():
                await asyncio.sleep(POLL_S)
            tidied = -math.inf
            while True:
                self._wake.clear()
                if time.monotonic() - tidied >= TIDY_S:
                    tidied = time.monotonic()
                    await self._or_log(self._tidy())
                await self._or_log(self._look())
                await self._sleep(POLL_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._folder.leave()

    def _taken(self) -> bool:
        try:
            return self._folder.take()
        except BatchFolderError as error:  # no descriptor, say: that passes
            _log.error("batches: %s", error)
            return False

    async def _or_log(self, work: Awaitable[None]) -> None:
        """Do what may fail, which is said once: it is tried again the next time, and nothing else waits for it."""
        try:
            await work
            self._said.clear()
        except _STORE_ERRORS as error:
            if (why := str(error)) not in self._said:
                _log.error("batches in %s: %s", self._folder.path, error)
                self._said.add(why)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _tidy(self) -> None:
        now = self._now()

        def tidy(store: Store) -> set[str]:
            store.expire(now, self._keep)
            return store.known_files()

        known = await self._desk.do(tidy)
        await asyncio.to_thread(self._folder.sweep, known, now)

    async def _look(self) -> None:
        for batch in await self._desk.do(Store.open_batches):
            if batch.id not in self._tasks:
                self._stops[batch.id] = asyncio.Event()
                self._tasks[batch.id] = task = asyncio.create_task(self._see_through(batch.id))
                task.add_done_callback(partial(self._ended, batch.id))
            if batch.status is Status.CANCELLING or self._expired(batch):
                self._stops[batch.id].set()

    def _expired(self, batch: Batch) -> bool:
        return batch.expires is not None and self._now() >= batch.expires

    def _ended(self, id_: str, task: asyncio.Task[None]) -> None:
        del self._tasks[id_], self._stops[id_]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s is left alone for now", id_, exc_info=error)

    async def _see_through(self, id_: str) -> None:
        """Bring a batch to its end, whatever the disk does meanwhile."""
        while True:
            try:
                batch = await self._desk.do(lambda store: store.find_batch(id_))
                if batch is None or batch.status in ENDED:
                    return
                await self._step(batch)
                self._note_disk(None)
            except _STORE_ERRORS as error:
                self._note_disk(error)
                await asyncio.sleep(RETRY_S)

    def _note_disk(self, error: Exception | None) -> None:
        """Say that the disk takes nothing, or takes it again; ``None`` = it has just taken something."""
        fails = error is not None
        if fails is not self._disk_fails:
            self._disk_fails = fails
            _log.warning("batches in %s %s", self._folder.path, f"wait, {error}" if fails else "go on")

    async def _step(self, batch: Batch) -> None:
        """Take a batch from the status that it has to the next."""
        if batch.status is Status.VALIDATING:
            await self._validating.acquire(batch.owner)
            try:
                await self._validate(batch)
            finally:
                self._validating.release()
        elif batch.status is Status.IN_PROGRESS:
            await self._compute_lines(batch, self._stops[batch.id])
            done = await self._desk.do(lambda store: store.complete(batch.id, self._now()))
            if not done and self._expired(batch):
                await self._give_up(batch, Status.EXPIRED)
        elif batch.status is Status.CANCELLING:
            await self._give_up(batch, Status.CANCELLED)
        else:
            await self._finish(batch, Status.COMPLETED)

    # -- before ----------------------------------------------------------------------------------------------------------------

    async def _validate(self, batch: Batch) -> None:
        path = self._folder.content(batch.asked.input_file)
        contents = Contents()
        if await asyncio.to_thread(path.exists):
            reading = validate(path, batch.asked, self._limits, self._seed)
            while (so_far := await asyncio.to_thread(next, reading, None)) is not None:
                contents = so_far
        else:
            contents.faults.append(Fault("missing_file", "The input file is not there any more."))
        if contents.faults:
            await self._desk.do(lambda store: store.reject(batch.id, contents.faults, self._now()))
        else:
            await self._desk.do(lambda store: store.accept(batch.id, contents.lines, contents.model, self._now()))

    # -- lines -----------------------------------------------------------------------------------------------------------------

    async def _compute_lines(self, batch: Batch, stop: asyncio.Event) -> None:
        """Until all are done, or it is to stop."""
        running: set[asyncio.Task[None]] = set()
        some, after = partial(Store.pending, id_=batch.id, limit=self._at_once), 0
        try:
            while not stop.is_set() and (lines := await self._desk.do(partial(some, after=after))):
                for line in lines:
                    await _wait_for_fewer(running, self._at_once, stop)
                    if stop.is_set():
                        break
                    running.add(asyncio.create_task(self._compute_line(batch, line)))
                after = lines[-1].number
            await _wait_for_fewer(running, 1, stop)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _compute_line(self, batch: Batch, line: Line) -> None:
        """Until its answer is written down, whatever the engine and the disk do meanwhile."""
        path = self._folder.content(batch.asked.input_file)
        failures, told = 0, False
        while True:
            async with self._places[self._engine(batch)]:
                try:
                    # Read here: bodies are as large as any request's, and of a hundred batches as many lines as one computes would wait.
                    pending = PendingLine(batch, line, await asyncio.to_thread(_body, path, line))
                    await self._record(batch, line, await self._compute(pending))
                    return
                except AgainError as error:
                    again = error
                except OSError as error:  # of the file, which may be put back; lines that can be read go on meanwhile
                    if not told:
                        _log.error("batches: a line of %s waits, %s", batch.id, error)
                    told, again = True, AgainError(RETRY_S)
                failures += again.failed is not None
                if again.failed is not None and failures >= MOST_FAILURES:
                    await self._record(batch, line, again.failed)
                    return
            # Not in a place: others may go on meanwhile.
            await asyncio.sleep(min(_LONGEST_S, again.seconds * _PATIENCE ** max(0, failures - 1)))

    async def _record(self, batch: Batch, line: Line, answer: Answer) -> None:
        """Write down what came of a line, as soon as the disk takes it."""
        text = answered_line(batch.id, line, answer)
        while True:
            try:
                await asyncio.to_thread(self._folder.require_room, len(text))  # not on the event loop: a disk may hang
                await self._desk.do(lambda store: store.record(batch.id, line.number, text, answer.tokens, ok=answer.ok))
                self._note_disk(None)
                return
            except _STORE_ERRORS as error:
                self._note_disk(error)
                await asyncio.sleep(RETRY_S)

    # -- after -----------------------------------------------------------------------------------------------------------------

    async def _give_up(self, batch: Batch, status: Status) -> None:
        """Write down of each line that is left that it was not computed, and end the batch."""
        code, message = _UNDONE[status]

        def give_up_some(store: Store) -> bool:
            lines = store.pending(batch.id, 0, _AT_ONCE_UNDONE)
            for line in lines:
                store.record(batch.id, line.number, undone_line(batch.id, line, code, message), NOTHING_USED, ok=False)
            return bool(lines)

        while await self._desk.do(give_up_some):
            pass
        await self._finish(batch, status)

    async def _finish(self, batch: Batch, status: Status) -> None:
        output = await self._write(batch, "output", ok=True)
        errors = await self._write(batch, "error", ok=False)
        await self._desk.do(lambda store: store.finish(batch.id, status, (output, errors), self._now()))

    async def _write(self, batch: Batch, what: str, *, ok: bool) -> File | None:
        """One of the two files, in the order of the lines; ``None`` = there is nothing in it.

        It is written beside its place first, so that nobody ever sees a part of it; and written again after a crash, to the same bytes.
        """
        if not (size := await self._desk.do(lambda store: store.result_bytes(batch.id, ok=ok))):
            return None
        await asyncio.to_thread(self._folder.require_room, size)  # so that a disk too full for it is not written full every second
        draft = await asyncio.to_thread(self._folder.draft)
        last: int | None = 0  # number of the last line that is in it; ``None`` = all are
        try:
            while last is not None:
                last = await self._desk.do(partial(_write_piece, batch.id, draft, last, ok))
            id_ = f"file-{hashlib.sha256(f'{batch.id}/{what}'.encode()).hexdigest()[:32]}"
            await asyncio.to_thread(draft.keep, id_)
        finally:
            await asyncio.to_thread(draft.drop)
        now = int(self._now())
        keep = kept_s(self._keep, batch.asked.output_s)
        return File(
            id=id_,
            owner=batch.owner,
            name=f"{batch.id}_{what}.jsonl",
            purpose=Purpose.OUTPUT,
            size=draft.size,
            created=now,
            expires=now + keep if keep else None,
            lines=draft.lines,
        )


def _body(path: Path, line: Line) -> bytes:
    """Of a line's request.

    Raises:
        OSError: the file cannot be read, or the line is not in it any more.
    """
    with path.open("rb") as file:
        file.seek(line.start)
        data = file.read(line.size)
    body = body_of(data, line.name)
    if body is None:
        raise OSError(errno.EIO, f"line {line.number} is not there any more", str(path))
    return body


def _write_piece(id_: str, draft: Draft, after: int, ok: bool, store: Store) -> int | None:
    """Write the next lines of a file; the number of the last, or ``None`` after the end."""
    begin = draft.size
    for line, body in store.results(id_, after, ok=ok):
        draft.write(body)
        if draft.size - begin > _PIECE_BYTES:
            return line
    return None


async def _wait_for_fewer(running: set[asyncio.Task[None]], fewer: int, stop: asyncio.Event) -> None:
    """Wait until fewer than so many run, or they are to stop.

    Raises:
        Exception: what one of them raised.
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while len(running) >= fewer and not stopping.done():
            done, _ = await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in running & done:
                running.discard(task)
                task.result()
    finally:
        stopping.cancel()
