"""Scoring and sampling in the native core, against the numpy twin and against exact probabilities."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tests.reference import sampling_twin as twin
from tests.reference.core_sampling import CPU, draw, draw_many, pieces, sampler

from quintet import _core, _core_testing
from quintet.backends.native.core.types import Outcome

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

VOCABS = [1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 1025, 49152]
ZERO_DRAW = (0, 14883995)
"""Seed and position whose uniform is exactly 0."""
LARGEST_DRAW = (0, 38471471)
"""Seed and position whose uniform is the largest, 1 - 2^-24."""

HALF_DRAW = (0, 9297664)
"""Seed and position whose uniform is exactly 1/2."""

u64 = st.integers(0, 2**64 - 1)
vocabs = st.one_of(st.sampled_from(VOCABS[:-1]), st.integers(1, 3000))
temperatures = st.one_of(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.floats(0.0625, 3.0, width=32))
top_ps = st.one_of(st.sampled_from([0.0, 0.5, 0.875, 1.0]), st.floats(0.0, 1.0, width=32))


def normal_logits(vocab: int, seed: int, spread: float = 3.0) -> F32:
    return (np.random.default_rng(seed).normal(size=vocab) * spread).astype(np.float32)


def sample(logits: F32, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0, position: int = 0) -> int:
    return draw(logits, position, temperature=temperature, top_p=top_p, seed=seed)


def sample_many(logits: F32, temperature: float, top_p: float, seeds: Sequence[int], positions: Sequence[int]) -> I32:
    """One row of logits, drawn from once per seed and position."""
    known = pieces(len(logits))
    return draw_many(logits, [sampler(known, temperature=temperature, top_p=top_p, seed=seed) for seed in seeds], positions)


def score(logits: F32, target: int, k: int) -> tuple[float, I32, F32]:
    chosen, ids, top, _ = CPU.score(logits[None], np.array([target], np.int32), k)
    return float(chosen[0]), ids[0], top[0]


# ---- Philox


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_twins_philox_gives_random123s_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], answer: object) -> None:
    assert twin.philox(counter, key) == answer


@given(seed=u64, position=u64)
def test_uniform_is_philox_keyed_by_seed_at_position(seed: int, position: int) -> None:
    assert _core_testing.uniform(seed, position, 0) == twin.uniform(seed, position)


def test_uniform_covers_its_range_and_never_reaches_one() -> None:
    assert _core_testing.uniform(*ZERO_DRAW, 0) == 0.0
    assert _core_testing.uniform(*HALF_DRAW, 0) == 0.5
    assert _core_testing.uniform(*LARGEST_DRAW, 0) == 1 - 2.0**-24


# ---- scores


@given(vocab=vocabs, seed=st.integers(0, 2**32), spread=st.floats(0.0, 30.0), data=st.data())
@settings(deadline=None)
def test_scores_are_the_log_softmax_and_its_largest_entries(vocab: int, seed: int, spread: float, data: st.DataObject) -> None:
    logits = normal_logits(vocab, seed, spread)
    target, k = data.draw(st.integers(0, vocab - 1)), data.draw(st.integers(0, min(vocab, 25)))
    expected = twin.log_softmax(logits)
    chosen, ids, top = score(logits, target, k)
    np.testing.assert_allclose(chosen, expected[target], rtol=3e-7, atol=1e-6)
    np.testing.assert_array_equal(ids, twin.ranking(logits)[:k])
    np.testing.assert_allclose(top, expected[ids], rtol=3e-7, atol=1e-6)
    assert chosen <= 0
    assert (top <= 0).all()


@pytest.mark.parametrize("vocab", [49152, 152064])
def test_scores_are_accurate_over_a_whole_vocabulary(vocab: int) -> None:
    logits = normal_logits(vocab, vocab)
    chosen, ids, top = score(logits, 7, 20)
    expected = twin.log_softmax(logits)
    np.testing.assert_array_equal(ids, twin.ranking(logits)[:20])
    np.testing.assert_allclose([chosen, *top], expected[[7, *ids]], rtol=0, atol=2e-6)


@given(values=st_numpy.arrays(np.float32, st.integers(1, 200), elements=st.sampled_from([-1.0, 0.0, 2.0])), data=st.data())
@settings(deadline=None)
def test_equal_logits_rank_by_lower_id(values: F32, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    np.testing.assert_array_equal(score(values, 0, k)[1], twin.ranking(values)[:k])


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_rows_give_the_same_top(order: int) -> None:
    logits = np.sort(normal_logits(1000, 4))[::order].copy()
    np.testing.assert_array_equal(score(logits, 0, 20)[1], twin.ranking(logits)[:20])


def test_a_score_does_not_depend_on_the_other_rows() -> None:
    logits = np.stack([normal_logits(700, seed) for seed in range(5)])
    targets = np.arange(5, dtype=np.int32)
    chosen, ids, top, log_sums = CPU.score(logits, targets, 4)
    np.testing.assert_array_equal((logits[range(5), targets] - log_sums).astype(np.float32), chosen)  # in double precision, rounded once
    for row in range(5):
        alone = CPU.score(logits[row : row + 1].copy(), targets[row : row + 1], 4)
        assert (chosen[row], ids[row].tolist(), top[row].tolist()) == (alone[0][0], alone[1][0].tolist(), alone[2][0].tolist())


@pytest.mark.parametrize(("target", "k"), [(-1, 1), (10, 1), (0, 11), (0, -1)])
def test_targets_and_counts_outside_the_vocabulary_are_refused(target: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        score(normal_logits(10, 0), target, k)


# ---- one token


@given(vocab=vocabs, row=st.integers(0, 2**32), spread=st.floats(0.0, 12.0), t=temperatures, p=top_ps, seed=u64, position=u64)
@settings(max_examples=300, deadline=None)
def test_the_token_is_the_twins(vocab: int, row: int, spread: float, t: float, p: float, seed: int, position: int) -> None:
    """Where no comparison was decided by less than 1e-5 of the mass, float rounding cannot change the token."""
    logits = normal_logits(vocab, row, spread)
    expected = twin.sample(logits, twin.TwinSampler({"temperature": t, "top_p": p, "seed": seed}), position)
    if expected.margin > 1e-5:
        assert sample(logits, t, p, seed, position) == expected.token


@pytest.mark.parametrize("vocab", [49152, 152064])
@pytest.mark.parametrize(
    ("t", "p", "spread"),
    [(0.8, 0.95, 3.0), (0.8, 0.999, 3.0), (2.0, 0.99, 3.0), (1.0, 1.0, 3.0), (1.0, 0.9, 0.01), (0.7, 0.51, 0.0)],
)
def test_whole_vocabularies_agree_with_the_twin(vocab: int, t: float, p: float, spread: float) -> None:
    """At this width boundaries lie closer than rounding: the cumulative mass at the token must bracket the draw instead."""
    logits = normal_logits(vocab, vocab, spread)
    kept, probabilities = twin.kept_tokens(logits, float(np.float32(t)), float(np.float32(p)))
    ends = np.cumsum(probabilities / probabilities.sum())
    positions = range(40)
    for position, token in zip(positions, sample_many(logits, t, p, [3] * 40, positions), strict=True):
        at = int(np.searchsorted(kept, token))
        below = ends[at - 1] if at else 0.0
        assert below - 1e-5 <= twin.uniform(3, position) <= ends[min(at, len(ends) - 1)] + 1e-5


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-45, 1e-30, 9.9e-6, -1.0, np.nan, np.inf])
def test_without_a_usable_temperature_the_choice_is_greedy(vocab: int, temperature: float) -> None:
    logits = normal_logits(vocab, vocab)
    assert sample(logits, temperature, 0.9, 5, 5) == int(np.argmax(logits))


def test_equal_logits_are_drawn_from_down_to_the_temperature_that_is_greedy() -> None:
    logits, positions = np.zeros(2, np.float32), range(50)
    assert set(sample_many(logits, 1e-5, 1.0, [1] * 50, positions).tolist()) == {0, 1}
    assert set(sample_many(logits, 9.9e-6, 1.0, [1] * 50, positions).tolist()) == {0}


@given(values=st_numpy.arrays(np.float32, st.integers(1, 700), elements=st.sampled_from([-1.0, -0.0, 0.0])))
@settings(deadline=None)
def test_greedy_takes_the_lowest_id_among_equals(values: F32) -> None:
    assert sample(values, 0.0) == int(np.argmax(values))


@given(vocab=vocabs, row=st.integers(0, 2**32), t=temperatures, seed=u64)
@settings(deadline=None)
def test_top_p_zero_keeps_only_the_most_likely_token(vocab: int, row: int, t: float, seed: int) -> None:
    logits = normal_logits(vocab, row)
    assert sample(logits, t, 0.0, seed) == int(np.argmax(logits))


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.2501, 2), (0.5, 2), (0.5001, 3), (0.75, 3), (0.7501, 4), (1.0, 4)])
def test_tokens_are_kept_until_the_mass_before_one_reaches_top_p(top_p: float, kept: int) -> None:
    """Four equal tokens among masked ones: every mass is an exact quarter, and ties are kept by lower id."""
    logits = np.full(600, -np.inf, np.float32)
    likely = [5, 40, 511, 599]
    logits[likely] = 1.5
    drawn = sample_many(logits, 0.8, top_p, range(300), [0] * 300)
    assert sorted(set(drawn.tolist())) == likely[:kept]


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("draw", [ZERO_DRAW, LARGEST_DRAW, (1, 1), (2, 2)])
@given(row=st.integers(0, 2**32), vocab=st.integers(2, 2000), data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_masked_token_is_never_drawn(top_p: float, draw: tuple[int, int], row: int, vocab: int, data: st.DataObject) -> None:
    logits = normal_logits(vocab, row)
    allowed = data.draw(st.sets(st.integers(0, vocab - 1), min_size=1, max_size=6))
    masked = np.full(vocab, -np.inf, np.float32)
    masked[list(allowed)] = logits[list(allowed)]
    assert sample(masked, 1.0, top_p, *draw) in allowed


def test_a_draw_of_zero_takes_the_first_token_that_can_be_drawn() -> None:
    logits = np.full(2000, -np.inf, np.float32)
    logits[[1300, 1400, 1999]] = [1.0, 5.0, 2.0]
    assert sample(logits, 1.0, 1.0, *ZERO_DRAW) == 1300
    assert sample(logits, 1.0, 0.999, *ZERO_DRAW) == 1300


@pytest.mark.parametrize("vocab", [2, 20, 1024, 4096])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_draw_on_a_boundary_takes_the_token_above_it(vocab: int, top_p: float) -> None:
    """Equal tokens have exact masses, so half of the kept mass ends exactly at a token, and at 1024 and 4096 at a chunk of the walk."""
    kept = int(vocab * top_p)
    assert sample(np.zeros(vocab, np.float32), 1.0, top_p, *HALF_DRAW) == kept // 2


def test_rounding_at_the_end_of_a_walk_never_reaches_a_masked_token() -> None:
    """The mass of a chunk is summed in another order than the walk: the largest draw may lie beyond the walk's own end."""
    for row in range(300):
        logits = normal_logits(512, row, 1.0)
        logits[500:] = -np.inf
        assert sample(logits, 1.0, 1.0, *LARGEST_DRAW) < 500


@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_the_draw_walks_the_kept_tokens_in_id_order(top_p: float) -> None:
    logits = normal_logits(5000, 1)
    kept, _ = twin.kept_tokens(logits, 1.0, top_p)
    seeds = range(400)
    tokens = sample_many(logits, 1.0, top_p, seeds, [0] * 400)
    by_uniform = tokens[np.argsort([twin.uniform(seed, 0) for seed in seeds], kind="stable")]
    assert (np.diff(by_uniform) >= 0).all()
    assert set(by_uniform.tolist()) <= set(kept.tolist())


def test_a_token_depends_on_its_own_row_and_sampler_only() -> None:
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(32, 9000)).astype(np.float32) * 3
    controls = [{"temperature": rng.choice([0.0, 0.7, 1.3]), "top_p": rng.choice([0.4, 0.95, 1.0]), "seed": i} for i in range(32)]

    def drawn(order: Sequence[int]) -> list[int]:
        drawn: list[int] = draw_many(logits[list(order)], [sampler(9000, **controls[i]) for i in order], list(order)).tolist()
        return drawn

    together = drawn(range(32))
    order = rng.permutation(32).tolist()
    assert drawn(order) == [together[i] for i in order]
    assert [drawn([i])[0] for i in range(32)] == together


def test_the_logits_are_not_changed() -> None:
    logits = normal_logits(600, 2)
    before = logits.copy()
    draw(logits, top_p=0.5, logit_bias=[(3, 5.0)], repetition_penalty=2.0, allowed_token_ids=[1, 2, 3])
    np.testing.assert_array_equal(logits, before)


# ---- rows that no model should give

any_floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
hostile_rows = st.one_of(
    st_numpy.arrays(np.float32, st.integers(1, 700), elements=any_floats),
    st_numpy.arrays(np.float32, st.integers(1, 90), elements=st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45])),
)
any_temperature = st.one_of(any_floats, st.sampled_from([0.0, 0.5, 1.0, 3.4e38, 1e-5]))


@given(logits=hostile_rows, t=any_temperature, p=top_ps, seed=u64)
@settings(max_examples=400, deadline=None)
def test_a_row_with_nan_infinity_or_nothing_finite_gives_no_token(logits: F32, t: float, p: float, seed: int) -> None:
    token = sample(logits, t, p, seed)
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        assert token == Outcome.NOT_FINITE
    else:
        assert np.isfinite(logits[token])


@given(logits=hostile_rows, data=st.data())
@settings(max_examples=200, deadline=None)
def test_top_ids_are_distinct_and_in_range_whatever_the_row_holds(logits: F32, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(logits)))
    ids = score(logits, 0, k)[1]
    np.testing.assert_array_equal(ids, twin.ranking(logits)[:k])


@pytest.mark.fault("C09")
def test_nan_ranks_with_the_least_likely_and_its_row_has_no_log_probability() -> None:
    spoilt = normal_logits(600, 3)
    spoilt[[0, 17, 599]] = np.nan
    chosen, ids, _ = score(spoilt, 1, 20)
    assert not {0, 17, 599} & set(ids.tolist())
    assert np.isnan(chosen)


# ---- distribution

DRAWS = 200_000
FALSE_ALARM_QUANTILE = 4.7534
"""Standard normal quantile of a false-alarm rate of 1e-6 per test. The draws are seeded, so a test that passes once always passes."""


def chi_square_excess(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    """Chi-square statistic minus its critical value (Wilson and Hilferty's approximation of the quantile)."""
    expected = probabilities * counts.sum()
    assert expected.min() >= 5, "the approximation needs five expected draws per cell"
    freedom = len(counts) - 1
    critical = freedom * (1 - 2 / (9 * freedom) + FALSE_ALARM_QUANTILE * np.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts - expected) ** 2 / expected).sum() - critical)


def draw_counts(logits: F32, t: float, p: float, by_seed: bool) -> npt.NDArray[np.int64]:
    known = pieces(len(logits))
    counts = np.zeros(len(logits), np.int64)
    for start in range(0, DRAWS, 10_000):
        numbers, constant = range(start, start + 10_000), [77] * 10_000
        seeds, positions = (numbers, constant) if by_seed else (constant, numbers)
        samplers = [sampler(known, temperature=t, top_p=p, seed=seed) for seed in seeds]
        counts += np.bincount(draw_many(logits, samplers, positions), minlength=len(logits))
    return counts


@pytest.mark.parametrize("by_seed", [True, False], ids=["seeds", "positions"])
@pytest.mark.parametrize(("t", "p"), [(1.0, 1.0), (0.7, 1.0), (0.8, 0.95), (1.5, 0.6)])
def test_draws_follow_the_exact_probabilities(t: float, p: float, by_seed: bool) -> None:
    logits = normal_logits(60, 12, 1.5)
    kept, probabilities = twin.kept_tokens(logits, float(np.float32(t)), float(np.float32(p)))
    counts = draw_counts(logits, t, p, by_seed)
    assert counts[kept].sum() == DRAWS
    assert chi_square_excess(counts[kept], probabilities / probabilities.sum()) < 0


def test_the_distribution_test_notices_a_slightly_wrong_temperature() -> None:
    logits = normal_logits(60, 12, 1.5)
    kept, probabilities = twin.kept_tokens(logits, 1.03, 1.0)
    assert chi_square_excess(draw_counts(logits, 1.0, 1.0, True)[kept], probabilities) > 0


# ---- instruction sets

DIGEST = """
import hashlib, numpy as np
from quintet import _core
from tests.reference.core_sampling import CPU, draw_many, sampler
rng = np.random.default_rng(1)
digest = hashlib.sha256()
for vocab in (1, 17, 513, 5000):
    logits = (rng.normal(size=(60, vocab)) * 3).astype(np.float32)
    kinds = [{}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 40}, {"typical_p": 0.7}, {"min_p": 0.1}, {"top_n_sigma": 1.0}]
    kinds += [{"xtc_probability": 1.0, "xtc_threshold": 0.01}, {"mirostat_target": 3.0}, {"repetition_penalty": 1.3}]
    samplers = [sampler(vocab, [i % vocab], [0], **{"temperature": 0.8, "seed": i, **kinds[i % len(kinds)]}) for i in range(60)]
    parts = CPU.score(logits, np.zeros(60, np.int32), min(vocab, 20))
    for part in (*parts, draw_many(logits, samplers, range(60))):
        digest.update(np.ascontiguousarray(part).tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    environments = [{**os.environ, "QUINTET_ISA": isa} for isa in _core.isas()]
    runs = [subprocess.run([sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True) for env in environments]
    assert len({run.stdout for run in runs}) == 1
