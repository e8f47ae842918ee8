"""Requests that wait for their guides, compiled beside the steps, one after the other. None can hold up the others for long.

Tenants take turns: one with many guides to compile stands in its own way.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quintet.backends.native.wire.messages import EventRow, Events, Submit
from quintet.events import Blame, Finish

COMPILE_S = 20.0
"""For one request's guides, which compiled in less than a second when they were checked. The machine may be busy."""

TOO_SLOW = "The guide took too long to compile; simplify it, or try again when the server is less busy."
BROKEN = "The guide could not be compiled for this model."
NO_THREAD = "The server can start no thread for the guide now; try again later."


class Compiles(Protocol):
    """``Guides``, as far as they are compiled here."""

    def ready(self, grammar: str) -> bool: ...
    def start(self, grammars: Sequence[str], then: Callable[[bool], None]) -> None: ...
    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request's guides are: what the worker tells itself, from the thread that compiled them."""

    request_id: int


@dataclass(slots=True)
class _Waiting:
    """A request.

    Args:
        aborts: sequences that were called off meanwhile.
        ended: all of it was; it is here only because its guides are still being compiled.
        succeeded: each of its guides could be compiled. One that is dropped later, for want of room, is compiled again when followed.
        begun: there was a thread for them.
    """

    submit: Submit
    grammars: list[str]
    aborts: list[int] = field(default_factory=list)
    ended: bool = False
    succeeded: bool = False
    begun: bool = True


class Compiling:
    """Used in the worker's thread.

    Args:
        clock: seconds, monotonic.
        then: called in any thread with a request whose guides are done, or cannot be begun; tell ``end``.
    """

    def __init__(self, guides: Compiles, clock: Callable[[], float], then: Callable[[int], None]) -> None:
        self._guides, self._clock, self._then = guides, clock, then
        self._waiting: dict[int, _Waiting] = {}  # in order
        self._turns: OrderedDict[str, deque[int]] = OrderedDict()  # those not begun, by tenant; the first is next
        self._current: int | None = None  # is being compiled
        self._since = 0.0  # when that began
        self.compiled, self.seconds = 0, 0.0
        """Requests whose guides were, to the end or not, and what that took."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def sequences(self) -> int:
        """Those of the requests that wait here."""
        return sum(len(waiting.submit.samples) for waiting in self._waiting.values() if not waiting.ended)

    def begin(self, submit: Submit) -> bool:
        """Compile what the request still lacks; False if that is nothing."""
        new = {asked.grammar for asked in submit.asked if asked.grammar and not self._guides.ready(asked.grammar)}
        if not new:
            return False
        self._waiting[submit.request_id] = _Waiting(submit, sorted(new))
        self._turns.setdefault(submit.tenant, deque()).append(submit.request_id)
        if self._current is None:
            self._next()
        return True

    def abort(self, request_id: int, seq: int | None) -> Events | None:
        """Call off one sequence, or all; ``None`` if the request does not wait here."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return None
        if seq is not None:
            waiting.aborts.append(seq)
        elif not waiting.ended:
            waiting.ended = True
            if request_id != self._current:
                self._forget(waiting.submit)
            return _end(waiting.submit, Finish.ABORT)
        return {}

    def _forget(self, submit: Submit) -> None:
        """Take a request that was called off out of its tenant's line: its guides are not being compiled yet."""
        del self._waiting[submit.request_id]
        line = self._turns[submit.tenant]
        line.remove(submit.request_id)
        if not line:
            del self._turns[submit.tenant]

    def end(self, request_id: int) -> tuple[Submit | None, list[int], Events]:
        """A request's guides are done, or cannot be begun.

        Returns:
            The request, if it can run now; its sequences that were called off; the events that end it, if it cannot.
        """
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:  # given up
            return None, [], {}
        self._count()
        self._next()
        if waiting.ended:
            return None, [], {}
        if not waiting.begun:
            return None, [], _end(waiting.submit, Finish.ERROR, NO_THREAD, Blame.LOAD)
        if not waiting.succeeded:
            return None, [], _end(waiting.submit, Finish.ERROR, BROKEN)
        return waiting.submit, waiting.aborts, {}

    def overdue(self) -> Events:
        """Give a request up whose guides take too long; the others' are compiled without it."""
        if self._current is None or self._clock() - self._since <= COMPILE_S:
            return {}
        given_up = self._waiting.pop(self._current)
        self._count()
        self._guides.restart()
        self._next()
        return {} if given_up.ended else _end(given_up.submit, Finish.ERROR, TOO_SLOW, Blame.LOAD)

    def _count(self) -> None:
        self.compiled += 1
        self.seconds += self._clock() - self._since

    def _next(self) -> None:
        """Begin the next of the tenant whose turn it is."""
        self._current, self._since = None, self._clock()
        if not self._turns:
            return
        tenant, line = self._turns.popitem(last=False)
        request_id = self._current = line.popleft()
        if line:
            self._turns[tenant] = line  # at the end
        waiting = self._waiting[request_id]

        def done(succeeded: bool) -> None:
            waiting.succeeded = succeeded
            self._then(request_id)

        try:
            self._guides.start(waiting.grammars, done)
        except RuntimeError:  # "can't start new thread": there is no memory for it, or as many run as may
            waiting.begun = False
            self._then(request_id)


def _end(submit: Submit, finish: Finish, error: str = "", blame: Blame = Blame.SERVER) -> Events:
    return {submit.request_id: [EventRow(seq, -1, finish=finish, error=error, blame=blame) for seq in range(len(submit.samples))]}
