"""Prompts with images: which token has which of the text that the client sent."""

from __future__ import annotations

import pytest

from quintet.text.labels import Labels
from quintet.text.marks import IdMarks, Marks, TextMarks, marked_spans

PIECES = [b"", b"a", b"b", b"\n\n", b""]
IMAGE, A, B, LINES, END = range(5)
LABELS = Labels(PIECES, lambda token: {IMAGE: "<image>", END: "</s>"}.get(token, ""))


def spans(prompt: str, tokens: list[int], marks: Marks) -> list[str]:
    return list(marked_spans(prompt, tokens, LABELS, PIECES.__getitem__, marks))


@pytest.mark.parametrize(
    ("prompt", "tokens", "runs", "texts"),
    [
        ("a<i>b", [A, IMAGE, IMAGE, IMAGE, B], [(1, 3)], ["a", "<i>", "", "", "b"]),
        ("<i>ab", [IMAGE, IMAGE, A, B], [(0, 2)], ["<i>", "", "a", "b"]),
        ("ab<i>", [A, B, IMAGE], [(2, 1)], ["a", "b", "<i>"]),
        ("<i><i>b<i>", [*[IMAGE] * 5, B, IMAGE], [(0, 2), (2, 3), (6, 1)], ["<i>", "", "<i>", "", "", "b", "<i>"]),
    ],
)
def test_the_first_token_of_an_image_has_its_marks_text(
    prompt: str, tokens: list[int], runs: list[tuple[int, int]], texts: list[str]
) -> None:
    assert spans(prompt, tokens, TextMarks(runs=runs, text="<i>")) == texts


def test_what_was_put_around_an_image_has_no_text_and_the_same_in_the_prompt_has() -> None:
    tokens = [A, LINES, LINES, IMAGE, IMAGE, LINES, LINES, IMAGE, LINES, LINES, B, END]
    texts = ["a", "\n\n", "", "<i>", "", "", "", "<i>", "", "\n\n", "b", "</s>"]
    assert spans("a\n\n<i><i>\n\nb</s>", tokens, TextMarks(runs=[(3, 2), (7, 1)], text="<i>", around="\n\n")) == texts


def spans_of_ids(ids: list[int], tokens: list[int], runs: list[tuple[int, int]]) -> list[str]:
    return list(marked_spans("", tokens, LABELS, LABELS.written, IdMarks(runs=runs, ids=ids, mark=IMAGE)))


def test_in_a_prompt_of_ids_an_image_has_what_stands_for_the_clients_one_token() -> None:
    ids = [A, END, END, IMAGE, B, IMAGE]
    tokens = [A, END, END, IMAGE, IMAGE, IMAGE, B, IMAGE]
    assert spans_of_ids(ids, tokens, [(3, 3), (7, 1)]) == ["a", "</s>", "</s>", "<image>", "", "", "b", "<image>"]


def test_in_a_prompt_of_ids_each_of_two_images_beside_each_other_has_the_text_of_its_own_token() -> None:
    assert spans_of_ids([IMAGE, IMAGE, A], [IMAGE, IMAGE, IMAGE, A], [(0, 2), (2, 1)]) == ["<image>", "", "<image>", "a"]


def test_what_was_put_around_an_image_among_ids_has_no_text_and_the_same_among_the_clients_has() -> None:
    ids = [A, IMAGE, LINES, B, IMAGE, IMAGE]
    tokens = [A, LINES, END, IMAGE, END, LINES, LINES, B, LINES, END, IMAGE, END, LINES, LINES, END, IMAGE, END, LINES]
    texts = ["a", "", "<image>", "", "", "", "\n\n", "b", *["", "<image>", "", "", ""] * 2]
    assert spans_of_ids(ids, tokens, [(2, 3), (9, 3), (14, 3)]) == texts
