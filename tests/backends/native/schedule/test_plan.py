"""A plan's rows, laid end to end for the model."""

from __future__ import annotations

import numpy as np

from quintet.backends.native.schedule.plan import Kind, Plan, Segment
from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.request import Sampling


def seq(index: int) -> Sequence:
    return Sequence(0, index, Group((1,), False, None), 9, Sampling(0.0, 1.0, 0), None)


def test_a_step_of_every_kind_is_laid_out_as_the_picture_of_the_module_says() -> None:
    plan = Plan()
    plan.add(Segment(seq(0), Kind.DECODE, 7, 9, [10], 1, 1))
    plan.add(Segment(seq(1), Kind.DECODE, 5, 4, [20, 21, 22], 3, 3))
    prefill = Segment(seq(2), Kind.PREFILL, 3, 0, [30, 31, 32, 33], 1, 1)
    plan.add(prefill)
    plan.add(Segment(seq(3), Kind.FORK, 2, 4, [], draws=1, origin=prefill))
    flat = plan.flatten()
    assert plan.tokens == 8
    assert plan.prefilled == 4
    assert flat.tokens == [10, 20, 21, 22, 30, 31, 32, 33]
    assert (flat.lengths, flat.starts, flat.slots) == ([1, 3, 4], [9, 4, 0], [7, 5, 3])
    assert flat.rows == [0, 1, 2, 3, 7]
    assert flat.origins == [0, 1, 2, 3, 4, 4]
    assert [segment.draft for segment in flat.drawing] == [[], [21, 22], [], []]


def test_kept_rows_are_numbered_after_all_rows_of_the_step_and_stores_begin_where_their_segments_rows_do() -> None:
    kept, pages = [np.zeros(4, np.uint8)] * 2, [np.zeros((2, 4), np.uint8), np.zeros((1, 4), np.uint8)]
    plan = Plan()
    plan.add(Segment(seq(0), Kind.DECODE, 0, 0, [1], 1, 1))
    plan.add(Segment(seq(1), Kind.FORK, 1, 4, [], draws=1, origin=kept[0]))
    plan.add(Segment(seq(2), Kind.FORK, 2, 4, [], draws=1, origin=kept[1]))
    plan.add(Segment(seq(3), Kind.PREFILL, 3, 0, [2, 3, 4], 3, stores=pages))
    flat = plan.flatten()
    assert flat.rows == [0, 1, 2, 3]
    assert [(len(view), first) for view, first in flat.stores] == [(2, 1), (1, 3)]
    assert flat.origins == [0, 4, 5]
    assert len(flat.saved) == 2
