"""Samplers without the compiled core: fewer controls, but the same promises about what a draw depends on, and about drafts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import cast

import numpy as np

from quintet.backends.native.core.types import F32, I32, U32, U64, Drafted, Drawn, Outcome, Sampler, Scores
from quintet.request import Sampling

MEMORY = 0.25
"""By how much a token is less likely for each time it was accepted, where any control remembers."""


class PlainSampler:
    """Greedy or not, and with a memory if a control has one."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.accepted = 0
        self._remembers = sampling != Sampling(sampling.temperature, sampling.top_p, sampling.seed)
        self._seen: dict[int, int] = {}

    def accept(self, token: int) -> None:
        self.accepted += 1
        self._seen[token] = self._seen.get(token, 0) + 1

    def copy(self) -> PlainSampler:
        other = copy(self)
        other._seen = dict(self._seen)
        return other

    def fork(self, seed: int) -> PlainSampler:
        assert not self.accepted
        other = self.copy()
        other.sampling = replace(self.sampling, seed=seed)
        return other

    def draw(self, logits: F32, position: int) -> int:
        row = logits.astype(np.float64)
        if self._remembers:
            for token, count in self._seen.items():
                row[token] -= MEMORY * count
        if not np.isfinite(row.max()):
            return Outcome.NOT_FINITE
        if self.sampling.temperature == 0:
            return int(row.argmax())
        masses = np.exp(row - row.max()).cumsum()
        share = math.modf(math.sin((self.sampling.seed % 10_007) * 12.9898 + position * 78.233) * 43758.5453)[0] % 1.0
        return int(np.searchsorted(masses, share * masses[-1], side="right"))


class PlainSamplers:
    """See ``Samplers``; takes no masks."""

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> PlainSampler:
        return PlainSampler(sampling)

    def draw(
        self,
        logits: F32,
        samplers: Sequence[Sampler],
        positions: U64,
        masks: U32 | None = None,
        drafts: Drafted | None = None,
        alternatives: I32 | None = None,
    ) -> Drawn:
        assert masks is None, "guides are the compiled core's"
        lengths = [1] * len(logits) if drafts is None else drafts.lengths.tolist()
        drafted = [-1] * len(logits) if drafts is None else drafts.tokens.tolist()
        tokens = np.full(len(logits), Outcome.NOT_DRAWN, np.int32)
        first = 0
        for sampler, position, length in zip(samplers, positions.tolist(), lengths, strict=True):
            plain = cast("PlainSampler", sampler)
            for step in range(length):
                tokens[first + step] = token = plain.draw(logits[first + step], position + step)
                if token < 0 or token != drafted[first + step]:
                    break
                plain.accept(token)
            first += length
        if alternatives is None:
            return Drawn(tokens)
        return Drawn(tokens, self.score(logits, np.maximum(tokens, 0), max(0, int(alternatives.max()))))

    def score(self, logits: F32, targets: I32, k: int) -> Scores:
        with np.errstate(invalid="ignore"):  # rows that are not finite give NaN
            rows = logits.astype(np.float64)
            most = rows.max(axis=1, keepdims=True)
            sums = (most + np.log(np.exp(rows - most).sum(axis=1, keepdims=True)))[:, 0]
            ids = np.argsort(-rows, axis=1, kind="stable")[:, :k].astype(np.int32)
            top = (np.take_along_axis(rows, ids.astype(np.intp), 1) - sums[:, None]).astype(np.float32)
            return Scores((rows[np.arange(len(rows)), targets] - sums).astype(np.float32), ids, top, sums)
