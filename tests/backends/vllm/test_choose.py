"""Choosing in vLLM's batch: the same tokens as one sampler alone draws, whoever comes, goes, comes back or breaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import F32, U64, Drawn, Outcome
from quintet.backends.vllm import choose
from quintet.backends.vllm.choose import Chooser, Row
from quintet.backends.vllm.wire import Choose, decode_choose, encode_choose
from quintet.guides import compiled
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler
from quintet.guides.translate import translate
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Dry, GuideKind, Sampling
from quintet.thinking import Thinking

EOS = 256
VOCAB = 257
PIECES = [*(bytes([byte]) for byte in range(256)), b""]
PROMPT = tuple(b"the prompt, the prompt")
CONTROLS = (
    Sampling(0.0, 1.0, 0),
    Sampling(1.0, 1.0, 2**64 - 1, min_tokens=3, stop_token_ids=(65,)),
    Sampling(0.7, 0.9, 3, top_k=40, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.5),
    Sampling(1.2, 1.0, 4, min_p=0.05, typical_p=0.9, top_n_sigma=2.0, xtc_probability=0.5, dry=Dry(0.8)),
    Sampling(1.0, 1.0, 5, mirostat_target=3.0, logit_bias=((5, 100.0), (6, 100.0), (7, -100.0))),
)


class Refusals:
    """What a chooser could not choose."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, Outcome]] = []

    def __call__(self, key: int, position: int, outcome: Outcome) -> None:
        self.told.append((key, position, outcome))


def samplers() -> NativeSamplers:
    return NativeSamplers(Cpu("", 1), PIECES, {EOS})


def chooser(refuse: Refusals | None = None, of: Any = None) -> Chooser:
    guides = Guides(Compiler(PIECES, frozenset({EOS}), VOCAB))
    return Chooser(of or samplers(), guides, VOCAB, refuse or Refusals())


def asked(sampling: Sampling, **more: Any) -> PreparedSequence:
    return PreparedSequence(PROMPT, 50, sampling, None, echo=False, **more)


def entering(key: int, sampling: Sampling, **more: Any) -> Choose:
    """Through the bytes that it crosses as."""
    return decode_choose(encode_choose(Choose(key, len(PROMPT), asked(sampling, **more))))


def logits(step: int, count: int) -> F32:
    """Of a step; a row is the same wherever it stands."""
    return np.stack([np.random.default_rng((step, row)).normal(0, 3, VOCAB).astype(np.float32) for row in range(count)])


def alone(sampling: Sampling, row: int, steps: int) -> list[int]:
    """What the core's own sampler draws."""
    core, drawn = samplers(), list[int]()
    own = core.make(sampling, (), PROMPT)
    for step in range(steps):
        positions: U64 = np.array([len(PROMPT) + step], np.uint64)
        (token,) = core.draw(logits(step, row + 1)[row:], [own], positions).tokens.tolist()
        own.accept(token)
        drawn.append(token)
    return drawn


def test_a_batch_draws_what_each_draws_alone() -> None:
    made, told = chooser(), Refusals()
    rows = [made.enter(entering(key, one), []) for key, one in enumerate(CONTROLS)]
    for step in range(12):
        for row, token in zip(rows, made.draw(logits(step, len(rows)), rows).tolist(), strict=True):
            row.generated.append(token)
    assert [row.generated for row in rows] == [alone(one, row, 12) for row, one in enumerate(CONTROLS)]
    assert told.told == []


def test_a_draw_that_comes_to_nothing_changes_nothing() -> None:
    """vLLM draws at each piece of a prompt, and after the last one alone is the token used."""
    made = chooser()
    row = made.enter(entering(1, CONTROLS[4]), [])
    for step in (7, 8, 9):
        made.draw(logits(step, 1), [row])
    for step in range(6):
        row.generated.append(int(made.draw(logits(step, 1), [row])[0]))
    assert row.generated == alone(CONTROLS[4], 0, 6)


def test_who_was_preempted_goes_on_and_who_is_unknown_begins_again_with_the_same_tokens() -> None:
    made = chooser()
    row = made.enter(entering(1, CONTROLS[4]), [])
    for step in range(4):
        row.generated.append(int(made.draw(logits(step, 1), [row])[0]))
    made.leave(row)
    again = made.enter(entering(1, CONTROLS[4]), list(row.generated))
    assert again is row, "Mirostat's bound is kept"
    for step in range(4, 8):
        again.generated.append(int(made.draw(logits(step, 1), [again])[0]))
    assert again.generated == alone(CONTROLS[4], 0, 8)
    other = chooser().enter(entering(1, CONTROLS[3]), alone(CONTROLS[3], 0, 5))
    assert chooser().draw(logits(5, 1), [other])[0] == alone(CONTROLS[3], 0, 6)[5]


def test_a_row_goes_back_to_where_its_sequence_is() -> None:
    made = chooser()
    row = made.enter(entering(1, CONTROLS[2]))
    assert not row.go_back(len(PROMPT) - 1), "its prompt is not computed"
    for step in range(6):
        assert row.go_back(len(PROMPT) + step)
        row.generated.append(int(made.draw(logits(step, 1), [row])[0]))
    assert row.go_back(len(PROMPT) + 3)
    assert row.generated == alone(CONTROLS[2], 0, 3)
    for step in range(3, 6):
        row.generated.append(int(made.draw(logits(step, 1), [row])[0]))
    assert row.generated == alone(CONTROLS[2], 0, 6)


def follow(made: Chooser, row: Row, steps: int, refused: Refusals) -> bytes:
    for step in range(steps):
        token = int(made.draw(logits(step, 1), [row])[0])
        if token == EOS or refused.told:
            break
        row.generated.append(token)
    return bytes(row.generated)


def test_guides_and_thinking_budgets_are_kept_beside_rows_without() -> None:
    refused = Refusals()
    made = chooser(refused)
    grammar = translate(GuideKind.REGEX, "[a-c]{3}|never")
    guided = made.enter(entering(1, CONTROLS[1], grammar=grammar), [])
    thinking = Thinking(b"<t>", b"</t>", tuple(b"</t>"), inside=True, budget=2)
    thinker = made.enter(entering(2, Sampling(1.0, 1.0, 9), thinking=thinking), [])
    plain = made.enter(entering(3, CONTROLS[1]), [])
    rows = [guided, thinker, plain]
    for step in range(3):
        for row, token in zip(rows, made.draw(logits(step, 3), rows).tolist(), strict=True):
            row.generated.append(token)
    assert bytes(guided.generated) in (b"nev", *(bytes((a, b, c)) for a in b"abc" for b in b"abc" for c in b"abc"))
    assert thinker.generated[2] == ord("<"), "two tokens of thinking, and then the end tag"
    assert plain.generated == alone(CONTROLS[1], 2, 3)
    assert refused.told == []


def test_a_sequence_that_has_left_holds_no_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, most likely: guides of many that have would leave no room for those of others."""
    monkeypatch.setattr(compiled, "CACHE_BYTES", 1 << 20)
    refused = Refusals()
    made = chooser(refused)
    for key in range(60):
        row = made.enter(entering(key, CONTROLS[1], grammar=translate(GuideKind.REGEX, f"[a-c]{{3}}|x{key}")), [])
        made.draw(logits(0, 1), [row])
        made.leave(row)
    assert refused.told == []
    assert made.guides.bytes <= 2 << 20


def test_a_sequence_of_which_nothing_is_heard_holds_no_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have ended, which is not always told; if it has not, it goes on where it was."""
    monkeypatch.setattr(compiled, "CACHE_BYTES", 1 << 20)
    monkeypatch.setattr(choose, "STILL", 4)
    refused = Refusals()
    made = chooser(refused)
    first = made.enter(entering(100, CONTROLS[1], grammar=translate(GuideKind.REGEX, "[a-c]{3}[x-z]{3}")), [])
    follow(made, first, 4, refused)
    for key in range(60):
        row = made.enter(entering(key, CONTROLS[1], grammar=translate(GuideKind.REGEX, f"[a-c]{{3}}|x{key}")), [])
        made.draw(logits(0, 1), [row])
    assert made.guides.bytes <= 2 << 20
    assert re.fullmatch(b"[a-c]{3}[x-z]{3}", follow(made, first, 6, refused))
    assert refused.told == []


def test_where_guides_take_too_much_those_that_nothing_is_drawn_for_make_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle engine nothing else is drawn in which they could be given up; one that only waits goes on where it was."""
    monkeypatch.setattr(compiled, "CACHE_BYTES", 1 << 20)
    refused = Refusals()
    made = chooser(refused)
    waits = made.enter(entering(100, CONTROLS[1], grammar=translate(GuideKind.REGEX, "[a-c]{3}[x-z]{3}")), [])
    follow(made, waits, 4, refused)
    many = [made.enter(entering(key, CONTROLS[1], grammar=translate(GuideKind.REGEX, f"[a-c]{{3}}|x{key}")), []) for key in range(60)]
    made.draw(logits(0, len(many)), many)
    assert made.guides.bytes > 2 << 20
    comes = made.enter(entering(200, CONTROLS[1], grammar=translate(GuideKind.REGEX, "[a-c]{3}|never")), [])
    assert len(follow(made, comes, 3, refused)) == 3
    assert re.fullmatch(b"[a-c]{3}[x-z]{3}", follow(made, waits, 6, refused))
    assert refused.told == []


def test_a_guided_sequence_that_was_preempted_goes_on_where_it_was() -> None:
    refused = Refusals()
    made = chooser(refused)
    grammar = translate(GuideKind.REGEX, "[a-c]{3}[x-z]{3}")
    row = made.enter(entering(1, CONTROLS[1], grammar=grammar), [])
    begun = follow(made, row, 4, refused)
    made.leave(row)
    again = made.enter(entering(1, CONTROLS[1], grammar=grammar), list(begun))
    assert re.fullmatch(b"[a-c]{3}[x-z]{3}", follow(made, again, 6, refused))
    assert refused.told == []


@pytest.mark.parametrize(
    ("sampling", "value", "outcome"),
    [
        (Sampling(1.0, 1.0, 0), np.nan, Outcome.NOT_FINITE),
        (Sampling(0.0, 1.0, 0), np.inf, Outcome.NOT_FINITE),
        (Sampling(0.0, 1.0, 0, allowed_token_ids=(5,), logit_bias=((5, -100.0),)), 0.0, Outcome.NOTHING_LEFT),
    ],
)
def test_what_cannot_be_drawn_is_told_and_its_neighbours_do_not_notice(sampling: Sampling, value: float, outcome: Outcome) -> None:
    refused = Refusals()
    made = chooser(refused)
    rows = [made.enter(entering(1, CONTROLS[1]), []), made.enter(entering(2, sampling), [])]
    given = logits(0, 2)
    given[1, 3] = value
    tokens = made.draw(given, rows)
    assert refused.told == [(2, len(PROMPT), outcome)]
    assert tokens[0] == alone(CONTROLS[1], 0, 1)[0]
    assert 0 <= tokens[1] < VOCAB


class Breaking(NativeSamplers):
    """Raises for one sampler, like a library that panics."""

    def __init__(self) -> None:
        super().__init__(Cpu("", 1), PIECES, {EOS})
        self.broken: list[Any] = []

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> Any:
        if sampling.seed == 666:
            raise RuntimeError("no sampler for this one")
        made = super().make(sampling, bad_words, prompt)
        if sampling.seed == 667:
            self.broken.append(made)
        return made

    def draw(self, given: F32, samplers: Sequence[Any], *rest: Any) -> Drawn:
        if any(one in self.broken for one in samplers):
            raise RuntimeError("no token for this one")
        return super().draw(given, samplers, *rest)


@pytest.mark.parametrize("seed", [666, 667])
def test_whatever_raises_ends_one_sequence_and_nothing_else(seed: int) -> None:
    refused = Refusals()
    made = chooser(refused, Breaking())
    bad = replace(CONTROLS[1], seed=seed)
    rows = [made.enter(entering(1, CONTROLS[1]), []), made.enter(entering(2, bad), []), made.enter(entering(3, CONTROLS[3]), [])]
    for step in range(3):
        for row, token in zip(rows, made.draw(logits(step, 3), rows).tolist(), strict=True):
            row.generated.append(token)
    assert refused.told == [(2, len(PROMPT), Outcome.NOT_DRAWN)], "once"
    assert rows[0].generated == alone(CONTROLS[1], 0, 3)
    assert rows[2].generated == alone(CONTROLS[3], 2, 3)
