"""Stored hidden rows are scored once: later the same log-probabilities come without the output matrix."""

from __future__ import annotations

import numpy as np
from tests.backends.native.schedule.plain_samplers import PlainSamplers

from quintet.backends.native.core.scored_rows import ROOM
from quintet.backends.native.core.types import I32, U8
from quintet.backends.native.schedule.pages import BlockTables
from quintet.backends.native.schedule.plan import ScoreJob
from quintet.backends.native.worker.step import Stepper
from quintet.backends.toy import VOCAB, ToyRunner


class Counting(ToyRunner):
    """Counts the rows that went through the output matrix."""

    scored = 0

    def logits(self, rows: U8) -> np.ndarray:
        self.scored += len(rows)
        return super().logits(rows)

    def logits_of(self, rows: U8, tokens: I32) -> np.ndarray:
        return ToyRunner().logits(rows)[np.arange(len(tokens)), tokens]


def test_rows_are_judged_once_and_the_scores_stay_the_same_whatever_the_targets_and_the_number_of_alternatives() -> None:
    runner = Counting()
    stepper = Stepper(runner, BlockTables(1, 1), PlainSamplers())
    rng = np.random.default_rng(1)
    store = np.zeros((48, runner.row_bytes + ROOM), np.uint8)
    store[:, :-ROOM] = rng.integers(0, 256, (48, runner.row_bytes))
    store[:, 8:10] = rng.integers(0, VOCAB, (48, 1)).astype("<u2").view(np.uint8)
    pages = [store[:16], store[16:32], store[32:]]
    first = stepper._score([ScoreJob([pages[0][3:], pages[1]], list(range(29)), 20)])[0]
    assert runner.scored == 29
    again = stepper._score([ScoreJob([pages[0][3:], pages[1]], list(range(29)), 20)])[0]
    assert runner.scored == 29
    assert first is not None
    assert again is not None
    for one, other in ((first.chosen, again.chosen), (first.top_ids, again.top_ids), (first.top, again.top)):
        np.testing.assert_array_equal(one, other)
    others = [ScoreJob([page], [7] * 16, top) for page, top in zip(pages, (0, 3, 5), strict=True)]
    mixed = stepper._score(others)
    assert runner.scored == 29 + 3 + 16
    alone = Stepper(ToyRunner(), BlockTables(1, 1), PlainSamplers())
    store[:, -ROOM:] = 0
    for job, found in zip(others, mixed, strict=True):
        fresh = alone._score([job])[0]
        assert fresh is not None
        assert found is not None
        np.testing.assert_array_equal(found.chosen, fresh.chosen)
        np.testing.assert_array_equal(found.top[:, : job.top], fresh.top[:, : job.top])
        np.testing.assert_array_equal(found.top_ids[:, : job.top], fresh.top_ids[:, : job.top])
