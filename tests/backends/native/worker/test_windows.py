"""A model whose layers all have windows: sequences hold a window's pages and a step's, and what they let go of is found again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.native.schedule.harness import prepared
from tests.backends.native.worker.harness import Simulation, assert_as_alone

from quintet.backends.native.core.loader import PAGE

WINDOW, STEP = 2 * PAGE + 5, PAGE
MOST = -(-(WINDOW + STEP) // PAGE) + 1
TEXT = bytes(range(32, 127)) * 8


def simulation(**options: int) -> Simulation:
    return Simulation(**{"batch_tokens": STEP, "window": WINDOW, "pages": MOST + 1, **options})


def used(simulation: Simulation) -> int:
    return simulation.pool.state.used


@pytest.mark.parametrize("echo", [False, True])
def test_a_long_sequence_holds_its_window_and_a_step(echo: bool) -> None:
    """Its prompt and its answer are each five times what all pages hold."""
    alone, sequence = simulation(), prepared(TEXT[:500], 400, temperature=1.0, logprobs=1, echo=echo, ignore_eos=True)
    alone.add(0, sequence)
    most = 0
    while alone.scheduler.live:
        alone.step()
        most = max(most, used(alone))
    assert most <= MOST
    assert_as_alone(alone.events[0, 0], sequence, window=WINDOW)


@pytest.mark.parametrize("echo", [False, True])
def test_one_whose_beginning_is_cached_takes_no_more_pages_for_that(echo: bool) -> None:
    """Where its prompt is scored it has to wait for the rows of what it could take."""
    cache = simulation(pages=64)
    scored: dict[str, Any] = {"echo": echo, "logprobs": 0 if echo else None}
    cache.add(0, prepared(TEXT[:100], 1, **scored))
    cache.finish()
    cache.add(1, prepared(TEXT[:100] + TEXT[7:400], 1, **scored))
    most = 0
    while cache.scheduler.live:
        cache.step()
        most = max(most, used(cache))
    assert cache.events[1, 0][-1].cached_tokens == 96
    assert most <= MOST


@pytest.mark.parametrize(("pages", "together"), [(MOST + 3, False), (MOST + 4, True)])
def test_one_whose_beginning_is_cached_waits_for_as_many_pages_as_it_may_hold(pages: int, together: bool) -> None:
    """Three are another's, which is left one for its next token; of the cached ones only a window's are taken."""
    cache = simulation(pages=pages)
    cache.add(0, prepared(TEXT[:161], 1))
    cache.finish()
    cache.add(1, prepared(b"x" * 60, 4, ignore_eos=True))
    while not cache.events[1, 0]:
        cache.step()
    cache.add(2, prepared(TEXT[:160] + TEXT[7:200], 1))
    cache.step()
    assert cache.scheduler.running == 1 + together
    cache.finish()
    assert cache.events[2, 0][-1].cached_tokens == 160


def test_decoding_holds_no_more_than_the_window() -> None:
    running = simulation(pages=64)
    running.add(0, prepared(TEXT[:200], 300, ignore_eos=True))
    while len(running.events[0, 0]) < 40:
        running.step()
    for _ in range(100):
        running.step()
        assert used(running) <= -(-WINDOW // PAGE) + 1


def test_several_that_each_need_most_of_the_pages_all_end() -> None:
    """They take pages as they go on, so one may have to wait for another's, or be computed again."""
    crowd = simulation(pages=2 * MOST - 1)
    sequences = [prepared(TEXT[at : at + 300], 60, temperature=1.0, seed=at, ignore_eos=True) for at in range(6)]
    crowd.add(0, *sequences)
    crowd.finish()
    for index, sequence in enumerate(sequences):
        assert_as_alone(crowd.events[0, index], sequence, window=WINDOW)
    assert crowd.pool.available == crowd.pool.total


def test_the_oldest_goes_on_with_its_prompt_though_others_want_the_pages_that_it_lets_go_of() -> None:
    """Each step is checked to have a part of it."""
    crowd = simulation(pages=MOST + 7)
    crowd.add(0, prepared(TEXT[:500], 1))
    crowd.step()
    for request in range(1, 4):
        crowd.add(request, prepared(TEXT[request:][:5], 300, ignore_eos=True))
    while not crowd.events[0, 0]:
        crowd.step()
    assert crowd.scheduler.preempted


def test_a_prompt_whose_last_window_is_cached_is_not_computed_again() -> None:
    """Its beginning was evicted, as the cache is smaller than the prompt."""
    cache = simulation(pages=MOST + 3)
    for request in range(2):
        cache.add(request, prepared(TEXT[:501], 1))
        cache.finish()
    assert cache.events[1, 0][-1].cached_tokens == 496


def test_a_page_that_was_let_go_is_found_by_another_prompt() -> None:
    cache = simulation(pages=64)
    cache.add(0, prepared(TEXT[:500], 1))
    cache.finish()
    cache.add(1, prepared(TEXT[:100] + b"something else", 1))
    cache.finish()
    assert cache.events[1, 0][-1].cached_tokens == 96


def test_prompts_that_begin_alike_and_arrive_together_are_computed_once() -> None:
    """Who waits for the other's pages takes them behind its own, which it has let go of."""
    both = simulation(pages=64, batch_tokens=2 * STEP)
    sequences = [prepared(TEXT[:500] + end, 20, ignore_eos=True) for end in (b"a", b"b")]
    for request, sequence in enumerate(sequences):
        both.add(request, sequence)
    computed = 0
    while both.scheduler.live:
        both.step()
        computed += both.last_plan.prefilled
    assert computed <= 500 + 3 * PAGE
    for request, sequence in enumerate(sequences):
        assert_as_alone(both.events[request, 0], sequence, window=WINDOW)
