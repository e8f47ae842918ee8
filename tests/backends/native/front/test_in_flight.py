"""Who is run again after a death of the engine, who is not, and in which order."""

from __future__ import annotations

import pytest

from quintet.backends.native.front.in_flight import INTERRUPTED, REFUSED, UNSENDABLE, InFlight, InFlightRequest
from quintet.backends.native.front.repeat import Told
from quintet.backends.native.front.restarts import (
    AT_ONCE,
    BLAME,
    BLOCKED_S,
    GIVEN_UP,
    MOST_SUSPECTS,
    OFTEN,
    WINDOW_S,
    Deaths,
    Suspects,
    pause,
)
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.wire.messages import Abort, Pixels, Submit
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

GOING, DONE = TokenEvent(0, 1), TokenEvent(0, 2, finish=Finish.LENGTH)


class World:
    """InFlight, with what the engine was told, and a clock."""

    def __init__(self) -> None:
        self.told: list[int | tuple[int, int | None]] = []
        self.now = 0.0
        self.streams: dict[int, Stream] = {}
        self.in_flight = InFlight(self._hear, lambda: self.now, lambda submit: bytes(submit.prompts[0]))
        self.in_flight.up()

    def _hear(self, message: Submit | Pixels | Abort) -> None:
        assert not isinstance(message, Pixels)
        if message.request_id > 99:
            raise OverflowError
        self.told.append(message.request_id if isinstance(message, Submit) else (message.request_id, message.seq))

    def add(self, request_id: int, what: int | None = None, count: int = 1, tenant: str = "", *, shown: bool = True) -> None:
        sequence = PreparedSequence((request_id if what is None else what,), 5, Sampling(0.0, 1.0, 0), None, echo=False)
        self.streams[request_id] = Stream(count)
        submit = Submit.of(request_id, (sequence,) * count, 0.0, tenant=tenant)
        self.in_flight.take(InFlightRequest(submit, self.streams[request_id], told=None if shown else Told()))

    def heard(self) -> list[int | tuple[int, int | None]]:
        heard, self.told = self.told, []
        return heard

    def crash(self, *computed: int) -> None:
        self.in_flight.begin(computed)
        self.in_flight.down()
        self.in_flight.up()

    def seen(self, request_id: int) -> list[TokenEvent]:
        return [event for batch in self.streams[request_id]._batches for event in batch]

    def end(self, request_id: int) -> tuple[Finish | None, str] | None:
        stream = self.streams[request_id]
        if stream.open:
            return None
        last = stream._batches[-1][-1]
        return last.finish, last.error


def test_what_waited_is_told_again_in_order_and_what_was_delivered_breaks_off() -> None:
    world = World()
    for each in (1, 2, 3):
        world.add(each)
    world.in_flight.push(1, [GOING])
    assert world.heard() == [1, 2, 3]
    world.crash()
    assert world.end(1) == (Finish.ERROR, INTERRUPTED)
    assert world.heard() == [2, 3]
    assert world.in_flight.live == 2


@pytest.mark.fault("C01")
def test_what_nobody_was_shown_is_run_again_and_goes_on_where_it_was() -> None:
    world = World()
    world.add(1, count=2, shown=False)
    prompt, first, second = TokenEvent(0, 1, prompt=True), TokenEvent(0, 5, logprob=-1.5), TokenEvent(0, 6)
    other, ended, last = TokenEvent(1, 7), TokenEvent(1, 8, finish=Finish.EOS), TokenEvent(0, 9, finish=Finish.LENGTH)
    world.in_flight.push(1, [prompt, first])
    world.in_flight.push(1, [second, other, ended])
    world.heard()
    world.crash(1)
    assert (world.end(1), world.heard()) == (None, [1, (1, 1)]), "what has ended need not be computed again"
    for again in ([prompt], [first, other]):
        world.in_flight.push(1, again)
        assert len(world.seen(1)) == 5, "it was told these before"
    world.in_flight.push(1, [second, last])
    assert world.seen(1) == [prompt, first, second, other, ended, last]
    assert (world.in_flight.live, world.in_flight.ended) == (0, 2)
    world.in_flight.push(1, [TokenEvent(1, -1, finish=Finish.ABORT)])
    assert len(world.seen(1)) == 6, "nor is it waited for"


@pytest.mark.fault("C01")
def test_a_sequence_called_off_before_a_death_is_not_waited_for_though_the_dead_engine_had_begun_with_none() -> None:
    world = World()
    world.add(1, count=2, shown=False)
    off = TokenEvent(1, -1, finish=Finish.ABORT)
    world.in_flight.abort(1, 1)
    world.in_flight.push(1, [off])
    world.crash()
    world.in_flight.push(1, [GOING, DONE])
    assert (world.end(1), world.in_flight.live) == ((Finish.LENGTH, ""), 0)
    world.in_flight.push(1, [off])
    assert world.seen(1) == [off, GOING, DONE]


def test_what_nobody_was_shown_breaks_off_at_the_second_death_that_it_is_computed_at_and_not_at_one_that_it_waits_through() -> None:
    world = World()
    for each in (1, 2):
        world.add(each, shown=False)
        world.in_flight.push(each, [GOING])
    world.crash(1, 2)
    world.crash(1)
    assert world.end(1) == (Finish.ERROR, INTERRUPTED)
    assert world.end(2) is None
    world.in_flight.push(2, [GOING, DONE])
    assert world.seen(2) == [GOING, DONE]


def test_what_comes_out_otherwise_the_second_time_breaks_off_and_the_engine_is_told() -> None:
    for otherwise in (TokenEvent(0, 3), TokenEvent(0, GOING.token, logprob=-1.0), DONE):
        world = World()
        world.add(1, shown=False)
        world.in_flight.push(1, [GOING])
        world.crash(1)
        assert world.heard() == [1, 1]
        world.in_flight.push(1, [otherwise])
        assert (world.end(1), world.heard(), world.in_flight.live) == ((Finish.ERROR, INTERRUPTED), [(1, None)], 0)
        world.in_flight.push(1, [GOING, DONE])
        assert world.end(1) == (Finish.ERROR, INTERRUPTED), "what was on its way is nobody's"


def test_what_is_called_off_while_it_is_told_again_ends_so() -> None:
    world = World()
    world.add(1, count=2, shown=False)
    off = TokenEvent(0, -1, finish=Finish.ABORT)
    world.in_flight.push(1, [GOING, TokenEvent(1, 4)])
    world.crash(1)
    world.in_flight.abort(1, 0)
    world.in_flight.push(1, [off, TokenEvent(1, 4), TokenEvent(1, 5, finish=Finish.EOS)])
    assert world.seen(1)[2:] == [off, TokenEvent(1, 5, finish=Finish.EOS)]
    world.add(2, shown=False)
    world.in_flight.push(2, [GOING])
    world.in_flight.abort(2, None)
    world.crash(2)
    assert world.end(2) == (Finish.ABORT, "")


@pytest.mark.fault("C10")
def test_suspects_are_run_again_first_one_at_a_time_and_the_one_that_kills_again_is_refused() -> None:
    world = World()
    for each in (1, 2, 3, 4):
        world.add(each)
    world.heard()
    world.crash(1, 2, 3)
    assert world.heard() == [1], "nothing beside it, whether suspected or not"
    world.in_flight.push(1, [GOING])
    assert world.heard() == [2], "the next one, as soon as this one has a token"
    world.crash(2)
    assert world.end(2) == (Finish.ERROR, REFUSED)
    assert world.end(1) == (Finish.ERROR, INTERRUPTED)
    assert world.heard() == [3]
    world.add(5)
    assert world.heard() == []
    world.in_flight.push(3, [DONE])
    assert world.heard() == [4, 5]
    assert world.in_flight.refused == 1


def test_a_suspect_that_comes_later_waits_for_its_turn_beside_what_is_no_suspect() -> None:
    world = World()
    for each in (1, 2):
        world.add(each, what=each)
    world.in_flight.push(1, [GOING])
    world.in_flight.push(2, [GOING])
    world.crash(1, 2)
    world.heard()
    world.add(3)
    for each in (4, 5):
        world.add(each, what=each - 3)
    world.add(6)
    assert world.heard() == [3, 4, 6]
    world.in_flight.push(4, [GOING])
    assert world.heard() == [5]


@pytest.mark.fault("C10")
def test_what_kills_the_engine_twice_is_refused_whoever_sends_it() -> None:
    world = World()
    world.add(1, what=9, tenant="a")
    world.add(2, tenant="b")
    world.crash(1, 2)
    world.crash(1)
    assert world.end(1) == (Finish.ERROR, REFUSED)
    world.in_flight.push(2, [DONE])
    for request_id, tenant in ((3, "a"), (4, "b"), (5, "")):
        world.add(request_id, what=9, tenant=tenant)
        assert world.end(request_id) == (Finish.ERROR, REFUSED)
    assert world.in_flight.refused == 4


@pytest.mark.fault("C10")
def test_nobody_can_have_a_harmless_request_of_others_refused_by_sending_it_beside_a_deadly_one() -> None:
    world = World()
    for deadly in (11, 12, 13):
        world.add(deadly, tenant="bad")
        world.add(deadly + 10, what=9, tenant="bad")
        world.crash(deadly, deadly + 10)  # together, each time
        for request_id in (deadly + 10, deadly):  # the client leaves before anybody could tell which it was
            world.in_flight.abort(request_id, None)
            if world.end(request_id) is None:
                world.in_flight.push(request_id, [TokenEvent(0, -1, finish=Finish.ABORT)])
    world.add(31, what=9, tenant="bad")
    assert world.end(31) == (Finish.ERROR, REFUSED)
    world.heard()
    world.add(32, what=9, tenant="good")
    assert (world.end(32), world.heard()) == (None, [32])


def test_what_is_refused_stays_refused_for_a_while_under_any_number() -> None:
    world = World()
    world.add(1, what=9)
    world.crash(1)
    world.crash(1)
    assert world.end(1) == (Finish.ERROR, REFUSED)
    world.heard()
    world.add(2, what=9)
    assert world.end(2) == (Finish.ERROR, REFUSED)
    world.now = BLOCKED_S
    world.add(3, what=9)
    assert world.heard() == [3]
    assert world.in_flight.live == 1


@pytest.mark.fault("C10")
def test_a_suspect_that_ends_well_is_cleared() -> None:
    world = World()
    world.add(1, what=9)
    world.crash(1)
    world.in_flight.push(1, [DONE])
    world.heard()
    world.add(2, what=9)
    world.crash(2)
    assert world.end(2) is None
    assert world.heard() == [2, 2]


def test_one_death_over_many_equal_requests_counts_once() -> None:
    world = World()
    for each in (1, 2, 3):
        world.add(each, what=9)
    world.crash(1, 2, 3)
    assert [world.end(each) for each in (1, 2, 3)] == [None] * 3


def test_one_death_over_equal_requests_of_several_tenants_counts_once() -> None:
    """It was said to have failed twice, and was refused to everybody, after a single death."""
    world = World()
    world.add(1, what=1, tenant="one")
    world.add(2, what=1, tenant="other")
    world.crash(1, 2)
    assert (world.end(1), world.end(2)) == (None, None)
    world.crash(1)
    assert world.end(1) == world.end(2) == (Finish.ERROR, REFUSED)


def test_an_abort_is_kept_for_the_next_engine_and_ends_at_once_what_waits_here() -> None:
    world = World()
    world.add(1, count=2)
    world.in_flight.abort(1, 1)
    world.add(2)
    world.in_flight.abort(2, None)
    world.heard()
    world.in_flight.down()
    assert world.end(2) == (Finish.ABORT, "")
    world.add(3)
    world.in_flight.abort(3, None)
    assert world.end(3) == (Finish.ABORT, "")
    world.in_flight.abort(3, None)
    world.in_flight.up()
    assert world.heard() == [1, (1, 1)]


def test_an_aborted_suspect_gives_its_turn_away() -> None:
    world = World()
    for each in (1, 2, 3):
        world.add(each)
    world.crash(1, 2, 3)
    world.heard()
    world.in_flight.abort(2, None)
    assert world.end(2) == (Finish.ABORT, "")
    world.in_flight.push(1, [TokenEvent(0, -1, finish=Finish.ABORT)])
    assert world.heard() == [3]


def test_what_cannot_be_sent_ends_and_holds_nobody_up() -> None:
    world = World()
    world.add(100, what=1)
    world.add(2)
    assert world.end(100) == (Finish.ERROR, UNSENDABLE)
    assert world.heard() == [2]
    assert world.in_flight.live == 1


def test_what_is_known_of_suspects_is_bounded() -> None:
    suspects = Suspects()
    for number in range(2 * MOST_SUSPECTS):
        suspects.blame({(number.to_bytes(4, "big"), ""): BLAME}, 0.0)
    assert len(suspects) == MOST_SUSPECTS
    assert not suspects.suspected(bytes(4), 0.0)
    assert suspects.suspected((2 * MOST_SUSPECTS - 1).to_bytes(4, "big"), 0.0)


def test_deaths_that_come_often_are_spread_out_though_each_start_succeeded_and_those_of_long_ago_are_forgotten() -> None:
    deaths = Deaths()
    pauses = [pause(0, deaths.add(60.0 * minute)) for minute in range(12)]
    assert pauses[: OFTEN - 1] == [0.0] * (OFTEN - 1)
    assert pauses == sorted(pauses)
    assert 0 < pauses[OFTEN - 1] < pauses[-1] == 30.0
    assert pause(0, deaths.add(60.0 * 11 + WINDOW_S)) == 0.0


def test_failed_starts_are_spread_out_up_to_half_a_minute() -> None:
    pauses = [pause(failures) for failures in range(1000)]
    assert pauses[:AT_ONCE] == [0.0] * AT_ONCE
    assert pauses == sorted(pauses)
    assert 0 < pauses[AT_ONCE] < pauses[GIVEN_UP] < pauses[-1] == 30.0


def test_pixels_are_sent_of_requests_that_have_not_ended_and_when_they_are_wanted() -> None:
    told: list[Submit | Pixels | Abort] = []
    in_flight = InFlight(told.append, lambda: 0.0, lambda submit: bytes(submit.prompts[0]))
    in_flight.up()
    stream = Stream(1)
    sequence = PreparedSequence((1,), 5, Sampling(0.0, 1.0, 0), None, echo=False)
    in_flight.take(InFlightRequest(Submit.of(1, (sequence,), 0.0), stream, pixels={b"one": b"pixels"}))
    in_flight.want(1, b"one")
    in_flight.want(1, b"other")
    in_flight.want(2, b"one")
    assert told[1:] == [Pixels(b"one", b"pixels")]
    in_flight.push(1, [DONE])
    in_flight.want(1, b"one")
    assert len(told) == 2


def test_what_a_dead_engine_had_not_begun_goes_on_with_another_and_its_suspects_do_not() -> None:
    dead, other = World(), World()
    for each in (1, 2, 3, 4):
        dead.add(each, count=2, tenant="a")
    dead.in_flight.abort(4, 1)
    assert dead.in_flight.release() == [], "while it is up"
    dead.in_flight.push(1, [GOING])
    dead.in_flight.begin((1, 2))
    dead.in_flight.down()
    released = dead.in_flight.release()
    assert [request.submit.request_id for request in released] == [3, 4]
    assert (dead.in_flight.live, dead.in_flight.live_of("a")) == (2, 2)
    for request in released:
        other.in_flight.take(request)
    assert other.heard() == [3, 4, (4, 1)]
    assert other.in_flight.live_of("a") == 4
    other.in_flight.push(3, [DONE])
    assert dead.streams[3].open == 1, "whoever iterates over it sees nothing of this"
    dead.heard()
    dead.in_flight.up()
    assert dead.heard() == [2]
