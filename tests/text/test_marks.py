"""Prompts with images: which token has which of the text that the client sent."""

from __future__ import annotations

import pytest

from quintet.text.labels import Labels
from quintet.text.marks import Marks, marked_spans

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
    assert spans(prompt, tokens, Marks(runs, "<i>")) == texts


def test_what_was_put_around_an_image_has_no_text_and_the_same_in_the_prompt_has() -> None:
    tokens = [A, LINES, LINES, IMAGE, IMAGE, LINES, LINES, IMAGE, LINES, LINES, B, END]
    texts = ["a", "\n\n", "", "<i>", "", "", "", "<i>", "", "\n\n", "b", "</s>"]
    assert spans("a\n\n<i><i>\n\nb</s>", tokens, Marks([(3, 2), (7, 1)], "<i>", "\n\n")) == texts


def test_in_a_prompt_of_ids_an_image_has_what_stands_for_the_clients_one_token() -> None:
    tokens = [A, END, END, IMAGE, IMAGE, IMAGE, B, IMAGE]
    texts = ["a", "</s>", "</s>", "<image>", "", "", "b", "<image>"]
    assert spans("a</s></s><image>b<image>", tokens, Marks([(3, 3), (7, 1)])) == texts
