"""Answers that are complete before they are sent and may be large: made one at a time, and with bounded room until they are read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from quintet.executor import FairExecutor
from quintet.inputs.room import Room
from quintet.server.call import Call
from quintet.server.guard import while_there
from quintet.turns import Turns

LARGE_BYTES = 64 * 1024
"""An answer up to this size takes no room: what waits on the way to a client that does not read is as large."""

MOST_ANSWERS = 256 * 1024 * 1024
"""Bytes of all large answers until their clients have read them."""

T = TypeVar("T")


class LargeAnswers:
    """Over all connections.

    Args:
        executor: for what takes long.
    """

    def __init__(self, executor: FairExecutor) -> None:
        self._executor = executor
        self._room = Room(MOST_ANSWERS, "large answers")
        self._turns = Turns(1)

    @contextlib.asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        """One at a time has what an answer is made of, and the answer: these are many times the request, and all that arrive together would
        have them while they wait for the executor."""
        await self._turns.acquire(call.caller.id)
        try:
            yield
        finally:
            self._turns.release()

    async def run(self, call: Call, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, while the event loop goes on."""
        return await self._executor.run(call.caller.id, work)

    async def send_list(
        self, call: Call, query: Callable[[], Awaitable[tuple[Sequence[T], bool]]], tell: Callable[[Sequence[T], bool], bytes]
    ) -> None:
        """A page of a list: what ``query`` finds, as ``tell`` writes it, while the client is there.

        Raises:
            ClientGoneError: it left meanwhile.
            TooManyRequests, Overloaded: see ``send``.
        """

        async def told() -> bytes:
            async with self.turn(call):
                return await self.run(call, partial(tell, *await query()))

        await self.send(call, await while_there(call.http.receive, told()))

    async def send(self, call: Call, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """With room for it. Nothing of the request but its answer should be held meanwhile.

        Raises:
            TooManyRequests, Overloaded: there is none.
        """
        size = len(body)
        with self._room.held(call.caller.tenant, size if size > LARGE_BYTES else 0):
            await call.http.reply(200, body, headers)
