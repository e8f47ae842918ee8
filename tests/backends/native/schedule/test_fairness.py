"""One tenant's flood of requests does not starve another's single request, whatever either asks for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.native.schedule.harness import Simulation, assert_as_alone, prepared

from quintet.backends.native.core.loader import PAGE
from quintet.inputs.sequence import PreparedSequence

TEXT = bytes(range(32, 127)) * 4


@dataclass
class Flood:
    """Requests of one tenant: how many, and their shape."""

    requests: int
    samples: int
    prompt: int
    max_tokens: int

    def sequences(self, number: int) -> list[PreparedSequence]:
        prompt = TEXT[number % 90 :][: self.prompt]
        return [prepared(prompt, self.max_tokens, temperature=1.0, seed=seed) for seed in range(self.samples)]


floods = st.builds(
    Flood, st.integers(1, 60), st.sampled_from([1, 1, 3, 12]), st.sampled_from([1, 5, 40, 200]), st.sampled_from([1, 3, 50, 400])
)


def prefill_steps(simulation: Simulation, tokens: int) -> int:
    """Most steps in which prompts of so many tokens are computed: the oldest gets at least half of what decodes leave over."""
    return -(-tokens // max(1, (simulation.config.batch_tokens - simulation.config.max_running) // 2))


@pytest.mark.fault("B07", "B21")
@settings(max_examples=20, deadline=None)
@given(
    floods,
    st.integers(2, 12),
    st.sampled_from([24, 64, 200]),
    st.integers(0, 40),
    st.sampled_from([1, 30, 200]),
    st.sampled_from([64, 4096]),
)
def test_a_single_request_gets_its_first_token_within_steps_that_do_not_depend_on_the_flood(
    flood: Flood, max_running: int, batch_tokens: int, before: int, length: int, pages: int
) -> None:
    simulation = Simulation(max_running=max_running, batch_tokens=batch_tokens, pages=pages, max_waiting=100_000)
    for number in range(flood.requests):
        simulation.add(number, *flood.sequences(number), tenant="flood")
    for _ in range(before):
        if simulation.scheduler.live:
            simulation.step()
    one = prepared(TEXT[45:][:length], 5)
    simulation.add(10_000, one, tenant="single")
    # Those in the batch, at most, are preempted one by one for its pages; then the prompts that are older are computed first.
    bound = 3 + max_running + prefill_steps(simulation, max_running * (flood.prompt + PAGE + flood.max_tokens) + length)
    if pages == 64:
        bound += flood.max_tokens  # the flood's last sequence in the batch keeps its pages until it ends
    steps = 0
    while not simulation.events[10_000, 0]:
        simulation.step()
        steps += 1
        assert steps <= bound
    for number in range(flood.requests):
        simulation.abort(number)  # what else becomes of it is not the question here, and takes long
    simulation.finish()
    assert_as_alone(simulation.events[10_000, 0], one)


@pytest.mark.fault("B21")
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(2, 8))
def test_tenants_get_equal_shares_of_the_batch_however_much_each_asks_for(requests: list[int], max_running: int) -> None:
    """Counted over the time in which all of them have something waiting: nobody is ahead by more than a batch."""
    simulation = Simulation(max_running=max_running, max_waiting=100_000)
    number = 0
    for tenant, count in enumerate(requests):
        for _ in range(count):
            simulation.add(number, prepared(TEXT[number % 90 :][:5], 4), tenant=f"t{tenant}")
            number += 1
    owners = [tenant for tenant, count in enumerate(requests) for _ in range(count)]
    while simulation.scheduler.live:
        simulation.step()
        done = [sum(bool(simulation.events[at, 0]) for at in range(number) if owners[at] == tenant) for tenant in range(len(requests))]
        if any(count == total for count, total in zip(done, requests, strict=True)):
            return
        assert max(done) - min(done) <= max_running


def test_a_tenant_with_everything_in_the_batch_makes_way_for_another_and_its_answers_stay_as_they_are() -> None:
    simulation = Simulation(max_running=4)
    sequences = [prepared(TEXT[at:][:20], 100, temperature=1.0, seed=at) for at in range(8)]
    for number, sequence in enumerate(sequences):
        simulation.add(number, sequence, tenant="flood")
    for _ in range(10):
        simulation.step()
    simulation.add(100, prepared(b"single", 1), tenant="single")
    for _ in range(4):
        simulation.step()
    assert simulation.events[100, 0], "none of the flood has ended by now"
    assert simulation.scheduler.preempted == 1
    simulation.finish()
    for number, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[number, 0], sequence)


def test_within_one_tenant_nobody_is_preempted_for_a_place() -> None:
    simulation = Simulation(max_running=2)
    for number in range(6):
        simulation.add(number, prepared(TEXT[number:][:20], 20), tenant="one")
    simulation.finish()
    assert simulation.scheduler.preempted == 0
