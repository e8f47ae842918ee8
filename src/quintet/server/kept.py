"""The files and batches of a server: opened when they are first needed, and computed while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from quintet.batch import Batch
from quintet.batches.desk import Desk
from quintet.batches.folder import BatchFolderError, Folder, FolderInUseError, in_use
from quintet.batches.runner import Compute, Runner
from quintet.batches.store import Store
from quintet.batches.validation import Limits
from quintet.config import BatchConfig
from quintet.errors import NotFound, Overloaded

_log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Seconds until a folder that could not be opened at the start is tried again, whether anybody asks for it or not."""

_RETRY_AFTER_S = 5.0
_FULL = "The server cannot store anything now; try again later."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder that is open, and what computes its batches.

    Args:
        running: the runner's work.
    """

    folder: Folder
    desk: Desk
    runner: Runner
    running: asyncio.Task[None]

    async def leave(self) -> None:
        """Let go of it as it is."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await asyncio.to_thread(self.desk.close)


class Kept:
    """The folder of files and batches, opened when it is first needed.

    Args:
        config: ``None`` = nothing is kept.
        most_line: bytes of a request.
        now: Unix time in seconds.
        engine: see ``Runner``.
    """

    def __init__(
        self, config: BatchConfig | None, compute: Compute, most_line: int, now: Callable[[], float], engine: Callable[[Batch], str]
    ) -> None:
        self._config, self._compute, self._now, self._engine = config, compute, now, engine
        self._limits = Limits(config.max_lines, most_line) if config else Limits()
        self._open: _OpenFolder | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[_OpenFolder | None] | None = None  # for all who wait for it
        self._failure: Exception | None = None  # why it could not be opened the last time
        self._leaving: asyncio.Task[None] | None = None  # a folder that was lost

    @property
    def config(self) -> BatchConfig:
        """
        Raises:
            NotFound: nothing is kept.
        """
        if self._config is None:
            raise NotFound("This server keeps no files and no batches (--no-batches).")
        return self._config

    def begin(self) -> None:
        """Go on with what an earlier process has left, if it has left anything, once it can be opened. On the event loop that serves."""
        if self._config is not None:
            self._beginning = asyncio.create_task(self._begin(self._config.folder))
            self._beginning.add_done_callback(_log_failure)

    async def end(self) -> None:
        """Leave everything as it is; the next process goes on."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        await asyncio.gather(*(task for task in (self._opening, self._leaving) if task is not None), return_exceptions=True)
        if self._open is not None:
            await self._open.leave()

    async def folder(self) -> Folder:
        """See ``_require``."""
        return (await self._require()).folder

    async def do(self, work: Callable[[Store], T]) -> T:
        """What ``work`` returns or raises, see ``Desk.do``.

        Raises:
            Overloaded: the disk does not take it.
        """
        opened = await self._require()
        with storing(opened.folder):
            return await opened.desk.do(work)

    def wake(self) -> None:
        """There is something new to compute, or to end."""
        if self._open is not None:
            self._open.runner.wake()

    async def _require(self) -> _OpenFolder:
        """What is at the path. If it was deleted or replaced while it was open, what is there now, once the other is let go of.

        Raises:
            NotFound: nothing is kept.
            Overloaded: the folder cannot be used, or not yet.
        """
        before = self._open
        # Not on the event loop: a disk that hangs must not hold the streams. Others may have come here in the meantime.
        if before is not None and await asyncio.to_thread(before.folder.lost) and self._open is before:
            _log.error("batches: %s was deleted or replaced while it was open; it is opened anew", before.folder.path)
            self._leaving = asyncio.create_task(before.leave())
            self._open = None
        if self._leaving is not None and not self._leaving.done():  # SQLite would take its log for the next database's
            raise Overloaded(_FULL, _RETRY_AFTER_S)
        opened = await self._opened()
        if opened is None:
            raise Overloaded("The server cannot keep files now; its log says why.", _RETRY_AFTER_S)
        return opened

    async def _begin(self, path: Path) -> None:
        while self._open is None and self._leaving is None:  # else it was opened for a request
            try:
                if not await _in_thread(path.exists):
                    return
                await self._opened()
            except (BatchFolderError, OSError) as error:  # nobody can tell whether it is there
                self._failed(error)
            if isinstance(self._failure, FolderInUseError):
                return  # its batches are computed, and not to be refused here, for want of their models, while that server is restarted
            await asyncio.sleep(AGAIN_S)

    async def _opened(self) -> _OpenFolder | None:
        """``None`` = it cannot be opened, and the log says why."""
        if self._open is not None:
            return self._open
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._try_to_open(self.config))
        return await asyncio.shield(self._opening)

    async def _try_to_open(self, config: BatchConfig) -> _OpenFolder | None:
        if self._leaving is not None:
            await self._leaving
        try:
            folder, desk = await _in_thread(partial(_open_folder, config))
        except BatchFolderError as error:
            self._failed(error)
            return None
        if self._failure is not None:
            _log.warning("batches: %s is open now", folder.path)
        runner = Runner(folder, desk, self._compute, self._now, limits=self._limits, keep=config.keep, engine=self._engine)
        running = asyncio.create_task(runner.run())
        running.add_done_callback(_log_failure)
        self._open, self._failure = _OpenFolder(folder, desk, runner, running), None
        return self._open

    def _failed(self, error: Exception) -> None:
        """It could not be opened: said once, however often it is tried."""
        if str(error) != str(self._failure):
            _log.error("batches: %s", error)
        self._failure = error


def _open_folder(config: BatchConfig) -> tuple[Folder, Desk]:
    """Open a folder. It takes as long as the disk does, or whoever has the database locked.

    Raises:
        BatchFolderError: it cannot be, or not now.
    """
    folder = Folder(config.folder)
    if not folder.take() and not config.waits:
        raise in_use(config.folder)
    with contextlib.ExitStack() as undo:  # or the next try would find the lock taken
        undo.callback(folder.leave)
        desk = Desk(folder)
        undo.callback(desk.close)
        folder.remember()
        undo.pop_all()
    return folder, desk


async def _in_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises.

    Raises:
        BatchFolderError: there is no thread to be had.
    """
    thread = ThreadPoolExecutor(1, "opening")  # one of the event loop's, that cannot be had now, would do the work later, for nobody
    try:
        running = asyncio.get_running_loop().run_in_executor(thread, work)
    except RuntimeError as error:  # "can't start new thread"
        raise BatchFolderError(f"The folder of batches: {error}.") from None
    thread.shutdown(wait=False)  # when it is done
    return await running


@contextlib.contextmanager
def storing(folder: Folder) -> Iterator[None]:
    """A block that writes to a folder.

    Raises:
        Overloaded: that is full, or broken.
    """
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, ConnectionError):  # the client's
            raise
        _log.error("batches in %s: %s", folder.path, error)
        raise Overloaded(_FULL, _RETRY_AFTER_S) from None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("batches: nothing is computed any more", exc_info=error)
