"""The files and batches of a server: opened when they are first needed, and computed while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


class Kept:
    """
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
        self._folder: Folder | None = None
        self._desk: Desk | None = None
        self._runner: Runner | None = None
        self._running: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[Folder | None] | None = None  # for all who wait for it
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
            self._beginning.add_done_callback(_told)

    async def end(self) -> None:
        """Leave everything as it is; the next process goes on."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait({self._beginning})
        await asyncio.gather(*(task for task in (self._opening, self._leaving) if task is not None), return_exceptions=True)
        await _left(self._running, self._desk)

    async def folder(self) -> Folder:
        """What is at the path. If it was deleted or replaced while it was open, what is there now, once the other is let go of.

        Raises:
            NotFound: nothing is kept.
            Overloaded: the folder cannot be used, or not yet.
        """
        opened = self._folder
        # Not on the event loop: a disk that hangs must not hold the streams. Others may have come here in the meantime.
        if opened is not None and await asyncio.to_thread(opened.lost) and self._folder is opened:
            _log.error("batches: %s was deleted or replaced while it was open; it is opened anew", opened.path)
            self._leaving = asyncio.create_task(_left(self._running, self._desk))
            self._folder = self._desk = self._runner = self._running = None
        if self._leaving is not None and not self._leaving.done():  # SQLite would take its log for the next database's
            raise Overloaded(_FULL, _RETRY_AFTER_S)
        folder = await self._opened()
        if folder is None:
            raise Overloaded("The server cannot keep files now; its log says why.", _RETRY_AFTER_S)
        return folder

    async def do(self, work: Callable[[Store], T]) -> T:
        """What ``work`` returns or raises, see ``Desk.do``.

        Raises:
            Overloaded: the disk does not take it.
        """
        await self.folder()
        assert self._desk is not None
        with storing():
            return await self._desk.do(work)

    def wake(self) -> None:
        """There is something new to compute, or to end."""
        if self._runner is not None:
            self._runner.wake()

    async def _begin(self, path: Path) -> None:
        while self._folder is None and self._leaving is None:  # else it was opened for a request
            try:
                if not await _in_thread(path.exists):
                    return
                await self._opened()
            except (BatchFolderError, OSError) as error:  # nobody can tell whether it is there
                self._failed(error)
            if isinstance(self._failure, FolderInUseError):
                return  # its batches are computed, and not to be refused here, for want of their models, while that server is restarted
            await asyncio.sleep(AGAIN_S)

    async def _opened(self) -> Folder | None:
        """``None`` = it cannot be opened, and the log says why."""
        if self._folder is not None:
            return self._folder
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(self.config))
        return await asyncio.shield(self._opening)

    async def _open(self, config: BatchConfig) -> Folder | None:
        if self._leaving is not None:
            await self._leaving
        try:
            folder, desk = await _in_thread(partial(_take, config))
        except BatchFolderError as error:
            self._failed(error)
            return None
        if self._failure is not None:
            _log.warning("batches: %s is open now", folder.path)
        self._folder, self._desk, self._failure = folder, desk, None
        limits, keep, engine = self._limits, config.keep, self._engine
        self._runner = Runner(folder, desk, self._compute, self._now, limits=limits, keep=keep, engine=engine)
        self._running = asyncio.create_task(self._runner.run())
        self._running.add_done_callback(_told)
        return folder

    def _failed(self, error: Exception) -> None:
        """It could not be opened: said once, however often it is tried."""
        if str(error) != str(self._failure):
            _log.error("batches: %s", error)
        self._failure = error


def _take(config: BatchConfig) -> tuple[Folder, Desk]:
    """A folder, opened. It takes as long as the disk does, or whoever has the database locked.

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


async def _left(running: asyncio.Task[None] | None, desk: Desk | None) -> None:
    """A folder, as it is."""
    if running is not None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if desk is not None:
        await asyncio.to_thread(desk.close)


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """A block that writes to the disk.

    Raises:
        Overloaded: that is full, or broken.
    """
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, ConnectionError):  # the client's
            raise
        _log.error("batches: %s", error)
        raise Overloaded(_FULL, _RETRY_AFTER_S) from None


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("batches: nothing is computed any more", exc_info=error)
