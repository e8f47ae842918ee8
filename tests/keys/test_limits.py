"""What keys may use: exactly so much, whatever is asked for at once and whatever the clock on the wall does."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineFailed,
    Loading,
    ModelNotFound,
    OverLimit,
    Overloaded,
    QuintetError,
    TooManyRequests,
)
from quintet.keys.key import Key
from quintet.keys.limits import Book, Lease, Limiter
from quintet.ledger.spending import FINE_DAYS, SLOT, Spending
from quintet.quota import DAY, MINUTE, Limits, Unit


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Notes:
    """What a ledger remembers."""

    spending: Spending = field(default_factory=lambda: Spending(5e9))
    heard: list[tuple[str, int]] = field(default_factory=list)

    def spent(self, key: str) -> list[tuple[int, int]]:
        return self.spending.of(key)

    def elsewhere(self) -> list[tuple[str, int]]:
        heard, self.heard = self.heard, []
        return heard


def made(clock: Clock | None = None, *, parallel: int = 0, book: Book | None = None) -> Limiter:
    return Limiter(parallel, clock or Clock(), lambda: 5e9, book)


def key(**limits: int) -> Key:
    return Key(b"k" * 32, created=4e9, limits=Limits(**limits))


def left(limiter: Limiter, of: Key) -> list[int]:
    return [meter.remaining for meter in limiter.meters(of)]


def test_requests_come_back_evenly_and_a_refusal_says_when() -> None:
    clock = Clock()
    limiter, alice, start = made(clock), key(requests_per_minute=9), clock.now
    for _ in range(9):
        with limiter.open(alice):
            pass
    with pytest.raises(OverLimit) as caught:
        limiter.open(alice)
    assert caught.value.retry_after == pytest.approx(60 / 9)
    assert str(caught.value) == ("Rate limit reached on requests per minute: Limit 9, Used 9, Requested 1. Please try again in 6.67s.")
    clock.now = start + 60 / 9 - 0.1
    with pytest.raises(OverLimit):
        limiter.open(alice)
    clock.now = start + 60 / 9  # where a last bit is missing
    limiter.open(alice)


@pytest.mark.parametrize(
    ("limits", "says"),
    [({"tokens_per_day": 50}, "in 1728s."), ({"tokens_per_day": 2**53}, "in 0.001s."), ({"tokens_per_minute": 7}, "in 8.57s.")],
)
def test_a_time_is_told_in_digits_that_a_client_can_read(limits: dict[str, int], says: str) -> None:
    limiter, alice = made(Clock()), key(**limits)
    with limiter.open(alice) as lease:
        lease.settle(max(limits.values()))
    with pytest.raises(OverLimit) as caught:
        limiter.open(alice)
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize("refusal", [TooManyRequests("room"), Overloaded("queue"), Loading("model"), EngineFailed("engine")])
def test_who_is_turned_away_before_its_work_begins_has_used_no_request(refusal: QuintetError) -> None:
    limiter, alice = made(), key(requests_per_day=10, tokens_per_minute=100)
    for _ in range(20):
        with pytest.raises(QuintetError), limiter.open(alice) as lease:
            lease.count(4)
            assert left(limiter, alice) == [5, 100], "held meanwhile"
            raise refusal
        with pytest.raises(OverLimit), limiter.open(alice) as lease:
            lease.reserve(101)
    assert left(limiter, alice) == [10, 100]


@pytest.mark.parametrize("refusal", [BadRequest("n", "must be a number"), ModelNotFound("none"), DeadlineExceeded("late"), None])
def test_what_is_refused_for_what_it_asks_has_used_its_requests(refusal: QuintetError | None) -> None:
    limiter, alice = made(), key(requests_per_day=10)
    with contextlib.suppress(QuintetError), limiter.open(alice) as lease:
        lease.count(4)
        if refusal:
            raise refusal
    assert left(limiter, alice) == [5]


def test_a_completion_uses_its_requests_when_its_work_begins_and_they_drain_from_then_on_whatever_becomes_of_it() -> None:
    clock = Clock()
    limiter, alice = made(clock), key(requests_per_minute=10)
    with pytest.raises(EngineFailed), limiter.open(alice) as lease:
        clock.now += 30
        assert left(limiter, alice) == [9], "what is held does not drain"
        lease.begin()
        clock.now += 3
        assert [meter.reset for meter in limiter.meters(alice)] == [pytest.approx(3)]
        raise EngineFailed("engine")
    assert [meter.reset for meter in limiter.meters(alice)] == [pytest.approx(3)]


def test_tokens_are_held_while_a_completion_runs_and_settled_with_what_it_took() -> None:
    clock = Clock()
    limiter, alice = made(clock), key(tokens_per_minute=100)
    lease = limiter.open(alice)
    lease.reserve(80)
    clock.now += 30  # what is held does not drain: it may still all be used
    assert left(limiter, alice) == [20]
    with pytest.raises(OverLimit):
        limiter.open(alice).reserve(21)
    lease.settle(10)
    assert left(limiter, alice) == [90]
    lease.__exit__(None, None, None)
    assert left(limiter, alice) == [90]


def test_what_fails_gives_back_what_it_held_and_its_place() -> None:
    limiter, alice = made(), key(tokens_per_minute=100, parallel=1)
    with pytest.raises(ZeroDivisionError), limiter.open(alice) as lease:
        lease.reserve(100)
        lease.leave()  # and again at its end, which frees no second place
        raise ZeroDivisionError
    with limiter.open(alice) as lease, pytest.raises(TooManyRequests, match="At most 1 completion at once"):
        limiter.open(alice)
    limiter.open(alice).reserve(100)


@pytest.mark.parametrize(("tokens", "hopeless"), [(100, False), (101, True)])
def test_what_the_limit_never_allows_is_told_as_such(tokens: int, hopeless: bool) -> None:
    limiter, alice = made(), key(tokens_per_minute=100)
    limiter.open(alice).settle(50)
    with pytest.raises(OverLimit) as caught:
        limiter.open(alice).reserve(tokens)
    assert (caught.value.wait is None) is hopeless


def test_a_budget_never_comes_back_and_whoever_waits_for_what_is_held_may_ask_again() -> None:
    clock = Clock()
    limiter, alice = made(clock), key(budget=100)
    lease = limiter.open(alice)
    lease.reserve(60)
    with pytest.raises(OverLimit) as caught:
        limiter.open(alice).reserve(41)
    assert caught.value.wait == 1
    with pytest.raises(OverLimit) as caught:
        limiter.open(alice).reserve(100)
    assert caught.value.wait == 1, "all of it, if nothing of what is held is used"
    lease.settle(60)
    clock.now += 1e9
    with pytest.raises(OverLimit, match="budget does not suffice") as caught:
        limiter.open(alice).reserve(41)
    assert caught.value.wait is None


@pytest.mark.fault("F08")
def test_a_restart_forgets_neither_the_day_nor_the_budget() -> None:
    notes, alice = Notes(), key(requests_per_day=5, tokens_per_minute=1000, tokens_per_day=100, budget=110)
    notes.spending.add(alice.id, 5e9 - DAY, 30)
    notes.spending.add(alice.id, 5e9, 70)
    assert left(made(book=notes), alice) == [5, 1000, 30, 10]


@pytest.mark.fault("F08")
def test_what_was_spent_beyond_a_budget_is_known_after_a_restart_when_more_is_granted() -> None:
    notes, alice = Notes(), key(budget=100)
    notes.spending.add(alice.id, 5e9, 150)
    limiter = made(book=notes)
    assert left(limiter, alice) == [0], "never told as less than nothing"
    assert left(limiter, replace(alice, limits=Limits(budget=200))) == [50]


def test_a_restart_forgets_nothing_of_a_key_that_was_made_by_a_clock_that_is_ahead() -> None:
    notes, alice = Notes(), replace(key(tokens_per_day=100, budget=110), created=5e9 + 2 * DAY)
    notes.spending.add(alice.id, 5e9, 70)
    assert left(made(book=notes), alice) == [30, 40]


def test_after_a_restart_as_much_of_the_day_has_come_back_as_without_one() -> None:
    """60 tokens 23 hours ago, 30 now: of a limit of 100 a day no token of the first is missing any more."""
    notes, alice = Notes(), key(tokens_per_day=100)
    notes.spending.add(alice.id, 5e9 - 23 * 3600, 60)
    notes.spending.add(alice.id, 5e9, 30)
    assert left(made(book=notes), alice) == [70]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 100_000), st.floats(0, DAY))
def test_a_bucket_that_is_made_again_is_where_the_one_that_lived_is_to_a_slots_drain_and_never_allows_more(
    data: st.DataObject, limit: int, phase: float
) -> None:
    """Whatever was spent when: at once, at the limit's rate, in bursts, with days of nothing. What is older than the slots is known
    by days, and then only the second half holds."""
    clock, began = Clock(0.0), 5e9 + phase
    spending = Spending(began)
    notes, alice = Notes(spending), key(tokens_per_day=limit)
    lived = Limiter(0, clock, lambda: began + clock.now, None)
    for _ in range(data.draw(st.integers(0, 60))):
        clock.now += data.draw(st.sampled_from([0.0, 1.0, SLOT / 2, SLOT, 3600.0, DAY / 2, 2.0 * DAY]))
        allowed = left(lived, alice)[0]
        tokens = data.draw(st.sampled_from([allowed, allowed // 2, min(allowed, 1 + limit // 24)]))
        if tokens:
            lived.open(alice).settle(tokens)
            spending.add(alice.id, began + clock.now, tokens)
    (before,) = lived.meters(alice)
    (after,) = Limiter(0, clock, lambda: began + clock.now, notes).meters(alice)
    assert after.reset >= before.reset - 1e-3
    if clock.now <= (FINE_DAYS - 2) * DAY:
        assert after.reset <= before.reset + SLOT + 1e-3


def test_what_is_spent_in_another_process_counts_for_days_and_budgets_and_once() -> None:
    notes, alice = Notes(), key(tokens_per_minute=1000, tokens_per_day=100, budget=200)
    limiter = made(book=notes)
    notes.heard = [(alice.id, 20)]
    notes.spending.add(alice.id, 5e9, 20)
    assert left(limiter, alice) == [1000, 80, 180], "made after it was heard of: the book has it"
    notes.heard = [(alice.id, 30), ("another", 7), (alice.id, 1)]
    for _ in range(2):
        assert left(limiter, alice) == [1000, 49, 149]


def test_what_was_spent_elsewhere_in_days_is_never_more_than_the_limit_of_one() -> None:
    """This process was asked for nothing meanwhile, and hears all of it at once."""
    notes, alice, clock = Notes(), key(tokens_per_day=100, budget=2000), Clock()
    limiter = made(clock, book=notes)
    assert left(limiter, alice) == [100, 2000]
    notes.heard = [(alice.id, 90)] * 5
    assert left(limiter, alice) == [0, 1550]
    assert limiter.meters(alice)[0].reset <= DAY
    clock.now += DAY / 2
    assert left(limiter, alice) == [50, 1550]


def test_a_changed_limit_counts_at_once_and_what_was_used_stays_used() -> None:
    clock = Clock()
    limiter, alice = made(clock), key(requests_per_minute=10, tokens_per_minute=100)
    lease = limiter.open(alice)
    lease.reserve(40)
    for _ in range(5):
        limiter.open(alice)
    assert left(limiter, alice) == [4, 60]
    lower = replace(alice, limits=Limits(requests_per_minute=7, tokens_per_minute=50, requests_per_day=9))
    assert left(limiter, lower) == [1, 9, 10]
    lease.settle(45)
    assert left(limiter, lower) == [1, 9, 5]
    assert left(limiter, replace(alice, limits=Limits())) == []


def test_what_drained_before_a_limit_was_changed_did_so_at_the_rate_of_then() -> None:
    clock = Clock()
    limiter, alice = made(clock), key(tokens_per_minute=60)
    limiter.open(alice).settle(60)
    clock.now += MINUTE / 2
    lower = replace(alice, limits=Limits(tokens_per_minute=40))
    assert left(limiter, lower) == [10], "30 of the 60 were back, and not 20"
    assert left(limiter, alice) == [30]


@pytest.mark.fault("F08")
def test_tokens_are_counted_once_however_often_they_are_settled() -> None:
    """When the end is handed over, when the work is over, and for an error that is told after that."""
    limiter, alice = made(), key(budget=100)
    with limiter.open(alice) as lease:
        lease.reserve(50)
        for tokens, rest in ((7, 93), (7, 93), (9, 91), (9, 91), (9, 91)):
            lease.settle(tokens)
            assert left(limiter, alice) == [rest]
    assert left(limiter, alice) == [91]


@pytest.mark.fault("D09")
def test_a_jump_of_the_wall_clock_moves_no_window() -> None:
    clock, wall = Clock(), Clock(5e9)
    limiter, alice = Limiter(0, clock, wall, None), key(requests_per_minute=2, requests_per_day=2)
    for jump in (3600.0, -7200.0):
        limiter.open(alice)
        wall.now += jump
    assert left(limiter, alice) == [0, 0]
    assert [round(meter.reset) for meter in limiter.meters(alice)] == [MINUTE, DAY]


@pytest.mark.fault("F08")
@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(1, 400), st.integers(0, 5))
def test_no_order_of_events_lets_more_through_than_the_limits(data: st.DataObject, requests: int, tokens: int, parallel: int) -> None:
    """Against a recount: in any minute at most two limits' worth, one that was saved up and one that drained; what is held counts too."""
    clock = Clock()
    limiter, alice = made(clock), key(requests_per_minute=requests, tokens_per_minute=tokens, parallel=parallel)
    running: list[tuple[Lease, int]] = []
    admitted: list[float] = []
    used: list[tuple[float, int]] = []
    for _ in range(data.draw(st.integers(1, 60))):
        clock.now += data.draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 7.0, 61.0]))
        ends = data.draw(st.booleans())
        if running and ends:
            lease, most = running.pop(data.draw(st.integers(0, len(running) - 1)))
            took = data.draw(st.integers(0, most))
            lease.settle(took)
            lease.__exit__(None, None, None)
            used.append((clock.now, took))
            continue
        try:
            lease = limiter.open(alice)
        except TooManyRequests:
            continue
        admitted.append(clock.now)
        most = data.draw(st.integers(1, 200))
        try:
            lease.reserve(most)
        except OverLimit:
            lease.__exit__(None, None, None)
            continue
        lease.begin()
        running.append((lease, most))
        assert not parallel or len(running) <= parallel
        lately = sum(amount for at, amount in used if at > clock.now - MINUTE)
        assert sum(most for _, most in running) <= tokens
        assert sum(most for _, most in running) + lately <= 2 * tokens
    for start in admitted:
        assert sum(start <= at < start + MINUTE for at in admitted) <= 2 * requests


@pytest.mark.fault("F08")
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90), st.booleans()), max_size=40))
def test_the_balance_is_exact_when_all_have_ended(asked: list[tuple[int, int, bool]]) -> None:
    """Each reserves, some go on beside others, some fail; nothing drains, as no time passes."""
    limiter, alice, used = made(), key(tokens_per_day=300, budget=200), 0
    running: list[tuple[Lease, int]] = []
    for most, took, ends in asked:
        lease = limiter.open(alice) if min(left(limiter, alice)) else None
        if lease is None:
            break
        try:
            lease.reserve(most)
            running.append((lease, min(most, took)))
        except OverLimit:
            lease.__exit__(None, None, None)
        if ends and running:
            first, amount = running.pop(0)
            first.settle(amount)
            first.__exit__(None, None, None)
            used += amount
    for lease, _ in running:
        lease.__exit__(None, None, None)
    assert left(limiter, alice) == [300 - used, 200 - used]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.integers(1, 300))
def test_of_any_number_at_once_as_many_get_in_as_there_is_credit_for(credit: int, asking: int) -> None:
    requests, tokens = (key(requests_per_minute=credit), key(requests_per_day=credit)), 7 * credit
    for limits in (*requests, key(tokens_per_minute=tokens), key(tokens_per_day=tokens), key(budget=tokens)):
        limiter, admitted = made(), 0
        for _ in range(asking):
            try:
                limiter.open(limits).reserve(7)
                admitted += 1
            except OverLimit as over:
                assert over.meter.unit in Unit
        assert admitted == min(credit, asking)


def test_a_key_without_limits_has_none_and_the_servers_own_holds_for_it() -> None:
    limiter, anybody = made(parallel=2), Key(b"")
    leases = [limiter.open(anybody) for _ in range(2)]
    with pytest.raises(TooManyRequests):
        limiter.open(anybody)
    leases[0].__exit__(None, None, None)
    limiter.open(anybody).reserve(10**9)
    assert limiter.meters(anybody) == []
    assert limiter.open(key(parallel=5))
