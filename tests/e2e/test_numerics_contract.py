"""The numerics contract, bit for bit: a position's numbers depend on the tokens before it and on nothing else.

Not on the instruction set, the number of threads, the company in the batch, the chunks of the prompt, the pages, or who computed them.
Hidden rows are compared as bytes (they are what the output matrix and the page cache see), logits as bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.e2e.paged import PAGES, Ids, LoadRunner, Run, assert_same_bits, logits_of, pages_for, run_alone, run_together, whole
from tests.reference.tiny_model import FAMILIES, KEPT_FLOATS, TinySpec

from quintet.backends.native.core.cpu import Cpu, isas
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import Runner, Scorer, Shortener
from quintet.config import KvType, Quantize

BUNDLED = "bundled"
TINY = [spec.name for spec in FAMILIES]
FLOATS = KEPT_FLOATS[0].name
"""Loaded with ``--quantize none``."""
BYTES = "-kv8"
"""After a name: keys and values in 8 bits."""
TINY_BYTES = [name + BYTES for name in ("llama-tied", "gemma2", "gpt-oss", "starcoder2")]
"""Plain; with windows and capped scores; with sinks; with biases and LayerNorms."""


@dataclass(frozen=True)
class Subject:
    """A model under test.

    Args:
        length: tokens of the sequence that is looked at, more than two pages.
        short: a length that even the portable kernels do quickly, more than one page.
        quantize: what becomes of float weights.
        kv_type: of keys and values.
    """

    path: Path
    load: LoadRunner
    length: int
    short: int
    quantize: Quantize = "q8"
    kv_type: KvType = "f16"

    def runner(self, threads: int = 1, isa: str | None = None) -> Runner:
        return self.load(self.path, threads, isa, self.quantize, self.kv_type)

    def tokens(self, length: int, seed: int = 1) -> Ids:
        return np.random.RandomState(seed).randint(0, self.runner().vocab, length).astype(np.int32)


def tiny_subject(request: pytest.FixtureRequest, load_runner: LoadRunner) -> Subject:
    name = request.param.removesuffix(BYTES)
    spec = next(spec for spec in (*FAMILIES, *KEPT_FLOATS) if spec.name == name)
    tiny_path: Callable[[TinySpec], Path] = request.getfixturevalue("tiny_path")
    if name != request.param:  # more than two blocks of values, each of 8 pages
        return Subject(tiny_path(spec), load_runner, 19 * PAGE + 9, 11 * PAGE + 5, kv_type="q8")
    return Subject(tiny_path(spec), load_runner, 5 * PAGE + 9, 3 * PAGE + 5, "none" if spec in KEPT_FLOATS else "q8")


@pytest.fixture(scope="module", params=[*TINY, *TINY_BYTES, FLOATS, BUNDLED])
def subject(request: pytest.FixtureRequest, load_runner: LoadRunner) -> Subject:
    if request.param == BUNDLED:
        return Subject(request.getfixturevalue("model_path"), load_runner, length=2 * PAGE + 9, short=PAGE + 3)
    return tiny_subject(request, load_runner)


@pytest.fixture(scope="module", params=[*TINY, *TINY_BYTES])
def tiny(request: pytest.FixtureRequest, load_runner: LoadRunner) -> Subject:
    return tiny_subject(request, load_runner)


def random_chunks(total: int, seed: int) -> list[int]:
    """Chunks of 1 to ``total`` tokens, small ones as likely as large ones."""
    rng, chunks = np.random.RandomState(seed), []
    while total:
        chunks.append(min(total, int(np.exp(rng.uniform(0, np.log(total + 1))))))
        total -= chunks[-1]
    return chunks


def decode(length: int) -> list[int]:
    return [1] * length


@pytest.mark.parametrize("isa", isas()[:-1])
def test_every_instruction_set_gives_the_bits_of_the_portable_kernels(subject: Subject, isa: str) -> None:
    tokens = subject.tokens(subject.short)
    chunks = [subject.short - 3, 1, 1, 1]
    fast, portable = subject.runner(isa=isa), subject.runner(isa="portable")
    left, right = (run_alone(runner, replace(whole(tokens), chunks=chunks)) for runner in (fast, portable))
    assert_same_bits(left, right)
    assert_same_bits(logits_of(fast, left[-5:]), logits_of(portable, right[-5:]))


def compare_threads(subject: Subject, threads: int, isa: str, length: int) -> None:
    run = replace(whole(subject.tokens(length)), chunks=[length - 2, 1, 1])
    one, many = subject.runner(1, isa), subject.runner(threads, isa)
    left, right = run_alone(one, run), run_alone(many, replace(run, done=0))
    assert_same_bits(left, right)
    assert_same_bits(logits_of(one, left), logits_of(many, right))


@pytest.mark.parametrize("threads", [2, 3, 17])  # 17: more than CPUs here, and than most phases have units
def test_the_number_of_threads_changes_no_bit(subject: Subject, threads: int) -> None:
    compare_threads(subject, threads, isas()[0], subject.length)


@pytest.mark.parametrize("isa", isas()[1:])
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit_with_slower_instruction_sets(tiny: Subject, threads: int, isa: str) -> None:
    compare_threads(tiny, threads, isa, tiny.short)


@pytest.mark.parametrize("isa", isas()[:-1])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_rows_that_are_divided_among_threads_have_the_bits_of_one_thread(tiny: Subject, threads: int, isa: str) -> None:
    one, many = tiny.runner(1, isa), tiny.runner(threads, isa)
    tokens = tiny.tokens(129)
    alone = run_alone(one, whole(tokens))
    for rows in (11, 12, 13, 18, 23, 24, 25, 29, 32, 36, 47, 60, 63, 64, 65, 100, 129):
        assert_same_bits(run_alone(many, whole(tokens[:rows])), alone[:rows])


@pytest.mark.fault("H02")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_alone_has_the_bits_it_has_among_31_others(subject: Subject, threads: int) -> None:
    runner = subject.runner(threads)
    tokens = subject.tokens(subject.length)
    alone = run_alone(runner, whole(tokens))
    rng = np.random.RandomState(7)
    lengths = rng.randint(1, 2 * PAGE + 5, 31)
    others = [subject.tokens(int(length), seed=100 + i) for i, length in enumerate(lengths)]
    place = 13
    everyone = [*others[:place], tokens, *others[place:]]
    first_pages = np.cumsum([0, *(pages_for(len(one)) for one in everyone)])
    runs = [whole(one, int(page)) for one, page in zip(everyone, first_pages, strict=False)]
    for i, run in enumerate(runs):  # some prefill in one go, some in chunks, some token by token, in the same steps
        run.chunks = (run.chunks, random_chunks(len(run.tokens), i), decode(len(run.tokens)))[i % 3]
    together = run_together(runner, runs)
    assert_same_bits(alone, together[place])
    before = together[place - 1]
    logits = logits_of(runner, np.concatenate([before, together[place], together[place + 1]]))
    assert_same_bits(logits_of(runner, alone), logits[len(before) :][: len(alone)])
    for i in (0, 1, 2, 30):
        assert_same_bits(run_alone(runner, whole(others[i])), together[i if i < place else i + 1])


@pytest.mark.fault("H04")
@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_in_any_chunks_has_the_bits_of_one_chunk(subject: Subject, seed: int) -> None:
    runner = subject.runner(2)
    tokens = subject.tokens(subject.length)
    in_one = run_alone(runner, whole(tokens))
    in_many = run_alone(runner, replace(whole(tokens), chunks=random_chunks(len(tokens), seed)))
    assert_same_bits(in_one, in_many)


@pytest.mark.parametrize("chunk", [PAGE - 1, PAGE, PAGE + 1])
def test_chunks_that_cross_page_borders_change_no_bit(subject: Subject, chunk: int) -> None:
    runner = subject.runner()
    tokens = subject.tokens(subject.length)
    full, rest = divmod(len(tokens), chunk)
    chunks = [chunk] * full + [rest] * (rest > 0)
    assert_same_bits(run_alone(runner, whole(tokens)), run_alone(runner, replace(whole(tokens), chunks=chunks)))


def test_a_position_has_the_same_logits_in_prefill_and_in_decode(subject: Subject) -> None:
    runner = subject.runner(2)
    tokens = subject.tokens(subject.length)
    prefill = run_alone(runner, whole(tokens))
    decoded = run_alone(runner, replace(whole(tokens), chunks=decode(len(tokens))))
    assert_same_bits(prefill, decoded)
    one_by_one = np.concatenate([logits_of(runner, row[None]) for row in decoded])
    assert_same_bits(logits_of(runner, prefill), one_by_one)


def test_pages_may_lie_anywhere_and_hold_anything_before(subject: Subject) -> None:
    """Block tables in any order; stale keys and values of others beyond a sequence's end are never seen."""
    runner = subject.runner()
    tokens = subject.tokens(subject.length)
    in_order = run_alone(runner, whole(tokens))
    for seed in range(3):
        pages = np.random.RandomState(seed).permutation(PAGES)[: pages_for(len(tokens)) + 2].tolist()
        run_alone(runner, replace(whole(subject.tokens(len(pages) * PAGE, seed)), pages=pages))
        assert_same_bits(in_order, run_alone(runner, replace(whole(tokens), pages=pages, chunks=random_chunks(len(tokens), seed))))


@pytest.mark.fault("H04")
def test_a_prefix_that_another_sequence_computed_gives_the_bits_of_computing_it(subject: Subject) -> None:
    """The prefix cache and forks: full pages are shared, the last one is copied on write."""
    runner = subject.runner()
    first, second = subject.tokens(subject.length, seed=1), subject.tokens(subject.length, seed=2)
    shared = PAGE + 5
    second[:shared] = first[:shared]
    expected = [run_alone(runner, whole(tokens)) for tokens in (first, second)]
    pages = pages_for(subject.length)
    run_alone(runner, Run(first[:shared], [shared], [40, 41]))
    runner.copy_page(41, 60)
    left = Run(first, [len(first) - shared], [40, 41, *range(42, 40 + pages)], done=shared)
    right = Run(second, decode(len(second) - shared), [40, 60, *range(61, 59 + pages)], done=shared)
    hidden = run_together(runner, [left, right])
    for whole_rows, rest in zip(expected, hidden, strict=True):
        assert_same_bits(whole_rows[shared:], rest)


def test_pages_that_no_layer_sees_may_be_gone(tiny_path: Callable[[TinySpec], Path], load_runner: LoadRunner) -> None:
    """Where every layer has a window; a page that is seen must be there, and all must be where a layer sees everything."""
    plain = next(spec for spec in FAMILIES if spec.name == "starcoder2")
    windowed = replace(plain, name="starcoder2-window", metadata={"attention.sliding_window": 19})
    tokens = np.random.RandomState(1).randint(0, plain.vocab, 6 * PAGE).astype(np.int32)
    done, pages = 5 * PAGE, list(range(6))
    for spec, most, kv_type in ((windowed, (done + 1 - 19) // PAGE, "f16"), (windowed, (done + 1 - 19) // PAGE, "q8"), (plain, 0, "f16")):
        runner = load_runner(tiny_path(spec), 2, kv_type=kv_type)
        expected = run_alone(runner, whole(tokens))
        for gone in (most, most + 1):
            rest = Run(tokens, [3, 1, PAGE - 4], [-1] * gone + pages[gone:], done=done)
            if gone > most:
                with pytest.raises(ValueError, match="a page out of range"):
                    run_alone(runner, rest)
            else:
                assert_same_bits(expected[done:], run_alone(runner, rest))


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_values_begin_where_they_do_without_a_window(
    seed: int, tiny_path: Callable[[TinySpec], Path], load_runner: LoadRunner
) -> None:
    """A window is wider than a block, and rows that go together see other pages first than each alone."""
    plain = next(spec for spec in FAMILIES if spec.name == "starcoder2")
    runner = load_runner(tiny_path(replace(plain, name="starcoder2-wide", metadata={"attention.sliding_window": 150})), 2, kv_type="q8")
    tokens = np.random.RandomState(1).randint(0, plain.vocab, 25 * PAGE).astype(np.int32)
    chunks = decode(len(tokens)) if not seed else random_chunks(len(tokens), seed)
    assert_same_bits(run_alone(runner, whole(tokens)), run_alone(runner, replace(whole(tokens), chunks=chunks)))


def test_asking_for_some_rows_gives_those_rows(subject: Subject) -> None:
    runner = subject.runner()
    tokens = subject.tokens(subject.length)
    hidden = run_alone(runner, whole(tokens))
    logits = logits_of(runner, hidden)
    picked = [len(tokens) - 1, 0, PAGE]
    assert_same_bits(logits[picked], logits_of(runner, hidden[picked]))


@pytest.mark.fault("H03")
def test_one_other_earlier_token_changes_the_bits(subject: Subject) -> None:
    """The inverse control: these comparisons do see a difference, and only after the token that differs."""
    runner = subject.runner()
    tokens = subject.tokens(subject.length)
    changed = tokens.copy()
    changed[PAGE + 2] = (changed[PAGE + 2] + 1) % runner.vocab
    left, right = (run_alone(runner, whole(one)) for one in (tokens, changed))
    assert_same_bits(left[: PAGE + 2], right[: PAGE + 2])
    assert all(not np.array_equal(a, b) for a, b in zip(left[PAGE + 2 :], right[PAGE + 2 :], strict=True))
    with pytest.raises(AssertionError, match="rows differ"):
        assert_same_bits(left, right)


schedules = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 2**31), st.integers(0, 6)), min_size=1, max_size=6)
"""Sequences as (length, seed of the chunks, step of arrival)."""


@pytest.mark.parametrize("name", ["llama-tied", "llama-wide", "qwen2-yarn", "llama-wide" + BYTES])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=schedules, page_seed=st.integers(0, 2**31), threads=st.sampled_from([1, 2, 3]))
def test_any_schedule_gives_each_sequence_the_bits_it_has_alone(
    name: str,
    tiny_path: Callable[[TinySpec], Path],
    load_runner: LoadRunner,
    schedule: list[tuple[int, int, int]],
    page_seed: int,
    threads: int,
) -> None:
    spec = next(spec for spec in FAMILIES if spec.name == name.removesuffix(BYTES))
    kv_type: KvType = "q8" if name.endswith(BYTES) else "f16"
    alone, runner = (load_runner(tiny_path(spec), number, kv_type=kv_type) for number in (1, threads))
    free = np.random.RandomState(page_seed).permutation(PAGES).tolist()
    runs = []
    for i, (length, seed, _) in enumerate(schedule):
        tokens = np.random.RandomState(i).randint(0, spec.vocab, length).astype(np.int32)
        runs.append(Run(tokens, random_chunks(length, seed), [free.pop() for _ in range(pages_for(length))]))
    hidden = run_together(runner, runs, [arrival for _, _, arrival in schedule])
    for run, rows in zip(runs, hidden, strict=True):
        assert_same_bits(run_alone(alone, whole(run.tokens)), rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_logit_of_one_token_has_the_bits_it_has_among_all(subject: Subject, threads: int) -> None:
    runner, tokens = subject.runner(threads), subject.tokens(subject.short)
    hidden = run_alone(runner, whole(tokens))
    targets = tokens[: len(hidden)]
    assert_same_bits(runner.logits_of(hidden, targets), logits_of(runner, hidden)[np.arange(len(targets)), targets])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_logits_of_the_first_tokens_have_the_bits_they_have_among_all(subject: Subject, threads: int) -> None:
    runner = subject.runner(threads)
    hidden = run_alone(runner, whole(subject.tokens(subject.short)))
    every = logits_of(runner, hidden)
    assert isinstance(runner, Shortener)
    for tokens in (1, 16, runner.vocab // 2, runner.vocab - 1, runner.vocab):
        assert_same_bits(np.array(runner.first_logits(hidden, tokens)), every[:, :tokens])
    for wrong in (0, -1, runner.vocab + 1):
        with pytest.raises(ValueError, match="logits: tokens that there are not"):
            runner.first_logits(hidden, wrong)


def assert_blocks_score_as_logits(runner: Runner, tokens: Ids) -> None:
    hidden = np.resize(run_alone(runner, whole(tokens)), (70, runner.row_bytes))  # again and again
    hidden[5] = 0xFF  # its scales are no numbers, nor are its logits where no cap hides that
    by_logits = NativeSamplers(Cpu(), [b""] * runner.vocab, ())
    assert isinstance(runner, Scorer)
    for count, k in ((1, 20), (31, 0), (32, 1), (33, min(1000, runner.vocab)), (70, 20)):
        rows, targets = hidden[:count], np.resize(tokens, count).astype(np.int32)
        found = runner.score(rows, targets, k)
        logits = logits_of(runner, rows)
        expected = by_logits.score(logits, targets, k)
        for ours, theirs in ((found.chosen, expected.chosen), (found.top_ids, expected.top_ids), (found.top, expected.top)):
            assert_same_bits(ours, theirs)
        assert_same_bits(found.log_sums, expected.log_sums)
        sound = np.isfinite(logits).all(axis=1)
        exact = logits[sound].astype(np.float64)
        highest = exact.max(axis=1, keepdims=True)
        sums = highest[:, 0] + np.log(np.exp(exact - highest).sum(axis=1))
        np.testing.assert_allclose(found.log_sums[sound], sums, rtol=0, atol=1e-5)
        assert np.isnan(found.log_sums[~sound]).all()
    assert runner.score(hidden[:0], tokens[:0], 3).top.shape == (0, 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_scored_in_blocks_have_the_bits_of_rows_whose_logits_were_all_there(subject: Subject, threads: int) -> None:
    assert_blocks_score_as_logits(subject.runner(threads), subject.tokens(subject.short))


def test_a_vocabulary_of_some_chunks_and_a_part_of_one_is_scored_the_same(
    tiny_path: Callable[[TinySpec], Path], load_runner: LoadRunner
) -> None:
    spec = replace(FAMILIES[0], name="llama-many-tokens", vocab=2 * 512 + 77)
    subject = Subject(tiny_path(spec), load_runner, length=0, short=3 * PAGE + 5)
    assert_blocks_score_as_logits(subject.runner(2), subject.tokens(subject.short))


def test_rows_are_scored_by_none_but_their_own_model(subject: Subject) -> None:
    runner = subject.runner()
    assert isinstance(runner, Scorer)
    rows, targets = np.zeros((2, runner.row_bytes), np.uint8), np.zeros(2, np.int32)
    for bad_rows, bad_targets, k in (
        (rows[:, 1:], targets, 1),
        (rows, targets[:1], 1),
        (rows, np.array([0, runner.vocab], np.int32), 1),
        (rows, np.array([0, -1], np.int32), 1),
        (rows, targets, runner.vocab + 1),
        (rows, targets, -1),
    ):
        with pytest.raises(ValueError, match="^score: "):
            runner.score(bad_rows, bad_targets, k)
