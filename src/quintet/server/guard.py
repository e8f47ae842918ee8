"""Ends a job's work when nobody waits for it any more: the client is gone, or the time is up."""

from __future__ import annotations

import asyncio
from types import TracebackType

from quintet.dialects.base import failed
from quintet.errors import DeadlineExceeded, Overloaded, QuintetError
from quintet.events import ChoiceDone, Event, Failed, Finish
from quintet.server.asgi import Receive
from quintet.service import Job


class Guard:
    """Watches over a job inside an ``async with``; leaving the block ends the work in any case. A job that is complete is left alone.

    Args:
        timeout: seconds from now that the job may take; 0 = as long as it likes.
    """

    def __init__(self, receive: Receive, job: Job, timeout: float) -> None:
        self._receive = receive
        self._job = job
        self._timeout = timeout
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Guard:
        self._watch = asyncio.create_task(disconnected(self._receive))
        self._watch.add_done_callback(lambda _: self._job.cancel())
        if self._timeout:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._job.cancel()
        self._watch.cancel()
        await asyncio.wait({self._watch})

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
                    return DeadlineExceeded(f"The request took longer than {self._timeout:g} seconds.")
                return Overloaded("The server stopped before the request was complete.")
        return None

    def _expire(self) -> None:
        self._expired = True
        self._job.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client closes the connection; once the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
