"""Sampling through the engine: what ``prepare`` makes of the controls, and that a sampler's memory belongs to its sequence alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.native.schedule.harness import prepared
from tests.backends.native.worker.harness import NATIVE, Simulation, alone, assert_as_alone

from quintet.backends.toy import EOS
from quintet.errors import BadRequest
from quintet.events import Finish, TokenEvent
from quintet.inputs.sampling import Limits, Resolved, resolve_sampling, word_forms
from quintet.request import Dry, Sampling

VOCAB = 257
PLAIN = Sampling(1.0, 1.0, 0)


def resolve(sampling: Sampling, most: int = 10, asked: int = 10) -> Resolved:
    return resolve_sampling(sampling, Limits(most, asked), {form: list(form.encode()) for form in word_forms(sampling)}, VOCAB)


def refusal(**controls: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        resolve(replace(PLAIN, **controls))
    return caught.value


# ---- prepare


@pytest.mark.fault("A06")
@pytest.mark.parametrize("token", [-1, VOCAB, 2**40])
def test_ids_outside_the_logits_are_refused_under_the_fields_name(token: int) -> None:
    """Against the width of the logits."""
    for name, value in (("logit_bias", ((token, 1.0),)), ("allowed_token_ids", (1, token)), ("stop_token_ids", (token,))):
        error = refusal(**{name: value})
        assert (error.param, error.got) == (name, str(token))
        assert "from 0 to 256" in str(error)


@pytest.mark.fault("A07", "A10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_p", 1.1), ("top_k", -1), ("min_p", 2.0)),
        *(("typical_p", -1.0), ("top_n_sigma", math.nan), ("xtc_probability", 1.5), ("xtc_threshold", -0.5), ("repetition_penalty", 0.0)),
        *(("frequency_penalty", math.inf), ("presence_penalty", math.nan), ("mirostat_target", -1.0), ("mirostat_lr", math.inf)),
        *(("min_tokens", -2), ("seed", -1), ("seed", 2**64), ("logit_bias", ((1, 100.5),)), ("bad_words", ("ok", " "))),
    ],
)
def test_numbers_out_of_range_are_refused_under_the_fields_name(name: str, value: object) -> None:
    assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("dry", [Dry(multiplier=-1.0), Dry(base=0.5), Dry(allowed_length=0), Dry(range=-2), Dry(base=math.nan)])
def test_drys_numbers_are_checked_too(dry: Dry) -> None:
    assert refusal(dry=dry).param.startswith("dry_")


@pytest.mark.fault("A15")
def test_min_tokens_may_be_all_there_is_room_for_and_no_more() -> None:
    assert resolve(replace(PLAIN, min_tokens=-1)).sampling.min_tokens == 10
    assert resolve(replace(PLAIN, min_tokens=10)).sampling.min_tokens == 10
    assert refusal(min_tokens=11).param == "min_tokens"
    assert resolve(replace(PLAIN, min_tokens=11), asked=11).sampling.min_tokens == 10, "with max_tokens, which was lowered to fit"
    with pytest.raises(BadRequest, match="'min_tokens' must be at most 11"):
        resolve(replace(PLAIN, min_tokens=12), asked=11)


def test_bad_words_are_tokenised_as_they_begin_a_word_and_go_on_one() -> None:
    assert resolve(replace(PLAIN, bad_words=("ab", " ab", "c"))).bad_words == (tuple(b"ab"), tuple(b" ab"), tuple(b"c"), tuple(b" c"))


def test_controls_that_ban_every_token_are_refused() -> None:
    everything = tuple((token, -100.0) for token in range(VOCAB))
    assert refusal(logit_bias=everything).param == "logit_bias"
    assert resolve(replace(PLAIN, logit_bias=everything[1:]))
    assert refusal(logit_bias=((7, -100.0),), allowed_token_ids=(7,)).param == "logit_bias"
    assert refusal(bad_words=("a",), allowed_token_ids=(97,)).param == "bad_words"
    assert resolve(replace(PLAIN, bad_words=("a",), allowed_token_ids=(97, 98)))


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, 0.5, 1e-6, 1e6, 5e-324, -1.0])
ids = st.integers(-1, VOCAB)
any_sampling = st.builds(
    Sampling,
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold"), numbers),
    **dict.fromkeys(("repetition_penalty", "frequency_penalty", "presence_penalty", "mirostat_target", "mirostat_lr"), numbers),
    seed=st.integers(0, 2**64 - 1),
    top_k=st.integers(-1, 2**40),
    dry=st.builds(Dry, numbers, numbers, st.integers(-1, 2**40), st.integers(-3, 2**40)),
    logit_bias=st.lists(st.tuples(ids, numbers), max_size=3).map(tuple),
    allowed_token_ids=st.lists(ids, max_size=3).map(tuple),
    bad_words=st.lists(st.text(st.sampled_from("ab "), max_size=3), max_size=2).map(tuple),
    min_tokens=st.integers(-2, 12),
    stop_token_ids=st.lists(ids, max_size=2).map(tuple),
)
"""Anything of the right types."""
one_odd = st.tuples(st.sampled_from([field for field in Sampling.__slots__ if field != "ignore_eos"]), any_sampling).map(
    lambda drawn: replace(PLAIN, **{drawn[0]: getattr(drawn[1], drawn[0])})
)


@pytest.mark.fault("A09")
@given(sampling=any_sampling | one_odd)
@settings(max_examples=500, deadline=None)
def test_whatever_prepare_lets_pass_the_core_takes(sampling: Sampling) -> None:
    """Else it would fail a step, and with it the neighbours."""
    try:
        resolved = resolve(sampling)
    except BadRequest:
        return
    made = NATIVE.make(resolved.sampling, resolved.bad_words, (1, 2, 1))
    made.accept(3)
    assert -2 <= NATIVE.draw(np.zeros((1, VOCAB), np.float32), [made], np.zeros(1, np.uint64)).tokens[0] < VOCAB


# ---- the engine

TEXT = b"once upon a time there was a fox who "
STATEFUL: list[dict[str, Any]] = [
    {"frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"repetition_penalty": 1.3},
    {"mirostat_target": 1.5},
    {"dry": Dry(1.0, allowed_length=1)},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "min_tokens": 6},
]


def tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [event.token for event in events if event.token >= 0 and not event.prompt]


def generate(max_tokens: int = 30, prompt: bytes = TEXT, **controls: Any) -> list[TokenEvent]:
    simulation = Simulation()
    simulation.add(0, prepared(prompt, max_tokens, **controls))
    simulation.finish()
    return simulation.events[0, 0]


@pytest.mark.parametrize("controls", STATEFUL, ids=str)
def test_each_sample_remembers_its_own_tokens(controls: dict[str, Any]) -> None:
    simulation = Simulation(max_running=5)
    samples = [prepared(TEXT, 25, temperature=1.0, seed=seed, **controls) for seed in range(9)]
    simulation.add(0, *samples)
    simulation.finish()
    for index, sample in enumerate(samples):
        assert_as_alone(simulation.events[0, index], sample)
    assert alone(samples[0]) != alone(prepared(TEXT, 25, temperature=1.0, seed=0)), "the control does something"


@pytest.mark.parametrize("controls", STATEFUL, ids=str)
def test_what_a_sampler_remembers_survives_preemption(controls: dict[str, Any]) -> None:
    simulation = Simulation(pages=9, max_running=4)
    sequences = [prepared(TEXT[: 20 + i], 60, temperature=1.0, seed=i, ignore_eos=True, **controls) for i in range(4)]
    for request, sequence in enumerate(sequences):
        simulation.add(request, sequence)
    preempted = False
    while simulation.scheduler.live:
        before = simulation.scheduler.running
        simulation.step()
        preempted |= simulation.scheduler.running < before and not any(queue and queue[-1].finish for queue in simulation.events.values())
    assert preempted
    for request, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[request, 0], sequence)


def test_min_tokens_hold_the_end_back_and_ignore_eos_goes_on_after_it() -> None:
    soon: dict[str, Any] = {"logit_bias": ((EOS, 20.0),)}
    assert tokens(generate(**soon)) == [EOS]
    assert tokens(generate(min_tokens=7, **soon))[7:] == [EOS]
    events = generate(ignore_eos=True, **soon)
    assert (tokens(events), events[-1].finish) == ([EOS] * 30, Finish.LENGTH)
    assert {event.piece for event in events} == {b""}
    assert EOS not in tokens(generate(ignore_eos=True, min_tokens=9, **soon))[:9]


def test_a_stop_token_ends_a_sequence_like_the_end_and_shows_no_text() -> None:
    (first, second, *_) = tokens(generate())
    events = generate(stop_token_ids=(second,))
    assert tokens(events) == [first, second]
    assert (events[-1].finish, events[-1].piece) == (Finish.EOS, b"")
    later = tokens(generate(stop_token_ids=(second,), min_tokens=4))
    assert len(later) > 4
    assert second not in later[:4]


def test_a_sequence_whose_controls_come_to_ban_everything_ends_with_an_error_and_its_neighbour_goes_on() -> None:
    neighbour = prepared(TEXT, 12, seed=3, temperature=1.0)
    stuck = replace(prepared(TEXT, 12, allowed_token_ids=(97,)), bad_words=((97, 97),))
    simulation = Simulation()
    simulation.add(0, stuck)
    simulation.add(1, neighbour)
    simulation.finish()
    assert tokens(simulation.events[0, 0]) == [97]
    assert simulation.events[0, 0][-1].finish is Finish.ERROR
    assert simulation.events[0, 0][-1].error.endswith("ban every token that could come next: allowed_token_ids, bad_words.")
    assert_as_alone(simulation.events[1, 0], neighbour)


def test_log_probabilities_are_the_models_own_whatever_the_controls() -> None:
    """One token is forced at a time, so that both choose among the same prefixes."""
    free = generate(12, logprobs=3)
    forced = generate(12, logprobs=3, temperature=0.3, top_k=2, repetition_penalty=1.5, logit_bias=((tokens(free)[0], 100.0),))
    assert (forced[0].logprob, forced[0].top) == (free[0].logprob, free[0].top)
    biased = generate(1, logprobs=3, logit_bias=((0, 100.0),), temperature=2.0)
    assert biased[0].token == 0
    assert biased[0].logprob is not None
    assert biased[0].logprob < -5
    assert biased[0].top == free[0].top
