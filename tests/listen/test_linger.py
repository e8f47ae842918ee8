"""A transport that closes in two steps, call by call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.listen.test_protocol import stopped_clock
from tests.server.test_connections import Wire

from quintet.listen import linger
from quintet.listen.linger import CLOSE_S, LINGER_S, YIELD_S, Connection


class Told(Wire):
    """Remembers what it was told.

    Args:
        half: it can end what is said alone, as TLS cannot.
        unsent: bytes that its client does not take.
    """

    def __init__(self, half: bool = True, unsent: int = 0) -> None:
        super().__init__()
        self.told: list[str] = []
        self._half, self._unsent = half, unsent

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def can_write_eof(self) -> bool:
        return self._half

    def write_eof(self) -> None:
        self.told.append("eof")

    def resume_reading(self) -> None:
        self.told.append("resume")

    def close(self) -> None:
        super().close()
        self.told.append("close")

    def abort(self) -> None:
        super().close()
        self.told.append("abort")


def run(test: Callable[[Connection, Told], None], wire: Told | None = None) -> list[str]:
    """What the transport below was told."""

    async def go() -> list[str]:
        below = wire or Told()
        made = Connection(below, asyncio.get_running_loop())
        test(made, below)
        made.end()
        return below.told

    return asyncio.run(go())


def test_between_requests_it_closes_at_once() -> None:
    assert run(lambda made, _: made.close()) == ["close"]


@pytest.mark.parametrize(("half", "told"), [(True, ["eof", "resume"]), (False, ["resume"])])
def test_while_a_request_arrives_nothing_more_is_said_and_what_comes_is_still_read(half: bool, told: list[str]) -> None:
    def test(made: Connection, wire: Told) -> None:
        made.unread = True
        made.write(b"before")
        made.close()
        made.write(b"after")
        assert made.lingers and made.is_closing() and not wire.is_closing()
        assert wire.got == b"before"

    assert run(test, Told(half)) == told


def test_who_closes_twice_waits_no_longer() -> None:
    def test(made: Connection, _: Told) -> None:
        made.unread = True
        made.close()
        made.close()

    assert run(test) == ["eof", "resume", "close"]


def test_of_what_nobody_reads_only_so_much_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "LINGER_BYTES", 100)

    def test(made: Connection, wire: Told) -> None:
        for size in (60, 40):
            made.waste(size)
        assert not wire.is_closing()
        made.waste(1)

    assert run(test) == ["abort"]


def test_reading_goes_on_only_where_there_is_room_and_the_connection_is_there() -> None:
    def test(made: Connection, wire: Told) -> None:
        made.full = True
        made.resume_reading()
        made.full = False
        made.resume_reading()
        wire.closed = True
        made.resume_reading()

    assert run(test) == ["resume"]


@pytest.mark.parametrize(("lost", "told"), [(False, ["eof", "resume", "abort"]), (True, ["eof", "resume"])])
def test_a_client_that_neither_ends_nor_leaves_is_cut_off_in_time(lost: bool, told: list[str]) -> None:
    async def go() -> list[str]:
        wire, passes = Told(), stopped_clock()
        made = Connection(wire, asyncio.get_running_loop())
        made.unread = True
        made.close()
        await passes(0.9 * LINGER_S)
        assert wire.told == ["eof", "resume"]
        if lost:
            made.end()
        await passes(0.2 * LINGER_S)
        return wire.told

    assert asyncio.run(go()) == told


@pytest.mark.parametrize(
    ("close", "unsent", "seconds"),
    [(Connection.close, 1, CLOSE_S), (Connection.close, 0, CLOSE_S), (Connection.give_way, 1, CLOSE_S), (Connection.give_way, 0, YIELD_S)],
    ids=["the end is unread", "TLS has no word of the end", "wanted, unread", "wanted, no word"],
)
@pytest.mark.parametrize("lost", [False, True])
def test_a_client_that_takes_no_end_is_cut_off_in_time(
    close: Callable[[Connection], None], unsent: int, seconds: float, lost: bool
) -> None:
    async def go() -> list[str]:
        wire, passes = Told(unsent=unsent), stopped_clock()
        made = Connection(wire, asyncio.get_running_loop())
        close(made)
        await passes(0.9 * seconds)
        assert wire.told == ["close"]
        if lost:
            made.end()
        await passes(0.2 * seconds)
        return wire.told

    assert asyncio.run(go()) == ["close"] + ["abort"] * (not lost)


def test_a_place_that_is_wanted_is_free_soon_though_it_was_closed_before() -> None:
    async def go() -> list[str]:
        wire, passes = Told(half=False), stopped_clock()
        made = Connection(wire, asyncio.get_running_loop())
        made.close()
        await passes(YIELD_S)
        made.give_way()
        await passes(1.1 * YIELD_S)
        return wire.told

    assert asyncio.run(go()) == ["close", "close", "abort"]
