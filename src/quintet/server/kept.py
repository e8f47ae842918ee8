"""The files and batches of a server: opened when they are first needed, and computed while it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from typing import TypeVar

from quintet.batch import Batch
from quintet.batches.desk import Desk
from quintet.batches.folder import BatchFolderError, Folder, in_use
from quintet.batches.runner import Compute, Runner
from quintet.batches.store import Store
from quintet.batches.validation import Limits
from quintet.config import BatchConfig
from quintet.errors import NotFound, Overloaded

_log = logging.getLogger(__name__)

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
        """Go on with what an earlier process has left, if it has left anything. On the event loop that serves."""
        if self._config is not None:
            try:
                if self._config.folder.exists():
                    self._open()
            except (BatchFolderError, OSError) as error:  # OSError: nobody can tell whether it is there
                _log.error("batches: %s", error)

    async def end(self) -> None:
        """Leave everything as it is; the next process goes on."""
        if self._leaving is not None:
            await self._leaving
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
        if self._folder is None:
            try:
                self._open()
            except BatchFolderError as error:
                _log.error("batches: %s", error)
                raise Overloaded("The server cannot keep files now; its log says why.", _RETRY_AFTER_S) from None
        assert self._folder is not None
        return self._folder

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

    def _open(self) -> None:
        config = self.config
        folder = Folder(config.folder)
        if not folder.take() and not config.waits:
            raise in_use(config.folder)
        with contextlib.ExitStack() as undo:  # or the next try would find the lock taken
            undo.callback(folder.leave)
            desk = Desk(folder)
            undo.callback(desk.close)
            folder.remember()
            undo.pop_all()
        self._folder, self._desk = folder, desk
        limits, keep, engine = self._limits, config.keep, self._engine
        self._runner = Runner(folder, desk, self._compute, self._now, limits=limits, keep=keep, engine=engine)
        self._running = asyncio.create_task(self._runner.run())
        self._running.add_done_callback(_told)


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
