"""A draft model computes the logits of the half of its tokens that texts are made of, and of all where one is not."""

from __future__ import annotations

from quintet.backends.native.draft.columns import Columns


def test_the_first_half_until_a_text_has_tokens_of_the_other() -> None:
    columns = Columns(1000, halves=True)
    assert columns.count == 500
    columns.learn([499, 0, 500])
    assert columns.count == 500
    columns.learn([999] * 3)
    assert columns.count == 1000


def test_a_token_of_the_other_half_now_and_then_is_not_worth_all_of_them() -> None:
    columns = Columns(1000, halves=True)
    for _ in range(20):
        columns.learn([*range(100), 700])
        assert columns.count == 500


def test_the_half_again_when_texts_are_made_of_it_again() -> None:
    columns = Columns(1000, halves=True)
    columns.learn([999] * 1000)
    columns.learn([1] * 300)
    assert columns.count == 1000
    columns.learn([1] * 100)
    assert columns.count == 500


def test_all_of_them_where_a_part_cannot_be_had() -> None:
    columns = Columns(1000, halves=False)
    columns.learn([1] * 100)
    assert columns.count == 1000
