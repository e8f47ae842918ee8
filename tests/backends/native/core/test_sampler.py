"""Each control by its formula, on rows small enough to work out by hand, and the order that the steps have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.reference import sampling_twin as twin
from tests.reference.core_sampling import distribution, draw, draw_many, sampler

from quintet import _core, _core_testing
from quintet.backends.native.core.types import Outcome

F32 = npt.NDArray[np.float32]
LN2 = math.log(2)


def row(*values: float) -> F32:
    return np.array(values, np.float32)


def halves(count: int) -> F32:
    """Logits of the probabilities 1/2, 1/4, 1/8 ..., the last one twice."""
    return row(*(-LN2 * min(i + 1, count - 1) for i in range(count)))


def probabilities(logits: F32, prompt: Sequence[int] = (), output: Sequence[int] = (), **controls: Any) -> dict[int, float]:
    return distribution(sampler(len(logits), prompt, output, **controls), logits)


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def assert_softmax(found: dict[int, float], logits: Sequence[float]) -> None:
    expected = {i: p for i, p in enumerate(softmax(logits)) if p > 0}
    assert found == pytest.approx(expected, abs=1e-6)


# ---- controls that change logits


def test_repetition_penalty_divides_positive_logits_and_multiplies_others_of_prompt_and_output_alike() -> None:
    found = probabilities(row(2.0, -1.0, 1.0, 0.0), prompt=[0, 0], output=[1], repetition_penalty=2.0)
    assert_softmax(found, [1.0, -2.0, 1.0, 0.0])


def test_frequency_and_presence_penalties_count_the_output_only() -> None:
    found = probabilities(row(1.0, 1.0, 1.0, 1.0), prompt=[3, 3], output=[0, 0, 1], frequency_penalty=0.5, presence_penalty=0.25)
    assert_softmax(found, [1 - 2 * 0.5 - 0.25, 1 - 0.5 - 0.25, 1.0, 1.0])


def test_a_bias_is_added_and_at_its_bounds_bans_or_forces() -> None:
    logits = row(1.0, 2.0, 3.0)
    assert_softmax(probabilities(logits, logit_bias=[(0, 1.5), (2, -0.5)]), [2.5, 2.0, 2.5])
    assert_softmax(probabilities(logits, logit_bias=[(2, -100.0)]), [1.0, 2.0, -np.inf])
    assert_softmax(probabilities(logits, logit_bias=[(0, 100.0), (1, 100.0), (2, 99.0)]), [1.0, 2.0, -np.inf])


def test_a_forced_token_that_is_banned_forces_nothing() -> None:
    assert probabilities(row(1.0, 1.0, 1.0), logit_bias=[(0, 100.0)], allowed_token_ids=[1, 2]) == pytest.approx({1: 0.5, 2: 0.5})
    held_back = probabilities(row(1.0, 1.0, 1.0), logit_bias=[(0, 100.0)], eos_ids=[0], min_tokens=1)
    assert held_back == pytest.approx({1: 0.5, 2: 0.5})


def test_only_allowed_tokens_are_drawn() -> None:
    assert_softmax(probabilities(row(5.0, 1.0, 2.0, 9.0), allowed_token_ids=[1, 2]), [-np.inf, 1.0, 2.0, -np.inf])


def test_the_last_token_of_a_bad_word_is_banned_after_the_others_in_the_output() -> None:
    logits, words = row(0, 0, 0, 0), [[3], [0, 1], [0, 0, 2]]
    outputs: list[list[int]] = [[], [0], [0, 0], [0, 0, 1]]
    banned = [sorted({0, 1, 2, 3} - probabilities(logits, [0, 0], output, bad_words=words).keys()) for output in outputs]
    assert banned == [[3], [1, 3], [1, 2, 3], [3]]


def test_a_mask_bans_where_its_bit_is_0_whatever_is_past_the_vocabulary() -> None:
    logits = np.zeros(35, np.float32)
    for rest in (0, 0xFFFFFFF8):
        mask = np.array([0b1001, 0b010 | rest], np.uint32)
        assert sorted(distribution(sampler(35), logits, mask=mask)) == [0, 3, 33]


@pytest.mark.parametrize("vocab", [1, 31, 32, 64, 70])
def test_a_mask_of_zeros_is_no_way_on_whatever_is_past_the_vocabulary_and_whatever_the_logits_are(vocab: int) -> None:
    past = 2**32 - 2 ** (vocab % 32) if vocab % 32 else 0
    mask = np.array([*[0] * (vocab // 32), *([past] if vocab % 32 else [])], np.uint32)
    for logit in (0.0, np.nan):
        assert draw(np.full(vocab, logit, np.float32), mask=mask) == Outcome.NO_WAY_ON


def test_a_mask_of_ones_changes_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=70).astype(np.float32)
    mask = np.array([2**32 - 1, 2**32 - 1, 0b111111], np.uint32)
    assert distribution(sampler(70), logits, mask=mask) == distribution(sampler(70), logits)


# ---- two sentences of Fireworks' page


def test_min_probability_is_a_probability_and_the_likeliest_stays() -> None:
    """Page: "Only tokens with probability >= min_p are considered for selection." """
    half, quarter, eighths = np.log([0.5]), np.log([0.25]), np.log([0.125, 0.125])
    logits = np.concatenate([half, quarter, eighths]).astype(np.float32)
    kept = {p: sorted(probabilities(logits, min_probability=p)) for p in (0.1, 0.2, 0.3, 0.6)}
    assert kept == {0.1: [0, 1, 2, 3], 0.2: [0, 1], 0.3: [0], 0.6: [0]}
    assert sorted(probabilities(logits, min_p=0.4)) == [0, 1], "relative to the likeliest, as other servers have it"
    assert sorted(probabilities(logits, top_k=2, min_probability=0.3)) == [0, 1], "of what the step before left: 2/3 and 1/3"


def test_typical_within_does_not_exceed_the_mass_and_the_most_typical_stays() -> None:
    """Page: "the most typical tokens whose cumulative probability is at most typical_p"."""
    logits = np.log([0.5, 0.25, 0.125, 0.125]).astype(np.float32)  # entropy 1.75 bits; by |surprise - entropy|: 1, 0, 2, 3
    kept = {
        p: [sorted(probabilities(logits, typical_p=p, typical_within=within)) for within in (False, True)] for p in (0.1, 0.5, 0.8, 0.95)
    }
    assert kept == {0.1: [[1], [1]], 0.5: [[0, 1], [1]], 0.8: [[0, 1, 2], [0, 1]], 0.95: [[0, 1, 2, 3], [0, 1, 2]]}


# ---- the ends of a sequence


def test_ends_are_held_back_for_min_tokens() -> None:
    logits = row(9.0, 9.0, 1.0)
    ends: dict[str, Any] = {"eos_ids": [0], "stop_token_ids": [1]}
    assert sorted(probabilities(logits, min_tokens=2, output=[2], **ends)) == [2]
    assert sorted(probabilities(logits, min_tokens=2, output=[2, 2], **ends)) == [0, 1, 2]


def test_ends_are_not_held_back_where_nothing_else_is_left() -> None:
    """A guide that is complete, say, allows nothing but the end."""
    ends: dict[str, Any] = {"eos_ids": [0], "stop_token_ids": [1], "min_tokens": 5}
    assert sorted(probabilities(row(1.0, 9.0, 5.0), allowed_token_ids=[0], **ends)) == [0]
    assert sorted(probabilities(row(1.0, 9.0, 5.0), logit_bias=[(2, -100.0)], **ends)) == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_in_which_everything_is_banned_gives_no_token_and_its_neighbours_are_as_alone(temperature: float) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 9000)).astype(np.float32)

    def made(bans: bool) -> _core.Sampler:
        controls: dict[str, Any] = {"allowed_token_ids": [7], "logit_bias": [(7, -100.0)]} if bans else {}
        return sampler(9000, temperature=temperature, **controls)

    tokens = draw_many(logits, [made(False), made(True), made(False)], [0, 0, 0]).tolist()
    assert tokens[1] == Outcome.NOTHING_LEFT
    assert [tokens[0], tokens[2]] == [draw(logits[i], temperature=temperature) for i in (0, 2)]
    assert distribution(made(True), logits[1]) == {}


# ---- DRY

ABC = [b"a", b"b", b"c", b"\n", b"b\n", b"x"]


def dry(tokens: Sequence[int], vocabulary: Sequence[bytes] = ABC, prompt: Sequence[int] = (), **controls: Any) -> dict[int, float]:
    """Token -> what DRY takes from its logit, of those that it penalises. Multiplier 1, base 2, allowed length 2 unless told otherwise."""
    given = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 2, **controls}
    made = sampler(_core.Pieces(list(vocabulary)), prompt, tokens, **given)
    found = distribution(made, np.zeros(len(vocabulary), np.float32))
    base = max(found.values())
    return {token: round(math.log(base / p), 4) for token, p in found.items() if p < base * 0.999}


def test_dry_penalises_what_would_go_on_with_a_repetition_and_more_the_longer_it_is() -> None:
    a, b, c, x = 0, 1, 2, 5
    assert dry([a, b, c, a]) == {}
    assert dry([a, b, c, a, b]) == {c: 1.0}
    assert dry([x, a, b, c, x, a, b]) == {c: 2.0}
    assert dry([x, a, b, c, b, x, a, b, c]) == {b: 4.0}
    assert dry([a, a, a, a]) == {a: 2.0}


def test_dry_looks_at_the_prompt_too_and_no_further_back_than_its_range() -> None:
    a, b, c = 0, 1, 2
    assert dry([a, b], prompt=[a, b, c]) == {c: 1.0}
    assert dry([a, b], prompt=[a, b, c], dry_range=5) == {c: 1.0}
    assert dry([a, b], prompt=[a, b, c], dry_range=4) == {}
    assert dry([a, b], prompt=[a, b, c], dry_range=0) == {}


def test_of_several_repetitions_the_longest_counts() -> None:
    a, b, c, x = 0, 1, 2, 5
    assert dry([x, a, b, c, b, a, b, c, x, x, a, b]) == {c: 2.0}


@pytest.mark.parametrize("newline", [3, 4], ids=["a token", "inside a token"])
def test_a_run_does_not_extend_over_a_breaker(newline: int) -> None:
    a, b, c = 0, 1, 2
    text = [a, newline, b, c, a, newline, b]
    assert dry(text, dry_breakers=[b"\n"]) == {}
    assert dry(text) == {c: 2.0}
    assert dry([*text, c], dry_breakers=[b"\n"]) == {a: 1.0}
    assert dry([a, b, newline, a, b], dry_breakers=[b"\n"]) == {}, "the breaker itself is not penalised"


def test_a_breaker_may_span_tokens() -> None:
    a, b, c, x = 0, 1, 2, 5
    text = [x, a, b, c, x, a, b]
    assert dry(text) == {c: 2.0}
    assert dry(text, dry_breakers=[b"xa"]) == {}
    assert dry(text, dry_breakers=[b"ax", b"cab"]) == {c: 2.0}


def test_breakers_are_found_however_alike_they_are() -> None:
    """Each begins as others go on or end; after what is none of them to the end, one that began later is found."""
    a, b, c, x = 0, 1, 2, 5
    text = [x, a, a, b, c, x, a, a, b]
    for breakers in ([b"aac", b"ab"], [b"aabb", b"aab"], [b"xaac", b"aac", b"b"], [b"ab", b"aab", b"xaab"], [b"aac", b"abc", b"b", b"b"]):
        assert dry(text, dry_breakers=breakers) == {}, breakers
    assert dry(text, dry_breakers=[b"aac", b"ba", b"bcb"]) == {c: 4.0}
    assert dry([*text, c], dry_breakers=[b"aac", b"ab"]) == {}, "the run is of one token"
    assert dry([*text, c, x], dry_breakers=[b"aac", b"ab"]) == {a: 1.0}


def test_a_long_repetition_bans_and_does_not_overflow() -> None:
    assert set(dry([0] * 3000)) | {0} == {0}
    made = sampler(_core.Pieces(ABC), (), [0] * 3000, dry_multiplier=1000.0, dry_base=100.0, temperature=0.0)
    assert draw_many(np.zeros(6, np.float32) + row(5, 0, 0, 0, 0, 0), [made], [0])[0] == 1


# ---- controls that drop tokens


def test_top_n_sigma_keeps_logits_near_the_largest_whatever_the_temperature() -> None:
    logits = row(4.0, 2.0, 0.0, -2.0, -np.inf)  # deviation: the root of 5
    for temperature in (0.5, 1.0, 2.0):
        assert sorted(probabilities(logits, top_n_sigma=1.0, temperature=temperature)) == [0, 1]
        assert sorted(probabilities(logits, top_n_sigma=2.0, temperature=temperature)) == [0, 1, 2]


def test_top_k_keeps_the_k_largest_ties_by_lower_id() -> None:
    logits = row(1.0, 3.0, 1.0, 2.0, 1.0)
    kept = [sorted(probabilities(logits, top_k=k)) for k in (1, 2, 3, 4, 5, 9)]
    assert kept == [[1], [1, 3], [0, 1, 3], [0, 1, 2, 3], *[[0, 1, 2, 3, 4]] * 2]


def test_typical_p_keeps_what_is_least_surprisingly_surprising() -> None:
    """Surprises of 1, 2, 3 and 3 bits, entropy 1.75 bits: the second token is closest, then the first, then the rest."""
    kept = [sorted(probabilities(halves(4), typical_p=p)) for p in (0.2, 0.26, 0.74, 0.76, 0.9)]
    assert kept == [[1], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_top_p_keeps_tokens_until_the_mass_before_one_reaches_it() -> None:
    assert [sorted(probabilities(halves(4), top_p=p)) for p in (0.0, 0.49, 0.51, 0.74, 0.76)] == [[0], [0], [0, 1], [0, 1], [0, 1, 2]]


def test_min_p_is_relative_to_the_likeliest_token() -> None:
    assert [sorted(probabilities(halves(4), min_p=p)) for p in (0.2, 0.3, 0.6, 1.0)] == [[0, 1, 2, 3], [0, 1], [0], [0]]


def test_xtc_excludes_all_but_the_least_likely_of_the_top_choices() -> None:
    assert probabilities(halves(4), xtc_probability=1.0, xtc_threshold=0.2) == pytest.approx({1: 0.5, 2: 0.25, 3: 0.25})
    assert probabilities(halves(4), xtc_probability=1.0, xtc_threshold=0.3) == pytest.approx({0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125})
    assert sorted(probabilities(row(0.0, 0.0, -9.0), xtc_probability=1.0, xtc_threshold=0.1)) == [1, 2]


@pytest.mark.parametrize("top_k", [0, 4])
def test_what_xtc_leaves_can_be_drawn(top_k: int) -> None:
    """At a threshold of 0 it left a token whose mass is too small for a number, and the likeliest was drawn, which it had excluded."""
    assert probabilities(row(0.0, -1.0, -2.0, -200.0), top_k=top_k, xtc_probability=1.0, xtc_threshold=0.0) == pytest.approx({2: 1.0})


def test_xtc_strikes_as_often_as_its_probability_says_by_a_number_of_its_own() -> None:
    made = sampler(4, xtc_probability=0.3, xtc_threshold=0.2, seed=11)
    struck = [0 not in distribution(made, halves(4), position) for position in range(4000)]
    assert struck == [twin.uniform(11, position, 1) < np.float32(0.3) for position in range(4000)]
    assert abs(sum(struck) / 4000 - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 4000)


# ---- Mirostat 2


def test_mirostat_drops_what_is_more_surprising_than_its_bound_and_never_everything() -> None:
    assert sorted(probabilities(halves(5), mirostat_target=1.01)) == [0, 1], "the bound begins at twice the target: 2.02 bits"
    assert sorted(probabilities(halves(5), mirostat_target=1.6)) == [0, 1, 2]
    assert sorted(probabilities(halves(5), mirostat_target=0.1)) == [0]


def test_mirostat_learns_the_surprise_of_the_token_it_drew_before_any_was_dropped() -> None:
    made = sampler(5, mirostat_target=1.01, mirostat_lr=0.5)
    token = int(draw_many(halves(5), [made], [3])[0])
    made.accept(token)
    bits = token + 1
    assert _core_testing.surprise_bound(made) == pytest.approx(2.02 - 0.5 * (bits - 1.01), abs=1e-6)


def test_mirostat_learns_nothing_from_a_token_that_was_not_drawn() -> None:
    made = sampler(5, mirostat_target=1.0)
    token = int(draw_many(halves(5), [made], [3])[0])
    made.accept((token + 1) % 5)
    assert _core_testing.surprise_bound(made) == 2.0


def test_mirostats_average_surprise_approaches_the_target() -> None:
    """The bound is what it began with less lr times the sum of all errors, and it stays bounded: so the mean error goes to 0."""
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=(600, 2000)) * 3).astype(np.float32)
    made, surprises = sampler(2000, mirostat_target=4.0, mirostat_lr=0.1, seed=9), []
    for position in range(600):
        token = int(draw_many(rows[position], [made], [position])[0])
        surprises.append(-twin.log_softmax(rows[position])[token] / LN2)
        made.accept(token)
    assert np.mean(surprises) == pytest.approx(4.0, abs=0.2)
    assert np.mean(surprises) - 4.0 == pytest.approx((8.0 - _core_testing.surprise_bound(made)) / (0.1 * 600), abs=1e-3)


# ---- what every control has in common


def test_controls_work_greedily_too() -> None:
    logits = row(3.0, 2.5, 2.0)
    assert draw(logits, temperature=0.0, logit_bias=[(2, 1.5)]) == 2
    made = sampler(3, [], [0], temperature=0.0, presence_penalty=1.0)
    assert draw_many(logits, [made], [1])[0] == 1
    assert draw(logits, temperature=0.0, top_k=1, min_p=1.0, mirostat_target=1.0, xtc_probability=1.0, xtc_threshold=0.1) == 0


REMEMBER: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "bad_words": [[0, 1], [2]], "min_tokens": 2, "eos_ids": [3]},
    {"dry_multiplier": 2.0, "dry_breakers": [b"ab", b"\n"], "logit_bias": [(0, 2.0)], "allowed_token_ids": [0, 1, 2, 3]},
    {"mirostat_target": 1.5, "mirostat_lr": 0.5},
]


@pytest.mark.parametrize("controls", REMEMBER, ids=str)
@pytest.mark.parametrize("drew", [False, True])
def test_a_fork_is_as_one_made_with_its_seed(controls: dict[str, Any], drew: bool) -> None:
    """Also if the one that it is of has drawn a token; and what either accepts is nothing to the other."""
    known, prompt = _core.Pieces(ABC), [0, 1, 2, 0, 1, 3, 0, 1]
    logits = np.random.default_rng(3).normal(size=(40, len(ABC))).astype(np.float32)

    def run(made: _core.Sampler) -> list[tuple[int, dict[int, float]]]:
        drawn = []
        for position, row_of in enumerate(logits, len(prompt)):
            likely = distribution(made, row_of, position)
            drawn.append((int(draw_many(row_of, [made], [position])[0]), likely))
            made.accept(drawn[-1][0])
        return drawn

    first, one, two = (sampler(known, prompt, seed=seed, **controls) for seed in (1, 1, 2))
    if drew:
        draw_many(logits[0], [first], [len(prompt)])
    second = first.fork(2)
    found = [run(first), run(second)]
    assert found == [run(one), run(two)]
    assert found[0] != found[1]


def test_a_sampler_that_has_accepted_a_token_cannot_be_forked() -> None:
    with pytest.raises(ValueError, match="accepted"):
        sampler(4, (), [1]).fork(2)


def test_a_sampler_draws_for_one_row_at_a_time() -> None:
    made = sampler(4)
    with pytest.raises(ValueError, match="one row at a time"):
        draw_many(halves(4), [made, made], [0, 1])
    assert 0 <= draw_many(halves(4), [made], [0])[0] < 4, "and is free again"


@pytest.mark.parametrize(
    "controls",
    [
        *({"logit_bias": [(4, 1.0)]}, {"logit_bias": [(-1, 1.0)]}, {"logit_bias": [(0, 101.0)]}, {"logit_bias": [(0, math.nan)]}),
        *({"allowed_token_ids": [4]}, {"stop_token_ids": [-1]}, {"eos_ids": [4]}, {"bad_words": [[0, 4]]}, {"bad_words": [[]]}),
        *({"top_p": 1.5}, {"top_p": math.nan}, {"min_p": -0.1}, {"typical_p": 2.0}, {"xtc_threshold": math.inf}),
        *({"repetition_penalty": 0.0}, {"repetition_penalty": math.inf}, {"frequency_penalty": math.nan}, {"presence_penalty": math.inf}),
        *({"dry_multiplier": -1.0}, {"dry_base": 0.5}, {"dry_allowed_length": 0}, {"dry_breakers": [b""]}),
        *({"mirostat_target": -1.0}, {"mirostat_lr": math.nan}, {"top_n_sigma": math.inf}),
    ],
    ids=str,
)
def test_what_no_formula_takes_is_refused_when_the_sampler_is_made(controls: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        sampler(4, **controls)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        sampler(4, [4], repetition_penalty=2.0)
    for token in (-1, 4):
        with pytest.raises(ValueError, match="out of range"):
            sampler(4).accept(token)
    with pytest.raises(ValueError, match="vocabulary"):
        draw_many(halves(5), [sampler(4)], [0])
