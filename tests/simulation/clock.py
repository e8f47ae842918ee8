"""Asyncio in simulated time: whoever sleeps costs nothing, and a run depends on nothing but what it is given.

A loop does what is ready, in order. When nothing is, the clock jumps to the next timer. Where an ordinary loop would wait for a socket
there is nothing to wait for: if no timer is left either, everybody waits for somebody else, for ever, and that is said at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(Exception):
    """Nothing is ready and nothing ever will be: somebody was not woken."""


class Violation(BaseException):
    """Something that is promised does not hold. No ``Exception``, so that no code under test can take it for one of its own."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without sockets and threads, whose seconds pass when it has nothing to do.

    What goes wrong in a callback or a task that nobody awaits ends the run: see ``run``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._scheduled: list[asyncio.TimerHandle]  # the base class's timers, the next one first
        self._selector = self  # what the base class asks to wait
        self._failure: BaseException | None = None
        self.thread_s: Callable[[], float] = lambda: 0.0
        """How long what is given to a thread takes."""
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def stand_still(self, seconds: float) -> None:
        """The whole process is held up: time passes, and no timer runs."""
        self._now += seconds

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end.

        Raises:
            Violation: and whatever else went wrong anywhere.
            StuckError: see there.
        """
        task = self.create_task(main)
        task.add_done_callback(lambda _: self.stop())
        try:
            self.run_forever()
        finally:
            self.close()
        if self._failure is not None:
            raise self._failure
        return task.result()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it here, after as long as a thread would have taken."""
        future = self.create_future()

        def work() -> None:
            if not future.cancelled():
                try:
                    future.set_result(func(*args))
                except Exception as error:
                    future.set_exception(error)

        self.call_later(self.thread_s(), work)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """There is one thread, and it is the loop's."""
        return self.call_soon(callback, *args, context=context)

    def select(self, timeout: float | None) -> list[object]:
        """The base class has nothing to do for so long; ``None``: and no timer."""
        if timeout is None:
            raise StuckError("everybody waits, and nothing will wake anybody")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())  # not added up, which would round
        return []

    def _process_events(self, events: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        raise Violation("a thread has called into a simulation")

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._failure is None:
            self._failure = context.get("exception") or Violation(str(context["message"]))
        self.stop()
