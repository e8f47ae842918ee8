"""Asyncio in simulated time: whoever sleeps costs nothing, and a run depends on nothing but what it is given.

A loop does what is ready, in order. When nothing is, the clock jumps to the next timer. Where an ordinary loop would wait for a socket
there is nothing to wait for: if no timer is left either, everybody waits for somebody else, for ever, and that is said at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


MOST_CLOSED = 20
"""Times that something which was going on in a dead process is told to end, and goes on."""


class StuckError(Exception):
    """Nothing is ready and nothing ever will be: somebody was not woken."""


class Violation(BaseException):
    """Something that is promised does not hold. No ``Exception``, so that no code under test can take it for one of its own."""


class Life:
    """Of a simulated process that can be killed: what it has begun on the loop, directly or not, ends with it.

    Args:
        over: done when it is dead.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def dead(self) -> bool:
        return self.over.done()

    def bury(self) -> None:
        """Let go of what it was doing, when the world ends: no callback of the dead runs, so nobody sees it."""
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(0 if task.done() else MOST_CLOSED):
                with contextlib.suppress(RuntimeError, Violation):  # it waits for something more at its end, or tells somebody
                    self.context.copy().run(task.get_coro().close)
                    break
        self.tasks.clear()


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)
"""The process in which something runs; ``None`` = one that nobody kills."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without sockets and threads, whose seconds pass when it has nothing to do.

    What goes wrong in a callback or a task that nobody awaits ends the run: see ``run``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._scheduled: list[asyncio.TimerHandle]  # the base class's timers, the next one first
        self._ready: deque[asyncio.Handle]  # and what is due
        self._selector = self  # what the base class asks to wait
        self._failure: BaseException | None = None
        self.thread_s: Callable[[], float] = lambda: 0.0
        """How long what is given to a thread takes."""
        self.set_exception_handler(self._failed)
        self.set_task_factory(_recorded)
        self._begun_by: dict[int, Life | None] = {}  # asynchronous generators

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    @property
    def due(self) -> float:
        """Timers up to this time may be called now: asyncio calls those that are due within its clock's resolution a little early."""
        return self._now + self._clock_resolution  # type: ignore[attr-defined, no-any-return]

    def stand_still(self, seconds: float) -> None:
        """The whole process is held up: time passes, and no timer runs."""
        self._now += seconds

    def kill(self, life: Life) -> None:
        """Nothing of it runs any more from the end of this callback on."""
        life.over.set_result(None)
        life.tasks = [task for task in life.tasks if not task.done()]
        for handle in (*self._ready, *self._scheduled):
            if handle._context.get(LIFE) is life:  # type: ignore[attr-defined]
                handle.cancel()

    def next(self, callback: Callable[[], object]) -> None:
        """Call it when this callback is over, before all that is ready, on nobody's behalf."""
        self._ready.appendleft(asyncio.Handle(callback, (), self, contextvars.Context()))

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

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return _unless_dead(super().call_soon(callback, *args, context=context))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return _unless_dead(super().call_at(when, callback, *args, context=context))

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

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._begun_by[id(agen)] = LIFE.get()
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """One that nobody goes on with is closed, but not on behalf of a dead process."""
        life = self._begun_by.pop(id(agen), None)
        if life is None or not life.dead:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def _write_to_self(self) -> None:
        raise Violation("a thread has called into a simulation")

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._failure is None:
            self._failure = context.get("exception") or Violation(str(context["message"]))
        self.stop()


H = TypeVar("H", bound=asyncio.Handle)


def _unless_dead(handle: H) -> H:
    """What is called on behalf of a dead process is not called."""
    life = handle._context.get(LIFE)  # type: ignore[attr-defined]
    if life is not None and life.dead:
        handle.cancel()
    return handle


def _recorded(loop: asyncio.AbstractEventLoop, doing: Any, **more: Any) -> asyncio.Task[Any]:
    """A task that its process knows of."""
    task: asyncio.Task[Any] = asyncio.Task(doing, loop=loop, **more)
    context = more.get("context")
    life = LIFE.get() if context is None else context.get(LIFE)
    if life is not None:
        life.tasks.append(task)
    return task
