"""A model whose every number is a function of a sequence's own tokens, cheap enough for millions of them; and what one gives alone.

As attention does, ``SimulatedModel`` reads all earlier positions of a sequence where its block table says they lie: a page that was shared,
copied, evicted or overwritten wrongly changes what comes next. ``alone`` computes the same from the tokens themselves, without engine,
scheduler, pages, chunks, cache or drafts. It is what every answer of a simulation is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import F32, I32, U8, Batch, Meanwhile, Outcome
from quintet.backends.native.schedule.emit import NUMERICAL, tops_of
from quintet.backends.toy import EOS, VOCAB, ToyTokenizer
from quintet.events import Finish
from quintet.inputs.sequence import PreparedSequence

CONTEXT = 192
LETTERS = b" etaoinshrdl"
"""What the model writes."""

CRASHES, RAISES, NOT_FINITE = 1, 2, 3
"""Tokens that only prompts have: computing the first kills the process, the second raises, and the row of the third is not finite."""

TOKENIZER = ToyTokenizer()
PIECES = TOKENIZER.pieces

_random = np.random.Generator(np.random.PCG64(1))
_KEYS = _random.integers(0, 2**64, (VOCAB, CONTEXT), np.uint64)  # of a token at a position
_ROWS = 1 << 10
_ROW_BYTES = 16  # the sum of all keys, the last token, padding


def _follows() -> F32:
    """float32 [last token, next token]: letters go round in a fixed order, so that texts repeat and drafts are often right."""
    bias = np.full((VOCAB, VOCAB), -100, np.float32)
    bias[:, [*LETTERS]] = 0
    bias[:, EOS] = -1
    bias[[*LETTERS], [*LETTERS[1:], LETTERS[0]]] = 4
    bias[NOT_FINITE] = np.nan
    return bias


_FOLLOWS = _follows()
_NOISE: F32 = (6 * _random.random((_ROWS, VOCAB), np.float32) ** 8).astype(np.float32)  # by all earlier tokens: it does not repeat for ever


def _logits(sums: npt.NDArray[np.uint64], last: npt.NDArray[np.intp]) -> F32:
    logits: F32 = _FOLLOWS[last] + _NOISE[(sums >> np.uint64(50)).astype(np.intp) % _ROWS]
    return logits


class SimulatedModel:
    """``Runner`` whose pages hold the keys of their tokens.

    Args:
        compute: told of each batch before anything is written; may raise.
        window: tokens that a token sees, itself the last; 0 = all before it.
    """

    vocab, context, page_bytes, row_bytes = VOCAB, CONTEXT, PAGE * 8, _ROW_BYTES

    def __init__(self, compute: Callable[[Batch], None], window: int = 0) -> None:
        self._compute, self.window = compute, window
        self.broken = False
        """Its memory is: no logit is finite any more."""
        self._pages = np.zeros((0, PAGE), np.uint64)

    def allocate(self, pages: int) -> None:
        self._pages = _random_pages(pages)

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        if meanwhile:
            meanwhile()
        self._compute(batch)
        segments = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        firsts = np.cumsum(batch.lengths) - batch.lengths
        positions = np.arange(len(batch.tokens)) - np.repeat(firsts - batch.starts, batch.lengths)
        self._pages[batch.tables[segments, positions // PAGE], positions % PAGE] = _KEYS[batch.tokens, positions]
        pages = batch.tables[:, : int(positions.max()) // PAGE + 1]
        sums = np.cumsum(self._pages[pages].reshape(len(pages), -1), axis=1, dtype=np.uint64)
        rows = np.zeros((len(batch.rows), _ROW_BYTES), np.uint8)
        of, last = segments[batch.rows], positions[batch.rows]
        seen = sums[of, last]
        if self.window:  # what lies in pages that were let go of is on both sides
            seen = seen - np.where(last >= self.window, sums[of, np.maximum(last - self.window, 0)], np.uint64(0))
        rows[:, :8] = seen[:, None].view(np.uint8)
        rows[:, 8:16] = batch.tokens[batch.rows].astype(np.int64)[:, None].view(np.uint8)
        return rows

    def logits(self, rows: U8) -> F32:
        if self.broken:
            return np.full((len(rows), VOCAB), np.nan, np.float32)
        both = np.ascontiguousarray(rows).view(np.uint64)
        return _logits(both[:, 0], both[:, 1].astype(np.intp))

    def logits_of(self, rows: U8, tokens: I32) -> F32:
        of: F32 = self.logits(rows)[np.arange(len(tokens)), tokens]
        return of

    def copy_page(self, source: int, target: int) -> None:
        self._pages[target] = self._pages[source]

    def read_page(self, page: int) -> U8:
        data: U8 = self._pages[page].view(np.uint8).copy()
        return data

    def write_page(self, page: int, data: U8) -> None:
        self._pages[page] = data.view(np.uint64)

    def touch_pages(self, first: int, last: int) -> None:
        assert 0 <= first < last <= len(self._pages)

    def drop_pages(self, pages: Sequence[int]) -> None:
        self._pages[list(pages)] = 0


def _random_pages(count: int) -> npt.NDArray[np.uint64]:
    """As memory is found: what is read before it is written is noticed."""
    return np.random.Generator(np.random.PCG64(2)).integers(0, 2**64, (count, PAGE), np.uint64)


class SimulatedDraft(SimulatedModel):
    """A draft model: it thinks as the model does at three positions of four, and of the others another text."""

    def logits(self, rows: U8) -> F32:
        logits = super().logits(rows)
        wrong = np.ascontiguousarray(rows).view(np.uint64)[:, 0] >> np.uint64(30) & np.uint64(3) == 0
        logits[wrong] = np.roll(logits[wrong], 1, axis=1)
        return logits


Told = tuple[int, bytes, float | None, tuple[tuple[int, float], ...], bool, Finish | None, str]
"""What a client can see of a token's event: token, piece, log-probability, alternatives, whether it is the prompt's, finish, error."""

_samplers = NativeSamplers(Cpu(), PIECES, TOKENIZER.eos_ids)


def alone(sequence: PreparedSequence, window: int = 0) -> list[Told]:
    """All events of a sequence, computed from its tokens, each of which sees a window of them."""
    told = _echo(sequence, window) if sequence.echo else []
    if not sequence.max_tokens:
        return [*told, (-1, b"", None, (), False, Finish.LENGTH, "")]
    tokens = list(sequence.tokens)
    keys = int(_sums(np.array(tokens), window)[-1])
    sampler = _samplers.make(sequence.sampling, sequence.bad_words, sequence.tokens)
    ends = set(sequence.sampling.stop_token_ids) | (set() if sequence.sampling.ignore_eos else TOKENIZER.eos_ids)
    for count in range(1, sequence.max_tokens + 1):
        logits = _logits(np.array([keys], np.uint64), np.array(tokens[-1:]))
        drawn = _samplers.draw(logits, [sampler], np.array([len(tokens)], np.uint64)).tokens
        token = int(drawn[0])
        if token < 0:
            assert token == Outcome.NOT_FINITE
            return [*told, (-1, b"", None, (), False, Finish.ERROR, NUMERICAL)]
        finish = Finish.EOS if token in ends else Finish.LENGTH if count == sequence.max_tokens else None
        logprob, top = _scores(logits, drawn, sequence.logprobs)[0] if sequence.logprobs is not None else (None, ())
        told.append((token, b"" if finish is Finish.EOS else PIECES[token], logprob, top, False, finish, ""))
        if finish:
            break
        sampler.accept(token)
        tokens.append(token)
        last = len(tokens) - 1
        keys += int(_KEYS[token, last])
        if window and last >= window:
            keys -= int(_KEYS[tokens[last - window], last - window])
        keys %= 2**64
    return told


def _sums(tokens: npt.NDArray[Any], window: int) -> npt.NDArray[np.uint64]:
    """Of each position, the sum of the keys that it sees."""
    sums = np.cumsum(_KEYS[tokens, np.arange(len(tokens))], dtype=np.uint64)
    if window:
        sums[window:] -= sums[:-window].copy()
    return sums


def _echo(sequence: PreparedSequence, window: int) -> list[Told]:
    tokens = np.array(sequence.tokens[: sequence.prompt_end], np.int32)
    scores: list[tuple[float | None, tuple[tuple[int, float], ...]]] = [(None, ())] * len(tokens)
    if sequence.logprobs is not None and len(tokens) > 1:
        sums = _sums(tokens, window)
        scores[1:] = _scores(_logits(sums[:-1], tokens[:-1].astype(np.intp)), tokens[1:], sequence.logprobs)
    told: list[Told] = []
    for token, (logprob, top) in zip(tokens.tolist(), scores, strict=True):
        told.append((token, PIECES[token], logprob, top, True, None, ""))
    return told[sequence.echo_from :]


def _scores(logits: F32, tokens: I32, alternatives: int) -> list[tuple[float | None, tuple[tuple[int, float], ...]]]:
    scores = _samplers.score(logits, tokens, alternatives)
    return list(zip(scores.chosen.tolist(), tops_of(scores, alternatives), strict=True))
