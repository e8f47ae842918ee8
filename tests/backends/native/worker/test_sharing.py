"""What sequences share: a prompt computed once, pages found again, hidden rows kept for prompt scores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.backends.native.schedule.harness import Simulation, assert_as_alone, prepared, run_all, told
from tests.backends.native.schedule.plain_samplers import PlainSampler, PlainSamplers

from quintet.backends.native.core.loader import PAGE
from quintet.request import Sampling

TEXT = bytes(range(97, 123)) * 8


# ---- forks


def test_samples_of_a_prompt_compute_it_once() -> None:
    simulation = Simulation(caching=False)
    samples = [prepared(TEXT[:40], 5, temperature=1.0, seed=seed) for seed in range(8)]
    simulation.add(0, *samples)
    assert run_all(simulation) == 40 + sum(len(simulation.events[0, index]) - 1 for index in range(8))
    for index, sample in enumerate(samples):
        assert_as_alone(simulation.events[0, index], sample)
    assert len({tuple(told(simulation.events[0, index])) for index in range(8)}) > 4


def test_equal_prompts_of_one_request_are_computed_once_and_those_of_others_are_not_shared() -> None:
    simulation = Simulation(caching=False)
    simulation.add(0, prepared(TEXT[:40], 1), prepared(b"other", 1), prepared(TEXT[:40], 1))
    simulation.add(1, prepared(TEXT[:40], 1))
    assert run_all(simulation) == 40 + 5 + 40


class Counted(PlainSamplers):
    """How often one was made of a prompt."""

    made = 0

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> PlainSampler:
        self.made += 1
        return super().make(sampling, bad_words, prompt)


def test_samples_that_begin_together_make_one_sampler_of_their_prompt() -> None:
    """What it takes to read a long prompt and long lists 64 times is more than a step may."""
    samplers = Counted()
    simulation = Simulation(caching=False, samplers=samplers)
    samples = [prepared(TEXT[:40], 5, temperature=1.0, seed=seed, presence_penalty=0.5) for seed in range(8)]
    simulation.add(0, *samples)
    simulation.finish()
    assert samplers.made == 1
    for index, sample in enumerate(samples):
        assert_as_alone(simulation.events[0, index], sample)


def test_samples_that_are_chosen_otherwise_do_not_share_a_sampler() -> None:
    samplers = Counted()
    simulation = Simulation(caching=False, samplers=samplers)
    samples = [prepared(TEXT[:40], 5, temperature=1.0, seed=seed, presence_penalty=seed % 2) for seed in range(4)]
    simulation.add(0, *samples)
    simulation.finish()
    assert samplers.made == 4
    for index, sample in enumerate(samples):
        assert_as_alone(simulation.events[0, index], sample)


def test_samples_that_found_no_slot_start_from_the_kept_prompt() -> None:
    simulation = Simulation(caching=False, max_running=2)
    samples = [prepared(TEXT[:40], 6, temperature=1.0, seed=seed) for seed in range(7)]
    simulation.add(0, *samples)
    assert run_all(simulation) == 40 + sum(len(simulation.events[0, index]) - 1 for index in range(7))
    for index, sample in enumerate(samples):
        assert_as_alone(simulation.events[0, index], sample)


@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_when_the_sequence_that_computes_for_others_is_aborted_another_takes_over(steps: int) -> None:
    simulation = Simulation(caching=False, batch_tokens=8)
    samples = [prepared(TEXT[:40], 4, temperature=1.0, seed=seed, logprobs=0, echo=True) for seed in range(3)]
    simulation.add(0, *samples)
    for _ in range(steps):
        simulation.step()
    simulation.abort(0, 0)
    simulation.finish()
    for index in (1, 2):
        assert_as_alone(simulation.events[0, index], samples[index])


# ---- prefix cache


def test_a_known_prefix_is_not_computed_again_and_is_told_as_cached() -> None:
    simulation = Simulation()
    for request, prompt in enumerate([TEXT[:50], TEXT[:50] + b"more", TEXT[:48], TEXT[:49], b"x" + TEXT]):
        simulation.add(request, prepared(prompt, 1))
        computed = run_all(simulation)
        cached = simulation.events[request, 0][-1].cached_tokens
        assert cached == [0, 48, 32, 48, 0][request], "whole pages only, and one token is left to draw from"
        assert computed == len(prompt) - cached
    assert (simulation.scheduler.queried, simulation.scheduler.found) == (50 + 54 + 48 + 49 + len(TEXT) + 1, 48 + 32 + 48)


def test_what_is_computed_behind_a_cached_beginning_is_found_too() -> None:
    simulation = Simulation()
    for request, (length, cached) in enumerate([(40, 0), (100, 32), (100, 96)]):
        simulation.add(request, prepared(TEXT[:length], 1))
        simulation.finish()
        assert simulation.events[request, 0][-1].cached_tokens == cached


def test_pages_that_somebody_holds_cost_a_newcomer_nothing() -> None:
    """There are two pages beside those of the first: one for the newcomer's own tokens, one for the next of the first."""
    simulation = Simulation(pages=11)
    simulation.add(0, prepared(TEXT[:130], 10, ignore_eos=True))
    simulation.step()
    simulation.step()
    simulation.step()
    simulation.add(1, prepared(TEXT[:128] + b"other", 2, ignore_eos=True))
    simulation.step()
    assert simulation.scheduler.running == 2


@pytest.mark.fault("G05")
def test_another_salt_shares_nothing() -> None:
    """Else the time to the first token would tell one tenant what another asked."""
    simulation = Simulation()
    for request, salt in enumerate([b"one", b"two", b"", b"one"]):
        simulation.add(request, prepared(TEXT[:50], 1), salt=salt)
        simulation.finish()
    assert [simulation.events[request, 0][-1].cached_tokens for request in range(4)] == [0, 0, 0, 48]


def test_generated_tokens_are_found_again_as_part_of_a_longer_prompt() -> None:
    simulation = Simulation()
    simulation.add(0, prepared(TEXT[:30], 40))
    simulation.finish()
    answer = bytes(event.token for event in simulation.events[0, 0] if event.token < 256)
    follow_up = prepared(TEXT[:30] + answer + b"!", 4)
    simulation.add(1, follow_up)
    simulation.finish()
    assert simulation.events[1, 0][-1].cached_tokens == (30 + len(answer) - 1) // PAGE * PAGE
    assert_as_alone(simulation.events[1, 0], follow_up)


@pytest.mark.parametrize("max_running", [2, 1])
def test_what_a_sample_draws_from_a_prompt_that_another_computed_is_found_again(max_running: int) -> None:
    """Whether it starts beside that one, or later from what was kept."""
    simulation = Simulation(max_running=max_running)
    simulation.add(0, *[prepared(TEXT[:30], 40, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(2)])
    simulation.finish()
    for index in range(2):
        text = [*TEXT[:30], *(event.token for event in simulation.events[0, index])]
        simulation.add(1 + index, prepared(text, 1))
        simulation.finish()
        assert simulation.events[1 + index, 0][-1].cached_tokens == 64


def test_prompt_scores_of_cached_tokens_need_no_forward_pass() -> None:
    simulation = Simulation()
    simulation.add(0, prepared(TEXT[:64] + b"first", 0, logprobs=1, echo=True))
    assert run_all(simulation) == 68
    second = prepared(TEXT[:64] + b"second", 0, logprobs=1, echo=True)
    simulation.add(1, second)
    assert run_all(simulation) == 5, "the last token's row is not needed"
    assert_as_alone(simulation.events[1, 0], second)


def test_pages_without_hidden_rows_are_of_no_use_for_prompt_scores_until_one_that_has_them_replaces_them() -> None:
    simulation = Simulation()
    scored = prepared(TEXT[:65], 0, logprobs=0, echo=True)
    simulation.add(0, prepared(TEXT[:65], 1))
    run_all(simulation)
    for request, expected in ((1, 64), (2, 0)):
        simulation.add(request, scored)
        assert run_all(simulation) == expected
        assert_as_alone(simulation.events[request, 0], scored)


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("length", [PAGE - 1, PAGE, PAGE + 1])
def test_the_row_of_a_prompts_last_token_may_not_be_stored_and_is_never_taken_for_one_that_is(steps: int, length: int) -> None:
    """Who takes over from one that was aborted computes the last token after all scores were told, and stores nothing of it."""
    simulation = Simulation(batch_tokens=1)
    samples = [prepared(TEXT[:length], 4, temperature=1.0, seed=seed, logprobs=1, echo=True) for seed in range(2)]
    simulation.add(0, *samples)
    for _ in range(steps):
        simulation.step()
    simulation.abort(0, 0)
    simulation.finish()
    longer = prepared(TEXT[: length + 20], 4, logprobs=1, echo=True)
    simulation.add(1, longer)
    simulation.finish()
    assert_as_alone(simulation.events[0, 1], samples[1])
    assert_as_alone(simulation.events[1, 0], longer)


@pytest.mark.fault("B19")
def test_idle_cached_pages_give_way_to_a_large_request() -> None:
    simulation = Simulation(pages=12)
    for request in range(6):
        simulation.add(request, prepared(bytes([request + 65]) + TEXT[:60], 1))
        simulation.finish()
    large = prepared(TEXT[:150], 30)
    simulation.add(9, large)
    simulation.finish()
    assert_as_alone(simulation.events[9, 0], large)
