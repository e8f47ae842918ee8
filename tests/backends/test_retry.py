"""What is waited for in an engine that has no room, and what is not."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.scripted_backend import Script, ScriptedBackend

from quintet.backends.base import State
from quintet.backends.retry import until_room
from quintet.errors import EngineFailed, Loading, Overloaded, QuintetError, TooManyRequests


@pytest.mark.parametrize("state", [State.READY, State.DRAINING, State.LOADING, State.DEAD, State.CLOSED])
@pytest.mark.parametrize("kind", [Overloaded, TooManyRequests, Loading, EngineFailed])
def test_there_is_another_attempt_as_long_as_it_may_find_room(kind: type[QuintetError], state: State) -> None:
    refusals = [kind("No."), kind("Not yet.")]

    async def attempt() -> str:
        if refusals:
            raise refusals.pop()
        return "room"

    waiting = until_room(ScriptedBackend([Script(b"")], state=state), attempt)
    if kind is not EngineFailed and state not in (State.DEAD, State.CLOSED):
        assert asyncio.run(waiting) == "room"
    else:
        with pytest.raises(kind, match="Not yet"):
            asyncio.run(waiting)
