"""Ends a request's work when nobody waits for it any more: the client is gone, or the time is up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from quintet.dialects.base import failed
from quintet.errors import DeadlineExceeded, Overloaded, QuintetError, counted
from quintet.events import ChoiceDone, Event, Failed, Finish
from quintet.server.asgi import Receive
from quintet.server.http import ClientGoneError
from quintet.service.job import Job

T = TypeVar("T")


class Deadline:
    """When an answer must be complete. Made on the event loop.

    Args:
        seconds: that a request may take in all; 0 = as long as it likes.
        passed: seconds since it arrived.
    """

    def __init__(self, seconds: float, passed: float) -> None:
        self._seconds = seconds
        self.at = asyncio.get_running_loop().time() + seconds - passed if seconds else None
        """On the event loop's clock; ``None`` = never."""

    @property
    def error(self) -> DeadlineExceeded:
        """What is told when it is over."""
        return DeadlineExceeded(f"The request took longer than {counted(self._seconds, 'second')}.")

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """A block that ends by then.

        Raises:
            DeadlineExceeded: it did not.
        """
        try:
            async with asyncio.timeout_at(self.at) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise self.error from None
            raise


class Guard:
    """Watches over a job inside an ``async with``; leaving the block ends the work in any case, and its usage is final then.

    A job that is complete is left alone.
    """

    def __init__(self, receive: Receive, job: Job, deadline: Deadline) -> None:
        self._receive = receive
        self._job = job
        self._deadline = deadline
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Guard:
        self._watch = asyncio.create_task(disconnected(self._receive))
        self._watch.add_done_callback(lambda _: self._job.cancel())
        if self._deadline.at is not None:
            self._timer = asyncio.get_running_loop().call_at(self._deadline.at, self._expire)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._job.cancel()
        self._watch.cancel()
        await asyncio.wait({self._watch})
        await self._job.settled()

    @property
    def gone(self) -> bool:
        """The client closed the connection before the block was left."""
        return self._watch.done() and not self._watch.cancelled()

    def failure(self, events: list[Event]) -> QuintetError | None:
        """Why a request ended early though its client is still there: its time is up, it failed, or the server shuts down."""
        for event in events:
            if isinstance(event, Failed):
                return failed(event)
            if isinstance(event, ChoiceDone) and event.finish in (Finish.ABORT, Finish.ERROR):
                if self._expired:
                    return self._deadline.error
                return Overloaded("The server stopped before the request was complete.")
        return None

    def _expire(self) -> None:
        self._expired = True
        self._job.cancel()


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` gives, if the client, whose request's body has been read, stays; otherwise the work is cancelled.

    Raises:
        ClientGoneError: the client left meanwhile.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))
        del working, leaving  # they keep the exception, whose traceback keeps this frame: nothing of a request is to wait for a collection


async def disconnected(receive: Receive) -> None:
    """Wait until the client closes the connection; once the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
