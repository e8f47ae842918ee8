"""Answers that are made faster than they are read: what waits is bounded over all streams; the one for which most waits is given up."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.backends.native.front.test_in_flight import World

from quintet.backends.native.front import in_flight
from quintet.backends.native.front.in_flight import UNREAD
from quintet.backends.native.front.stream import Stream
from quintet.events import Blame, Finish, TokenEvent

TOP = tuple((token, -1.0) for token in range(9))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MOST_UNREAD", 100)
    monkeypatch.setattr(in_flight, "LARGE_UNREAD", 10)


def events(count: int, seq: int = 0, *, last: bool = False) -> list[TokenEvent]:
    """Each counts as ten: itself and nine alternatives."""
    made = [TokenEvent(seq, 1, logprob=-1.0, top=TOP) for _ in range(count)]
    return [*made[:-1], TokenEvent(seq, 1, logprob=-1.0, top=TOP, finish=Finish.LENGTH)] if last else made


async def read(stream: Stream) -> list[TokenEvent]:
    return [event async for batch in stream for event in batch]


@pytest.mark.fault("B23")
def test_the_stream_for_which_most_waits_ends_with_an_error_and_the_others_go_on() -> None:
    async def go() -> None:
        world = World()
        for number in (1, 2):
            world.add(number, count=2)
        world.in_flight.push(2, events(6))
        world.in_flight.push(1, events(4))
        assert world.heard() == [1, 2]
        world.in_flight.push(1, events(1))
        assert world.heard() == [(2, None)], "it is called off"
        world.in_flight.push(2, events(50))
        world.in_flight.push(2, [TokenEvent(seq, -1, finish=Finish.ABORT) for seq in (0, 1)])
        told = await read(world.streams[2])
        assert [(one.seq, one.finish, one.error, one.blame) for one in told] == [(seq, Finish.ERROR, UNREAD, Blame.LOAD) for seq in (0, 1)]
        assert world.in_flight.live == 2
        world.in_flight.push(1, [*events(1, last=True), *events(1, 1, last=True)])
        assert len(await read(world.streams[1])) == 7
        assert (world.in_flight.live, len(world.in_flight)) == (0, 0)

    asyncio.run(go())


@pytest.mark.fault("B23")
def test_what_waits_of_an_answer_that_is_complete_counts_and_each_of_its_sequences_ends_once() -> None:
    async def go() -> None:
        world = World()
        world.add(1, count=2)
        world.add(2)
        world.in_flight.push(1, events(1, last=True))
        seen = await anext(world.streams[1])
        world.in_flight.push(1, events(7, 1, last=True))
        world.in_flight.push(2, events(6))
        told = [*seen, *await read(world.streams[1])]
        assert [(one.seq, one.finish) for one in told if one.finish] == [(0, Finish.LENGTH), (1, Finish.ERROR)]
        assert world.heard() == [1, 2], "there is nothing to be called off"
        assert world.streams[2].waiting == 60

    asyncio.run(go())


def test_what_is_read_and_what_nobody_holds_any_more_does_not_count() -> None:
    async def go() -> None:
        world = World()
        for number in (1, 2, 3):
            world.add(number)
        for _ in range(20):
            world.in_flight.push(1, events(5))
            await anext(world.streams[1])
        assert world.streams[1].waiting == 0
        world.in_flight.push(2, events(6, last=True))
        del world.streams[2]
        gc.collect()
        world.in_flight.push(3, events(6, last=True))
        assert len(await read(world.streams[3])) == 6

    asyncio.run(go())
