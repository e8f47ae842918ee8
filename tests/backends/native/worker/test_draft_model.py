"""A draft model changes nothing but time; it is asked where that is expected to pay, and hardly where it does not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.backends.native.schedule.draft_models import Costs, DraftRunner, ShortRunner
from tests.backends.native.schedule.harness import prepared
from tests.backends.native.schedule.test_scheduler import CONTROLS
from tests.backends.native.worker.harness import Simulation, assert_as_alone

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import Batch
from quintet.backends.native.draft import costs as draft_costs
from quintet.backends.native.schedule.plan import Kind
from quintet.backends.native.schedule.speculation import ROWS, SEQUENCES
from quintet.backends.native.worker.drafting import measure
from quintet.backends.toy import EOS
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Dry

TEXT = bytes(range(97, 123)) * 8
HISTORY: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "top_k": 4},
    {"frequency_penalty": 0.9, "presence_penalty": 0.3},
    {"dry": Dry(0.8)},
    {"mirostat_target": 2.0},
]
"""Controls that look back at what was drawn."""


def drafted(right: float = 1.0, *, costs: Costs | None = None, vocab: int = 257, **options: Any) -> tuple[Simulation, DraftRunner]:
    """An engine with a draft model that is right so often."""
    costs = costs or Costs()
    draft = DraftRunner(right, costs, vocab)
    return Simulation(draft=draft, costs=costs, **{"batch_tokens": 128, **options}), draft


def text(seed: int, tokens: int = 120, **controls: Any) -> PreparedSequence:
    """A sequence whose text does not repeat soon."""
    return prepared(TEXT[seed : seed + 20], tokens, seed=seed, ignore_eos=True, **controls)


def seconds(simulation: Simulation, *sequences: PreparedSequence) -> float:
    """Simulated, from the first step that decodes to the end."""
    simulation.add(0, *sequences)
    simulation.step()
    begin = simulation.costs.now
    simulation.finish()
    return simulation.costs.now - begin


def without(*sequences: PreparedSequence, costs: Costs | None = None, **options: Any) -> float:
    """The same without a draft model."""
    return seconds(Simulation(costs=costs or Costs(), **{"batch_tokens": 128, **options}), *sequences)


# ---- nothing changes


@pytest.mark.parametrize("controls", [*CONTROLS[1:], *HISTORY, {"stop_token_ids": (101, 32)}, {"bad_words": ()}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
def test_every_token_and_log_probability_is_as_without_it(controls: dict[str, Any], temperature: float, right: float) -> None:
    sequences = [prepared(TEXT[at : at + 9], 45, temperature=temperature, seed=at, logprobs=at % 3, **controls) for at in range(3)]
    simulation, _ = drafted(right)
    simulation.add(0, *sequences)
    simulation.finish()
    for index, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[0, index], sequence)
    assert simulation.drafting and simulation.drafting.drafted
    assert right == 0.0 or simulation.drafting.accepted
    assert simulation.pool.available == simulation.pool.total


@pytest.mark.parametrize("controls", HISTORY, ids=str)
def test_it_draws_with_the_sequences_own_history(controls: dict[str, Any]) -> None:
    """A model that thinks as the target does drafts what it draws, whatever looks back at the text, and at a temperature."""
    simulation, _ = drafted()
    seconds(simulation, text(1, 200, temperature=1.0, **controls))
    assert simulation.drafting
    assert simulation.drafting.accepted == simulation.drafting.drafted > 100


@pytest.mark.parametrize("vocab", [256, 250, 257, 300])
def test_its_logits_may_be_wider_or_narrower_than_the_targets(vocab: int) -> None:
    sequence = text(3, temperature=1.0, logprobs=1)
    simulation, _ = drafted(vocab=vocab)
    seconds(simulation, sequence)
    assert_as_alone(simulation.events[0, 0], sequence)
    assert simulation.drafting
    assert simulation.drafting.accepted > 0.7 * simulation.drafting.drafted > 0


@pytest.mark.parametrize(("vocab", "asked"), [(257, {128}), (150, {75, 150})], ids=["of the first half", "not of the first half"])
def test_logits_of_its_first_half_are_enough_for_a_text_that_is_of_it(vocab: int, asked: set[int]) -> None:
    sequence, costs = text(3, temperature=1.0, logprobs=1), Costs()
    draft = ShortRunner(1.0, costs, vocab)
    simulation = Simulation(draft=draft, costs=costs, batch_tokens=128)
    seconds(simulation, sequence)
    assert_as_alone(simulation.events[0, 0], sequence)
    assert simulation.drafting
    assert simulation.drafting.accepted
    assert {*draft.counts} == asked
    assert draft.counts == sorted(draft.counts)


def test_a_token_that_it_does_not_have_is_not_given_to_it() -> None:
    sequence = prepared([*TEXT[:20], 255, *TEXT[20:30]], 60, ignore_eos=True)
    simulation, draft = drafted(vocab=250)
    before = draft.computed
    seconds(simulation, sequence)
    assert draft.computed == before
    assert_as_alone(simulation.events[0, 0], sequence)


def test_no_draft_goes_as_far_as_a_token_that_ends_the_sequence() -> None:
    sequence = prepared(TEXT[:20], 60, stop_token_ids=(32,), temperature=1.0)
    simulation, _ = drafted()
    simulation.add(0, sequence)
    while simulation.scheduler.live:
        simulation.step()
        assert not any({32, EOS} & {*segment.draft} for segment in simulation.last_plan.segments)
    assert_as_alone(simulation.events[0, 0], sequence)


@pytest.mark.parametrize("seed", range(4))
def test_when_pages_run_out_it_takes_none_from_anybody_and_preemption_is_as_invisible_as_ever(seed: int) -> None:
    rng = random.Random(seed)
    sequences = [prepared(TEXT[at : at + 26], 90, temperature=1.0, seed=at, logprobs=1, ignore_eos=True) for at in range(8)]
    simulation, _ = drafted(rng.choice([0.8, 1.0]), pages=16, batch_tokens=200, max_running=rng.choice([3, 8]))
    simulation.add(0, *sequences[:4])
    preempted = 0
    while simulation.scheduler.live:
        if simulation.now == 30:
            simulation.add(1, *sequences[4:])
        running = simulation.scheduler.running
        simulation.step()
        preempted += simulation.scheduler.running < running
        if simulation.now == 45:
            simulation.abort(0, 2)
    for index in range(4):
        assert_as_alone(simulation.events[0, index], sequences[index])
        assert_as_alone(simulation.events[1, index], sequences[4 + index])
    assert simulation.drafting and simulation.drafting.accepted
    assert preempted


def test_what_breaks_in_it_breaks_no_request_and_no_other_one() -> None:
    simulation, draft = drafted()
    first, second = text(1), text(2)
    simulation.add(0, first)
    for _ in range(5):
        simulation.step()
    draft.breaks = True
    simulation.step()
    draft.breaks = False
    assert simulation.drafting
    before = simulation.drafting.drafted
    simulation.finish()
    assert simulation.drafting.drafted == before, "a sequence that it broke with goes on without"
    assert_as_alone(simulation.events[0, 0], first)
    simulation.add(1, second)
    simulation.finish()
    assert simulation.drafting.drafted > before
    assert_as_alone(simulation.events[1, 0], second)


# ---- what it reads


def test_samples_of_a_prompt_read_it_once_and_a_prompt_that_comes_again_is_not_read_again() -> None:
    prompt = TEXT[: 6 * PAGE + 5]
    sequences = [prepared(prompt, 60, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(4)]
    simulation, draft = drafted(batch_tokens=256)
    begin = draft.computed
    seconds(simulation, *sequences)
    assert simulation.drafting
    read = draft.computed - begin - simulation.drafting.drafted
    assert read < len(prompt) + 4 * (PAGE + 60), "one prompt, and of each sample its last page and what it drew without drafts"
    before = draft.computed
    simulation.add(1, prepared(prompt, 2 * PAGE, temperature=1.0, seed=9, ignore_eos=True))
    simulation.finish()
    assert 0 < draft.computed - before < 4 * PAGE
    for index, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[0, index], sequence)


def test_a_prompt_of_another_salt_is_read_again() -> None:
    prompt, computed = TEXT[: 6 * PAGE], []
    simulation, draft = drafted(batch_tokens=256)
    for request, salt in enumerate((b"a", b"b", b"a")):
        before = draft.computed
        simulation.add(request, prepared(prompt, 40, ignore_eos=True), salt=salt)
        simulation.finish()
        computed.append(draft.computed - before)
    assert min(computed[0], computed[1]) > computed[2] + 4 * PAGE


def test_a_long_prompt_is_read_in_pieces_and_only_where_the_text_may_get_long_enough() -> None:
    prompt = bytes(97 + (at * at) % 25 for at in range(800))
    costs = Costs(target=0.05, draft=0.2, row=0.05)
    simulation, draft = drafted(batch_tokens=1024, costs=costs)
    seconds(simulation, text(0, 200))
    before = draft.computed
    simulation.add(1, prepared(prompt, 12, ignore_eos=True))
    simulation.finish()
    assert draft.computed == before, "it would cost more than twelve tokens can save"
    simulation.add(2, prepared(prompt, 1500, ignore_eos=True))
    longest = 0
    while simulation.scheduler.live:
        already = draft.computed
        simulation.step()
        if simulation.last_plan.decodes:
            longest = max(longest, draft.computed - already)
    assert simulation.drafting and simulation.drafting.accepted > 500
    assert longest <= 256


# ---- when it is asked


@pytest.mark.parametrize(("right", "least"), [(1.0, 2.2), (0.9, 1.6)])
def test_a_draft_model_that_is_right_saves_time(right: float, least: float) -> None:
    sequence = text(5, 300)
    simulation, _ = drafted(right, costs=Costs(draft=0.25))
    assert without(sequence) / seconds(simulation, sequence) >= least


@pytest.mark.parametrize(
    ("right", "draft", "sequences"), [(0.0, 0.2, 1), (0.0, 1.0, 3), (0.2, 0.5, 1), (0.4, 0.5, 3), (0.4, 3.0, 1), (0.4, 0.2, 1)]
)
def test_where_it_does_not_pay_it_costs_no_more_than_two_per_cent_and_some_steps_at_the_start(
    right: float, draft: float, sequences: int
) -> None:
    some = [text(at, 700, temperature=1.0) for at in range(sequences)]
    costs, plain = Costs(draft=draft), without(*some, costs=Costs(draft=draft))
    simulation, _ = drafted(right, costs=costs)
    assert seconds(simulation, *some) <= 1.02 * plain + 9 * costs.target
    for index, sequence in enumerate(some):
        assert_as_alone(simulation.events[0, index], sequence)


def test_where_it_never_pays_it_is_soon_asked_no_more_than_now_and_then() -> None:
    simulation, _ = drafted(0.0, costs=Costs(draft=0.4))
    simulation.add(0, text(1, 1000))
    asked = []
    while simulation.scheduler.live:
        simulation.step()
        asked.append(any(segment.ask for segment in simulation.last_plan.segments))
    assert sum(asked[:60]) <= 12
    assert sum(asked[60:]) <= 0.03 * len(asked)


def test_one_that_becomes_right_is_found_out() -> None:
    simulation, draft = drafted(0.0, costs=Costs(draft=0.2))
    assert simulation.drafting
    for request in range(60):
        draft.right = float(request >= 20)
        before = simulation.drafting.drafted
        simulation.add(request, text(request, 60, temperature=1.0))
        simulation.finish()
        if request == 19:
            assert simulation.drafting.drafted - before <= 2
    assert simulation.drafting.drafted - before > 30


def test_a_draft_ends_where_the_model_is_unsure() -> None:
    """With what it has learnt of its own confidence, drafts are of different lengths, and most of what is drafted is right."""
    simulation, _ = drafted(0.8, costs=Costs(draft=0.15))
    simulation.add(0, text(4, 1500))
    lengths = set()
    while simulation.scheduler.live:
        simulation.step()
        lengths |= {len(segment.draft) for segment in simulation.last_plan.segments if segment.ask}
    assert len(lengths) >= 5
    assert simulation.drafting and simulation.drafting.accepted > 0.7 * simulation.drafting.drafted


def test_what_repeats_is_found_and_not_asked_for() -> None:
    """Looking it up costs nothing, so it is preferred where it is as good."""
    simulation, _ = drafted()
    simulation.add(0, prepared(b"abcabcabc", 120, logit_bias=((97, 100.0),)))
    simulation.finish()
    drafts = simulation.events[0, 0][-1].drafts
    assert simulation.drafting and drafts.accepted - simulation.drafting.accepted > 60


def test_it_is_not_asked_while_many_decode_or_a_prompt_is_computed() -> None:
    simulation, _ = drafted(batch_tokens=256)
    simulation.add(0, *[text(at, 40) for at in range(SEQUENCES + 1)])
    simulation.finish()
    assert simulation.drafting and simulation.drafting.drafted == 0
    simulation.add(1, text(0, 40))
    simulation.add(2, prepared(TEXT * 8, 1))
    while simulation.scheduler.live:
        simulation.step()
        asked = any(segment.ask for segment in simulation.last_plan.segments)
        assert not asked or simulation.last_plan.decodes
        assert simulation.last_plan.tokens <= ROWS or not asked
        assert all(segment.kind is Kind.DECODE for segment in simulation.last_plan.segments if segment.ask)


@pytest.mark.parametrize("context", [1, 3, PAGE, 4 * PAGE])
def test_what_steps_cost_is_measured_within_the_context(context: int) -> None:
    class Narrow:
        context: int
        most = 0

        def forward(self, batch: Batch) -> Any:
            self.most = max(self.most, *batch.lengths)
            assert self.most <= self.context
            return batch

        def logits(self, hidden: Any) -> None: ...

    runner = Narrow()
    runner.context = context
    measure(runner, known := draft_costs.Costs(), iter(range(9)).__next__)  # type: ignore[arg-type]
    assert runner.most == min(PAGE, context)
    assert known.of(1) == 1
