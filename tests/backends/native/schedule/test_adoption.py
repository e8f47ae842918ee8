"""Prompts that begin alike and arrive together are computed once, and nobody can tell from the output."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.native.schedule.harness import Simulation, assert_as_alone, prepared

from quintet.backends.native.core.loader import PAGE

TEXT = bytes(range(32, 127)) * 6


@settings(max_examples=60, deadline=None)
@given(
    shared=st.integers(0, 20 * PAGE),
    tails=st.lists(st.integers(1, 40), min_size=2, max_size=8),
    scored=st.booleans(),
    batch=st.sampled_from([17, 48, 100, 256]),
)
def test_a_common_beginning_is_computed_once_however_it_is_cut(shared: int, tails: list[int], scored: bool, batch: int) -> None:
    simulation = Simulation(pages=1 << 10, batch_tokens=batch, max_running=16)
    prompts = [TEXT[:shared] + bytes([number]) + TEXT[:tail] for number, tail in enumerate(tails)]
    sequences = [prepared(prompt, 3, echo=scored, logprobs=2 if scored else None) for prompt in prompts]
    computed = 0
    for number, sequence in enumerate(sequences):
        simulation.add(number, sequence)
    while simulation.scheduler.live:
        simulation.step()
        computed += simulation.last_plan.prefilled
    full = shared // PAGE * PAGE
    once = full + sum(len(prompt) - full for prompt in prompts)
    assert computed <= once + PAGE * len(prompts)
    whole, found = sum(map(len, prompts)), sum(simulation.events[number, 0][-1].cached_tokens for number in range(len(prompts)))
    assert (simulation.scheduler.queried, simulation.scheduler.found) == (whole, found) == (whole, whole - computed)
    for number, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[number, 0], sequence)


def test_what_is_computed_again_is_not_counted_as_found_though_another_computes_it() -> None:
    simulation, one = Simulation(batch_tokens=2 * PAGE), prepared(TEXT[:20], 50, ignore_eos=True)
    simulation.add(0, one)
    simulation.add(1, one)
    while min(len(simulation.events[request, 0]) for request in (0, 1)) < 40:
        simulation.step()
    found, running = simulation.scheduler.found, [*simulation.scheduler._queues.running]
    for seq in running:
        simulation.scheduler._queues.preempt(seq)
    simulation.pool.shed()
    again, computed = sum(seq.length for seq in running), 0
    while simulation.scheduler.live:
        simulation.step()
        computed += simulation.last_plan.prefilled
    assert computed == again - 3 * PAGE, "one took pages of the other's over"
    assert simulation.scheduler.found == found == PAGE
    assert [simulation.events[request, 0][-1].cached_tokens for request in (0, 1)] == [0, PAGE]
