"""Pages that are kept beyond an engine's life: found again by the next one, a slice at a time, and nothing else is changed by them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.backends.native.schedule.harness import Simulation, assert_as_alone, prepared, run_all

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8, Runner
from quintet.backends.native.schedule.planner import SLICE

TEXT = bytes(range(97, 123)) * 40

Shelf = dict[bytes, tuple[U8, U8]]


class Kept:
    """``Saved`` in memory, which the next engine gets.

    Args:
        broken: digests that are there and cannot be read.
    """

    def __init__(self, shelf: Shelf, runner: Runner, broken: frozenset[bytes] = frozenset()) -> None:
        self._shelf, self._runner, self._broken = shelf, runner, broken
        self.loads = 0

    def has(self, digest: bytes, *, with_rows: bool) -> bool:
        return digest in self._shelf and (len(self._shelf[digest][1]) > 0 or not with_rows)

    def load(self, digest: bytes, page: int) -> U8 | None:
        self.loads += 1
        if digest in self._broken:
            return None
        data, rows = self._shelf[digest]
        self._runner.write_page(page, data)
        return rows

    def offer(self, digest: bytes, page: int, rows: U8 | None) -> None:
        data = self._runner.read_page(page)
        none: U8 = data[:0].reshape(0, 1)
        self._shelf[digest] = data, none if rows is None else rows.copy()


def kept(shelf: Shelf, broken: frozenset[bytes] = frozenset()) -> Callable[[Runner], Kept]:
    return lambda runner: Kept(shelf, runner, broken)


def life(shelf: Shelf, *prompts: bytes, pages: int = 4096, broken: frozenset[bytes] = frozenset(), scored: bool = False) -> list[int]:
    """An engine's: of each prompt, one after the other, the tokens that were cached."""
    simulation, found = Simulation(saved=kept(shelf, broken), pages=pages), []
    for request, prompt in enumerate(prompts):
        asked = prepared(prompt, 0 if scored else 3, logprobs=1 if scored else None, echo=scored)
        simulation.add(request, asked)
        simulation.finish()
        assert_as_alone(simulation.events[request, 0], asked)
        found.append(simulation.events[request, 0][-1].cached_tokens)
    return found


def test_the_next_engine_finds_what_the_last_one_computed() -> None:
    shelf: Shelf = {}
    assert life(shelf, TEXT[:100]) == [0]
    assert life(shelf, TEXT[:100], TEXT[:90] + b"another end", b"x" + TEXT[:100]) == [96, 80, 0]


def test_another_salt_finds_nothing() -> None:
    shelf: Shelf = {}
    for salt, expected in ((b"one", 0), (b"two", 0), (b"one", 96)):
        simulation = Simulation(saved=kept(shelf))
        simulation.add(0, prepared(TEXT[:100], 1), salt=salt)
        simulation.finish()
        assert simulation.events[0, 0][-1].cached_tokens == expected


def test_prompt_scores_are_served_from_kept_rows_and_pages_without_them_are_computed() -> None:
    shelf: Shelf = {}
    life(shelf, TEXT[:100])
    assert life(shelf, TEXT[:100], scored=True) == [0]
    simulation = Simulation(saved=kept(shelf))
    again = prepared(TEXT[:96] + b"other", 0, logprobs=1, echo=True)
    simulation.add(0, again)
    assert run_all(simulation) == len(again.tokens) - 1 - 96
    assert_as_alone(simulation.events[0, 0], again)


def test_what_cannot_be_read_any_more_is_computed_from_there_on() -> None:
    shelf: Shelf = {}
    life(shelf, TEXT[:100])
    third = list(shelf)[2]
    assert life(shelf, TEXT[:100], broken=frozenset([third])) == [2 * PAGE]


def test_they_come_back_in_slices_while_others_run_and_nobody_gives_up_a_place_for_that() -> None:
    shelf: Shelf = {}
    count = 2 * SLICE + 5
    long = (TEXT * 3)[: count * PAGE + 1]
    life(shelf, long)
    made: list[Kept] = []

    def saved(runner: Runner) -> Kept:
        made.append(Kept(shelf, runner))
        return made[0]

    simulation = Simulation(saved=saved, max_running=16)
    running = [prepared(b"short", 200), prepared(b"brief", 200)]
    simulation.add(0, *running, tenant="first")
    simulation.step()
    simulation.add(1, prepared(long, 2), tenant="second")
    loads = []
    while made[0].loads < count:
        simulation.step()
        loads.append(made[0].loads)
        assert len(simulation.last_plan.segments) >= len(running), "those who run go on"
    assert loads == [SLICE, 2 * SLICE, count]
    simulation.finish()
    assert simulation.scheduler.preempted == 0
    assert simulation.events[1, 0][-1].cached_tokens == count * PAGE
    for index, one in enumerate(running):
        assert_as_alone(simulation.events[0, index], one)


def test_they_come_back_in_slices_where_nothing_runs_and_that_costs_no_snapshot() -> None:
    """A disk may take longer for all of them than an engine may be silent."""
    shelf: Shelf = {}
    count = 2 * SLICE + 5
    long = (TEXT * 3)[: count * PAGE + 1]
    life(shelf, long)
    made: list[Kept] = []

    def saved(runner: Runner) -> Kept:
        made.append(Kept(shelf, runner))
        return made[0]

    simulation = Simulation(saved=saved, max_running=1)
    samples = [prepared(b"short", 1, temperature=1.0, seed=seed) for seed in range(2)]
    simulation.add(0, *samples, tenant="first")
    simulation.add(1, prepared(long, 2), tenant="second")
    simulation.step()
    for expected in (SLICE, 2 * SLICE):
        simulation.step()
        assert made[0].loads == expected
        assert simulation.last_plan.restoring and not simulation.last_plan.segments
        assert simulation.scheduler._queues.groups.snapshots, "of the sample that waits"
    simulation.step()
    assert not simulation.last_plan.restoring and simulation.last_plan.segments
    simulation.finish()
    assert simulation.events[1, 0][-1].cached_tokens == count * PAGE
    for index, one in enumerate(samples):
        assert_as_alone(simulation.events[0, index], one)


def test_several_that_come_at_once_bring_no_more_back_in_a_step_than_one_does() -> None:
    """A stream sees no gap, and the engine is not silent for so long that it seems to hang."""
    shelf: Shelf = {}
    count = SLICE // 2 + 1
    prompts = [bytes([65 + each]) + TEXT[: count * PAGE] for each in range(6)]
    life(shelf, *prompts)
    made: list[Kept] = []

    def saved(runner: Runner) -> Kept:
        made.append(Kept(shelf, runner))
        return made[0]

    simulation = Simulation(saved=saved)
    simulation.add(0, prepared(b"short", 200))
    simulation.step()
    for request, prompt in enumerate(prompts, 1):
        simulation.add(request, prepared(prompt, 2))
    loads = [0]
    while made[0].loads < len(prompts) * count:
        simulation.step()
        loads.append(made[0].loads)
        assert simulation.last_plan.restoring == (loads[-1] < len(prompts) * count)
        assert simulation.last_plan.segments, "the stream goes on"
    assert [after - before for before, after in itertools.pairwise(loads)] == [*[SLICE] * 3, 6 * count - 3 * SLICE]
    simulation.finish()
    for request, prompt in enumerate(prompts, 1):
        assert simulation.events[request, 0][-1].cached_tokens == count * PAGE
        assert_as_alone(simulation.events[request, 0], prepared(prompt, 2))


def test_a_cache_that_is_smaller_than_the_prefix_takes_what_fits() -> None:
    shelf: Shelf = {}
    life(shelf, TEXT[:200])
    assert life(shelf, TEXT[:200], TEXT[:200], pages=15) == [192, 192]
    assert life(shelf, b"y" * 60, TEXT[:200], b"y" * 60, pages=15) == [0, 192, 48]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90), st.booleans()), min_size=1, max_size=6),
    st.integers(8, 30),
    st.sets(st.integers(0, 40)),
    st.integers(4, 40),
)
def test_whatever_was_kept_the_answers_and_the_pages_are_as_without(
    asked: list[tuple[int, int, bool]], pages: int, gone: set[int], batch_tokens: int
) -> None:
    shelf: Shelf = {}
    prompts = [
        prepared(bytes([65 + which]) * 20 + TEXT[:length], 3, logprobs=1 if scored else None, echo=scored)
        for which, length, scored in asked
    ]
    for _ in range(2):
        simulation = Simulation(saved=kept(shelf), pages=pages, batch_tokens=batch_tokens, max_running=4)
        for request, one in enumerate(prompts):
            simulation.add(request, one)
        simulation.finish()
        for request, one in enumerate(prompts):
            assert_as_alone(simulation.events[request, 0], one)
        for number, digest in enumerate(list(shelf)):
            if number in gone:
                del shelf[digest]


def test_a_model_whose_layers_all_have_windows_keeps_none() -> None:
    shelf: Shelf = {}
    simulation = Simulation(saved=kept(shelf), window=40)
    simulation.add(0, prepared(TEXT[:100], 1))
    simulation.finish()
    assert shelf == {}


@pytest.mark.parametrize("aborted", [0, 1, 2])
def test_one_that_is_aborted_while_its_pages_come_back_leaves_nothing_behind(aborted: int) -> None:
    shelf: Shelf = {}
    long = (TEXT * 3)[: 3 * SLICE * PAGE]
    life(shelf, long)
    simulation = Simulation(saved=kept(shelf))
    simulation.add(0, prepared(b"short", 50))
    simulation.step()
    simulation.add(1, prepared(long, 2))
    for _ in range(aborted):
        simulation.step()
    simulation.abort(1)
    simulation.finish()
    assert simulation.scheduler.live == 0
    assert simulation.pool.state.used == 0
