"""Work in the background: nobody else's steps have it, nobody waits for more than the step that runs, and it comes to its end unchanged."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.native.schedule.harness import Simulation, assert_as_alone, prepared

from quintet.backends.native.schedule.step_budget import LEAST
from quintet.inputs.sequence import PreparedSequence

TEXT = bytes(range(32, 127)) * 4
BACKGROUND = "alice/background"

requests = st.tuples(st.integers(0, 30), st.sampled_from([1, 20, 130]), st.sampled_from([1, 4, 20]), st.sampled_from([1, 1, 3]))
"""When one comes, the length of its prompt, its most tokens, and its samples."""


def sequences(number: int, prompt: int, tokens: int, samples: int) -> list[PreparedSequence]:
    return [prepared(TEXT[number % 90 :][:prompt], tokens, temperature=1.0, seed=seed) for seed in range(samples)]


def background_in(simulation: Simulation) -> list[bool]:
    return [segment.seq.group.background for segment in simulation.last_plan.segments]


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8), st.integers(1, 40), st.sampled_from([2, 8, 16]), st.sampled_from([1, 2]))
def test_whoever_comes_has_each_token_in_the_very_step_in_which_it_has_it_without(
    asked: list[tuple[int, int, int, int]], lines: int, max_running: int, tenants: int
) -> None:
    """The same requests at the same steps, with lines of batches all the time and without any."""
    with_lines, without = (Simulation(max_running=max_running, max_waiting=10_000) for _ in range(2))
    for line in range(lines):
        with_lines.add(1000 + line, *sequences(line, 50, 30, 1), salt=b"lines", tenant=f"{line % tenants}{BACKGROUND}", weight=0)
    came: list[int] = []
    for step in range(200):
        for number, (at, prompt, tokens, samples) in enumerate(asked):
            if at == step:
                came.append(number)
                for simulation in (with_lines, without):
                    simulation.add(number, *sequences(number, prompt, tokens, samples), tenant=f"key{number % 3}")
        if without.scheduler.live:
            without.step()
            with_lines.step()
            assert not any(background_in(with_lines))
            seen = [(segment.seq.request_id, segment.seq.index, segment.tokens) for segment in with_lines.last_plan.segments]
            assert seen == [(segment.seq.request_id, segment.seq.index, segment.tokens) for segment in without.last_plan.segments]
        elif with_lines.scheduler.live:
            with_lines.step()
        for number in came:
            for index in range(asked[number][3]):
                assert with_lines.events[number, index] == without.events[number, index]
    with_lines.finish()
    for line in range(lines):
        assert_as_alone(with_lines.events[1000 + line, 0], sequences(line, 50, 30, 1)[0])


def test_with_nobody_else_the_tenants_of_the_background_take_turns() -> None:
    simulation = Simulation(max_running=2)
    for number in range(8):
        tenant = "bob/background" if number >= 6 else BACKGROUND
        simulation.add(number, *sequences(number, 5, 4, 1), tenant=tenant, weight=0)
    steps: dict[int, float] = {}
    while simulation.scheduler.live:
        simulation.step()
        steps |= {number: simulation.now for number in range(8) if simulation.events[number, 0] and number not in steps}
    assert steps[6] == min(steps.values()) and steps[7] <= sorted(steps.values())[4]


def test_a_background_that_only_waits_changes_nothing_for_those_who_run() -> None:
    """Neither is a place taken from them for it, nor a draft left out because somebody waits."""
    simulation = Simulation(max_running=2)
    for number in range(2):
        simulation.add(number, *sequences(number, 5, 40, 1), tenant="key")
    simulation.step()
    for number in range(2, 6):
        simulation.add(number, *sequences(number, 5, 4, 1), tenant=f"{number}{BACKGROUND}", weight=0)
    while any(not events or events[-1].finish is None for events in (simulation.events[0, 0], simulation.events[1, 0])):
        simulation.step()
        assert not any(background_in(simulation))
    assert simulation.scheduler.preempted == 0
    simulation.finish()


def test_its_own_steps_are_short_once_it_is_known_what_that_is() -> None:
    simulation = Simulation(batch_tokens=256, max_running=4)
    for number in range(4):
        simulation.add(number, *sequences(number, 300, 30, 1), tenant=BACKGROUND, weight=0)
    simulation.step()
    simulation.scheduler.learn(256, 0.256)
    while simulation.scheduler.live:
        simulation.step()
        assert simulation.last_plan.tokens <= 4 + LEAST
        simulation.scheduler.learn(simulation.last_plan.tokens, simulation.last_plan.tokens / 1000)
    for number in (8, 9):  # of whose steps nothing is known yet: the background's tell nothing of them
        simulation.add(number, *sequences(number, 300, 30, 1), tenant="key")
        simulation.step()
        simulation.step()
        assert simulation.last_plan.tokens > 4 + LEAST
