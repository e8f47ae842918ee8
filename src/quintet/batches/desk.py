"""The one thread that reads and writes a folder of batches. What is asked of it while it waits for the disk is done together, and then
synchronised once for all who wait."""

from __future__ import annotations

import asyncio
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
class _Asked:
    """A piece of work, and who waits for it."""

    work: Callable[[Store], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def tell(self, result: object, error: BaseException | None) -> None:
        def settle() -> None:
            if not self.future.done():
                if error is None:
                    self.future.set_result(result)
                else:
                    self.future.set_exception(error)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(settle)


class Desk:
    """
    Raises:
        BatchFolderError: see ``connect``; or no thread can be started.
    """

    def __init__(self, folder: Folder) -> None:
        self._connection = connect(folder.database)
        self._store = Store(self._connection)
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
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
        self._asked.put(_Asked(work, future, loop))
        return await future

    def close(self) -> None:
        """Do what was asked for, and let go of the file."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while not closing:
            waiting = [self._asked.get()]
            while len(waiting) < MOST_AT_ONCE and not self._asked.empty():
                waiting.append(self._asked.get())
            closing = None in waiting
            self._together([asked for asked in waiting if asked is not None])
        self._connection.close()

    def _together(self, asked: list[_Asked]) -> None:
        """One transaction, in which each piece of work is done wholly or not at all."""
        told: list[tuple[_Asked, object, BaseException | None]]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            told = [(one, *self._one(one.work)) for one in asked]
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            told = [(one, None, error) for one in asked]
        for one, result, failure in told:
            one.tell(result, failure)

    def _one(self, work: Callable[[Store], object]) -> tuple[object, BaseException | None]:
        """
        Raises:
            sqlite3.Error: the whole transaction is lost.
        """
        self._connection.execute("SAVEPOINT one")
        try:
            result = work(self._store)
        except Exception as error:
            if not self._connection.in_transaction:  # SQLite ends one by itself at some errors of the disk
                raise
            self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
            return None, error
        self._connection.execute("RELEASE one")
        return result, None
