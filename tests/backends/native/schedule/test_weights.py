"""Tenants of greater weight get more turns and wait less, and still keep nobody waiting for long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.native.schedule.harness import Simulation, prepared

from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.backends.native.schedule.waiting import WaitingQueue
from quintet.request import Sampling

TEXT = bytes(range(32, 127)) * 4
weights = st.lists(st.integers(1, 10), min_size=2, max_size=6)


def waiting(tenant: str, weight: int, request: int) -> Sequence:
    return Sequence(request, 0, Group((1,), False, None, tenant=tenant, weight=weight), 1, Sampling(0.0, 1.0, 0), None)


def taken(queue: WaitingQueue, turns: int) -> list[str]:
    return [queue.pop().group.tenant for _ in range(turns)]


def test_with_equal_weights_it_is_a_round_robin_in_the_order_of_arrival() -> None:
    queue = WaitingQueue()
    for request in range(9):
        queue.push(waiting("abc"[request // 3], 5, request))
    assert "".join(taken(queue, 9)) == "abcabcabc"


def test_a_heavier_tenant_comes_sooner_and_oftener() -> None:
    queue = WaitingQueue()
    for request in range(8):
        queue.push(waiting("light", 1, request))
    for request in range(8, 16):
        queue.push(waiting("heavy", 3, request))
    assert taken(queue, 8) == ["heavy", "heavy", "light", "heavy", "heavy", "heavy", "light", "heavy"]


def test_a_turn_before_the_others_puts_nobody_ahead_of_those_who_waited() -> None:
    """The clock does not go back when those have theirs: else whoever comes next would be before who was favoured."""
    queue = WaitingQueue()
    for request in range(2):
        queue.push(waiting("light", 1, request))
        queue.push(waiting("heavy", 2, 2 + request))
    queue.favour("light")
    assert taken(queue, 2) == ["light", "heavy"]
    queue.push(waiting("new", 1, 9))
    assert list(queue.tenants) == ["heavy", "light", "new"]


def test_who_is_favoured_in_the_background_is_not_before_others() -> None:
    queue = WaitingQueue()
    for tenant in ("first", "second"):
        queue.push(waiting(tenant, 0, len(tenant)))
    queue.favour("second")
    queue.push(waiting("light", 1, 9))
    assert taken(queue, 3) == ["light", "first", "second"]


@settings(max_examples=200, deadline=None)
@given(weights, st.integers(1, 100))
def test_turns_are_in_proportion_to_weights_however_many_wait(shares: list[int], turns: int) -> None:
    """Nobody is ahead of its share, or behind it, by more than its own turn and another's."""
    queue = WaitingQueue()
    for tenant, weight in enumerate(shares):
        for request in range(turns):
            queue.push(waiting(str(tenant), weight, tenant * turns + request))
    done = dict.fromkeys(map(str, range(len(shares))), 0)
    for turn in taken(queue, turns):
        done[turn] += 1
        for one, weight in enumerate(shares):
            for other, its in enumerate(shares):
                assert done[str(one)] / weight - done[str(other)] / its <= 1 / weight + 1 / its + 1e-9


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=8), st.integers(0, 30))
def test_heavier_tenants_that_keep_coming_pass_a_waiting_one_only_as_often_as_their_weights_have_it(shares: list[int], before: int) -> None:
    """Each leaves with its turn and comes again at once, as clients do that ask one thing after the other."""
    queue = WaitingQueue()
    for number, weight in enumerate(shares):
        queue.push(waiting(f"heavy-{number}", weight, number))
    request = len(shares)

    def turn() -> str:
        nonlocal request
        tenant = queue.pop().group.tenant
        if tenant != "light":
            queue.push(waiting(tenant, shares[int(tenant.removeprefix("heavy-"))], request))
            request += 1
        return tenant

    for _ in range(before):
        turn()
    queue.push(waiting("light", 1, 10**6))
    passed = 0
    while turn() != "light":
        passed += 1
        assert passed <= sum(shares) + len(shares)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4))
def test_of_the_batch_each_gets_its_share(one: int, other: int) -> None:
    """Counted while both have something waiting; ahead by more than a batch is nobody. In a batch of few places each has one, whatever its
    weight: nobody with nothing there waits for a second place of another's.
    """
    max_running = one + other
    simulation = Simulation(max_running=max_running, max_waiting=100_000)
    shares, each = (one, other), 60
    for tenant, weight in enumerate(shares):
        for at in range(each):
            simulation.add(tenant * each + at, prepared(TEXT[at:][:5], 3), tenant=f"t{tenant}", weight=weight)
    while True:
        simulation.step()
        done = [sum(bool(simulation.events[tenant * each + at, 0]) for at in range(each)) for tenant in range(2)]
        if max(done) == each:
            return
        assert abs(done[0] / one - done[1] / other) <= max_running


def test_a_newcomer_takes_the_place_of_the_one_with_most_for_its_weight() -> None:
    simulation = Simulation(max_running=6)
    for number in range(4):
        simulation.add(number, prepared(TEXT[number:][:5], 100), tenant="heavy", weight=4)
    for number in range(4, 6):
        simulation.add(number, prepared(TEXT[number:][:5], 100), tenant="light")
    for _ in range(4):
        simulation.step()
    simulation.add(6, prepared(b"single", 1), tenant="single")
    for _ in range(4):
        simulation.step()
    assert simulation.events[6, 0]
    assert simulation.scheduler.preempted == 1
    assert not any(event.finish for number in range(4) for event in simulation.events[number, 0])
    assert len(simulation.events[5, 0]) < len(simulation.events[3, 0]), "two of weight 1 is more than four of weight 4"


def test_who_is_favoured_again_and_again_pays_for_each_of_its_turns() -> None:
    """A tenant whose requests end at once, of greater weight, beside one that holds its turn but finds no place."""
    queue = WaitingQueue()
    for number, tenant in enumerate(("busy", "other")):
        queue.push(waiting(tenant, 1, number))
    queue.favour("other")
    queue.pop()
    for number, (tenant, weight) in enumerate((("patient", 1), ("quick", 2)), 10):
        queue.push(waiting(tenant, weight, number))
    places = 0
    while True:
        queue.favour(next(tenant for tenant in queue.tenants if tenant != "busy"))
        if queue.pop().group.tenant == "patient":
            break
        places += 1
        assert places <= 2
        queue.push(waiting("quick", 2, 100 + places))
