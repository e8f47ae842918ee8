"""Whatever is added, aborted, chunked, cached, forked or preempted: every sequence gives what it gives alone, and no page leaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from tests.backends.native.schedule.draft_models import Costs, DraftRunner
from tests.backends.native.schedule.harness import PLAIN, Oracle, Simulation, assert_as_alone, prepared

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import Samplers
from quintet.backends.native.schedule.speculation import Speculation
from quintet.backends.toy import EOS
from quintet.events import Finish
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Dry

LONG = bytes(range(32, 127)) * 2
CONTEXT = 8 * PAGE
"""Longest prompt plus completion here; every sequence fits alone into the smallest cache below."""


CONTROLS: list[dict[str, Any]] = [
    {},
    {},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"mirostat_target": 2.0},
    {"dry": Dry(0.8), "min_tokens": 3, "ignore_eos": True},
]
"""Samplers with something to remember, and without."""


@st.composite
def prompts(draw: st.DrawFn) -> bytes:
    """Beginnings of one of two texts, so that prefixes are shared; lengths around the borders of pages."""
    borders = st.sampled_from([PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 4 * PAGE])
    length = draw(st.one_of(st.integers(1, PAGE), st.integers(1, 4 * PAGE), borders))
    return LONG[draw(st.sampled_from([0, 7])) :][:length]


@st.composite
def echoed(draw: st.DrawFn, length: int) -> tuple[int, int | None]:
    """Of a prompt, if it is echoed: all, its end, or what stands before a gap (``suffix``). So few ways that they often meet."""
    whole, end, gap = (0, None), (length // 2, None), (min(2, length // 2), length // 2 + 1)
    return draw(st.sampled_from([whole, whole, end, gap]))


@st.composite
def requests(draw: st.DrawFn) -> list[PreparedSequence]:
    """One to three prompts, often equal, with one to five samples each."""
    logprobs = draw(st.sampled_from([None, None, 0, 2]))
    echo = draw(st.booleans())
    max_tokens = draw(st.sampled_from([0, 1, 2, 5, 2 * PAGE, 4 * PAGE - 1, 4 * PAGE]))
    temperature = draw(st.sampled_from([0.0, 1.0]))
    seed = draw(st.sampled_from([0, 2**64 - 8]))
    controls = draw(st.sampled_from(CONTROLS))
    made: list[PreparedSequence] = []
    for prompt in draw(st.lists(prompts(), min_size=1, max_size=3)):
        start, end = draw(echoed(len(prompt)))
        for sample in range(draw(st.integers(1, 5))):
            how: dict[str, Any] = {"temperature": temperature, "seed": seed + sample, "logprobs": logprobs, "echo": echo}
            made.append(replace(prepared(prompt, max_tokens, **how, **controls), echo_from=start, prompt_end=end))
    return made


draft_lengths = st.lists(st.sampled_from([0, 1, 2, 5, PAGE, 2 * PAGE + 1]), min_size=1, max_size=4)
"""Of drafts, or of the part of them that is right, in turn."""


class AnyInterleaving(RuleBasedStateMachine):
    """Requests come, go and are aborted in any order, under any budget and cache, with drafts that are right, wrong, or in part."""

    added = Bundle("added")
    samplers: Samplers = PLAIN
    engine: type[Simulation] = Simulation

    @initialize(
        batch_tokens=st.sampled_from([1, 2, 7, 16, 64, 1000]),
        max_running=st.sampled_from([1, 2, 4, 8, 32]),
        pages=st.sampled_from([CONTEXT // PAGE, 9, 10, 12, 16, 500]),
        caching=st.booleans(),
        window=st.sampled_from([0, 0, 2, PAGE - 3, PAGE + 1, 2 * PAGE + 5]),
        drafts=st.none() | st.just((None, None)) | st.tuples(draft_lengths, draft_lengths) | st.sampled_from([0.0, 0.8, 1.0]),
    )
    def start(
        self, batch_tokens: int, max_running: int, pages: int, caching: bool, window: int, drafts: tuple[Any, Any] | float | None
    ) -> None:
        self.sequences: dict[tuple[int, int], PreparedSequence] = {}
        self.window = window
        pages -= 3 * bool(window and pages < 500)  # a sequence needs its window's only
        speculation, draft, costs = None, None, Costs()
        if isinstance(drafts, float):
            draft = DraftRunner(drafts, costs)
        elif drafts is not None:
            lengths, right = drafts
            speculation = Oracle(self.sequences, lengths, right, self.samplers, window) if lengths else Speculation(frozenset({EOS}))
        limits: dict[str, Any] = {"pages": pages, "batch_tokens": batch_tokens, "max_running": max_running, "caching": caching}
        how: dict[str, Any] = {"speculation": speculation, "samplers": self.samplers, "window": window, "draft": draft, "costs": costs}
        self.simulation = self.engine(**limits, **how)
        self.aborted: set[tuple[int, int]] = set()

    @rule(target=added, sequences=requests(), tenant=st.sampled_from(["", "", "a", "b"]))
    def add(self, sequences: list[PreparedSequence], tenant: str) -> object:
        request = len({request for request, _ in self.sequences})
        keys = [(request, index) for index in range(len(sequences))]
        self.sequences.update(zip(keys, sequences, strict=True))
        self.simulation.add(request, *sequences, tenant=tenant)
        return multiple(*keys)

    @rule(key=added)
    def abort_one(self, key: tuple[int, int]) -> None:
        self.aborted.add(key)
        self.simulation.abort(*key)

    @rule(key=added)
    def abort_request(self, key: tuple[int, int]) -> None:
        self.aborted |= {one for one in self.sequences if one[0] == key[0]}
        self.simulation.abort(key[0])

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.simulation.scheduler.live:
                self.simulation.step()

    @rule(key=added)
    def abort_while_a_step_runs(self, key: tuple[int, int]) -> None:
        if self.simulation.scheduler.live:
            self.aborted.add(key)
            self.simulation.step(key)

    @invariant()
    def nothing_leaks(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        self.simulation.finish()
        self.simulation.scheduler.check()
        assert self.simulation.pool.available == self.simulation.pool.total
        if self.simulation.drafting:
            self.simulation.draft_pages.make_room([])
            self.simulation.drafting.check()
            assert self.simulation.draft_pages.pool.available == self.simulation.draft_pages.pool.total
        for key, sequence in self.sequences.items():
            events = self.simulation.events[key]
            assert [event.finish is not None for event in events].count(True) == 1, "one terminal event each"
            assert key in self.aborted or events[-1].finish is not Finish.ABORT
            assert events[-1].drafts.accepted <= len(events)
            assert_as_alone(events, sequence, self.samplers, self.window)


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.parametrize("batch_tokens", [7, PAGE, 50, 64])
@pytest.mark.parametrize("max_tokens", [1, PAGE])
def test_the_echo_before_a_gap_may_come_steps_after_the_pages_behind_it(max_tokens: int, batch_tokens: int) -> None:
    """Those pages are full, and the echo is not there yet: from the cache it is no quicker than a step has rows to score."""
    simulation, size = Simulation(batch_tokens=batch_tokens), 6 * PAGE + 1
    for request, end in enumerate([size - 40, size - 40, size - 1, size - 1, 5 * PAGE, 5 * PAGE]):
        one = replace(prepared(LONG[:size], max_tokens, echo=True, logprobs=0), prompt_end=end, echo_from=2)
        simulation.add(request, one)
        simulation.finish()
        assert_as_alone(simulation.events[request, 0], one)


def test_a_prompt_that_fits_a_step_is_scored_and_echoed_in_that_step() -> None:
    simulation = Simulation(batch_tokens=64)
    simulation.add(0, prepared(LONG[:40], 1, echo=True, logprobs=0))
    simulation.step()
    assert simulation.events[0, 0][-1].finish is Finish.LENGTH


@pytest.mark.parametrize(("prompt", "samples", "copies"), [(20, 1, 0), (20, 3, 2), (2 * PAGE, 3, 0)])
def test_only_a_page_that_others_hold_too_is_copied_and_once_for_each_of_them(prompt: int, samples: int, copies: int) -> None:
    simulation, made = Simulation(), 0
    sequences = [prepared(LONG[:prompt], 2 * PAGE, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(samples)]
    simulation.add(0, *sequences)
    while simulation.scheduler.live:
        simulation.step()
        made += len(simulation.last_plan.copies)
    assert made == copies
