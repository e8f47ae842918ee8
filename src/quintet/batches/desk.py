"""The one thread that reads and writes a folder of batches.

What is asked of it while it waits for the disk is done in one transaction, which is synchronised once for all who wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from quintet.batches.folder import BatchFolderError, Folder
from quintet.batches.schema import connect
from quintet.batches.store import Store

MOST_AT_ONCE = 256
"""Pieces of work of one transaction."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A piece of work, and who waits for it."""

    run: Callable[[Store], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def tell(self, result: object, error: BaseException | None) -> None:
        """Called in the thread."""

        def settle() -> None:
            if not self.future.done():
                if error is None:
                    self.future.set_result(result)
                else:
                    self.future.set_exception(error)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(settle)


class Desk:
    """Does pieces of work with a folder's ``Store``, in its thread.

    Raises:
        BatchFolderError: see ``connect``; or no thread can be started.
    """

    def __init__(self, folder: Folder) -> None:
        self._connection = connect(folder.database)
        self._store = Store(self._connection)
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()  # ``None`` = the end
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # "can't start new thread": there is no memory for it, or as many run as may
            self._connection.close()
            raise BatchFolderError(f"{folder.path}: {error}.") from None

    async def do(self, work: Callable[[Store], T]) -> T:
        """What ``work`` returns or raises; what it wrote is on the disk then, all of it, or nothing if it raised.

        Raises:
            sqlite3.Error, OSError: it could not be written.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Work(work, future, loop))
        return await future

    def close(self) -> None:
        """Do what was asked for, and let go of the file."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            waiting = [self._queue.get()]
            while len(waiting) < MOST_AT_ONCE and not self._queue.empty():
                waiting.append(self._queue.get())
            closing = None in waiting
            self._do_together([work for work in waiting if work is not None])
        self._connection.close()

    def _do_together(self, works: list[_Work]) -> None:
        """One transaction, in which each piece of work is done wholly or not at all."""
        outcomes: list[tuple[object, BaseException | None]]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._do(work) for work in works]
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # whatever becomes of it, the thread goes on: all wait for it
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            outcomes = [(None, error)] * len(works)
        for work, (result, failure) in zip(works, outcomes, strict=True):
            work.tell(result, failure)

    def _do(self, work: _Work) -> tuple[object, BaseException | None]:
        """What it returned, or raised.

        Raises:
            sqlite3.Error: the whole transaction is lost.
        """
        self._connection.execute("SAVEPOINT work")
        try:
            result = work.run(self._store)
        except Exception as error:
            if not self._connection.in_transaction:  # SQLite ends one by itself at some errors of the disk
                raise
            self._connection.execute("ROLLBACK TO work")
            self._connection.execute("RELEASE work")
            return None, error
        self._connection.execute("RELEASE work")
        return result, None
