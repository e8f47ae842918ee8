"""What a hidden row was found to say, kept beside it: then the log-probability of a token after it costs one row of the output matrix
and not all of them, and the likeliest tokens cost nothing. Plain code over values.

A log-probability is logit(token) - log_sum, and log_sum belongs to the row, not to the token::

    stored row   [ hidden state, quantised | known | 20 likeliest ids | their log-probabilities | log_sum ]
    first time     all V rows of the output matrix: log_sum, the likeliest, logit
    again          one row of it, the token's: logit - log_sum

The rows lie beside the pages of the prefix cache and live as long as these. So a prompt that is scored again and again with other
endings, as evaluations do, costs the endings. Why the bits are the same: docs/decisions/0002-numbers-that-do-not-depend-on-the-batch.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quintet.backends.native.core.types import F32, I32, U8, Scores

KEPT = 20
"""Alternatives that are kept: as many as a request may ask for."""

_SCORE = np.dtype([("known", np.int32), ("ids", np.int32, KEPT), ("top", np.float32, KEPT), ("log_sum", np.float64)])
ROOM = _SCORE.itemsize
"""Bytes that a stored row needs after the hidden row itself; all zero: nothing is known of it."""

Which = npt.NDArray[np.intp]


class ScoredRows:
    """Stored rows, some of which have been scored before.

    Args:
        views: uint8 [·, row_bytes + ROOM], into the stores of pages, in order; what is learnt of them goes there.
    """

    def __init__(self, views: list[U8]) -> None:
        self._views = views
        stored = np.concatenate(views)
        self.rows: U8 = stored[:, :-ROOM]
        self._scores = np.ascontiguousarray(stored[:, -ROOM:]).view(_SCORE)[:, 0]

    def which(self, *, known: bool) -> Which:
        """The rows that have been scored, or that have not."""
        return np.flatnonzero((self._scores["known"] != 0) == known)

    def learn(self, which: Which, scores: Scores) -> None:
        """Rows have been scored, with the first ``KEPT`` alternatives, or as many as there are."""
        found, kept = np.zeros(len(which), _SCORE), scores.top.shape[1]
        found["known"], found["log_sum"] = 1, scores.log_sums
        found["ids"][:, :kept], found["top"][:, :kept] = scores.top_ids, scores.top
        self._scores[which] = found

    def keep(self) -> None:
        """Put what was learnt where the rows are stored."""
        flat = self._scores[:, None].view(np.uint8)
        first = 0
        for view in self._views:
            view[:, -ROOM:] = flat[first : first + len(view)]
            first += len(view)

    def of_known(self, known: Which, logits: F32) -> F32:
        """Log-probabilities of targets, float32 [K], by their logits."""
        chosen: F32 = (logits - self._scores["log_sum"][known]).astype(np.float32)  # in double precision, rounded once, as the core does it
        return chosen

    def scores(self, chosen: F32, most: int) -> Scores:
        """Of all rows, which are known by now.

        Args:
            chosen: log-probabilities of each row's target, float32 [R].
            most: alternatives, at most ``KEPT``.
        """
        told = self._scores
        ids: I32 = told["ids"][:, :most]
        return Scores(chosen, ids, told["top"][:, :most], told["log_sum"])
