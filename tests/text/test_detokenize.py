"""Bytes to text, case by case."""

from __future__ import annotations

import pytest

from quintet.text.detokenize import Detokenizer, align, token_texts


def aligned(texts: list[str], whole: str, names: list[str] | None = None) -> list[str]:
    return list(align(texts, whole, names or [""] * len(texts)))


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"\xf0", b"\x9f", b"\x98", b"\x80"], ["", "", "", "😀"]),
        ([b"\xe2\x82", b"A"], ["", "\ufffdA"]),  # cannot become a character any more
        ([b"\xed", b"\xa0", b"\x80"], ["", "\ufffd\ufffd", "\ufffd"]),  # a surrogate is refused at its second byte
        ([b"\xe0", b"\x80"], ["", "\ufffd\ufffd"]),  # overlong
        ([b"\xf4", b"\x90"], ["", "\ufffd\ufffd"]),  # past U+10FFFF
        ([b"\xf5", b"\xc0", b"\xff"], ["\ufffd"] * 3),  # never a lead byte
        ([b"a\xe2", b"\x82\xacb\xf0", b""], ["a", "€b", ""]),
    ],
)
def test_each_piece_gives_what_it_makes_final(pieces: list[bytes], texts: list[str]) -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(piece) for piece in pieces] == texts


def test_the_first_and_last_characters_of_each_length_and_lead_arrive_whole() -> None:
    places = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xCFFF, 0xD000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF)
    for text in map(chr, places):
        detokenizer, data = Detokenizer(), text.encode()
        assert [detokenizer.feed(data[at : at + 1]) for at in range(len(data))] == [""] * (len(data) - 1) + [text]


def test_unfinished_bytes_at_the_end_are_one_replacement_character() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"a\xf0\x9f\x98") == "a"
    assert detokenizer.pending
    assert detokenizer.flush() == "\ufffd"
    assert not detokenizer.pending


def test_the_end_belongs_to_the_last_token_that_has_bytes() -> None:
    assert token_texts([b"a", b"\xf0", b"\x9f", b""]) == ["a", "", "\ufffd", ""]
    assert token_texts([]) == []


@pytest.mark.fault("A21")
def test_control_tokens_written_out_in_a_prompt_take_the_text_between_their_neighbours() -> None:
    """BOS is not in the text at all; the control token just before the next text takes what is unclaimed."""
    texts = ["", "", "user", "\n", "Is it i?", "", "\n"]
    prompt = "<|im_start|>user\nIs it i?<|im_end|>\n"
    assert aligned(texts, prompt) == ["", "<|im_start|>", "user", "\n", "Is it i?", "<|im_end|>", "\n"]


def test_a_short_token_is_not_found_inside_the_control_token_before_it() -> None:
    assert aligned(["", "im", " a", "", "\n"], "<|im_start|>im a<|im_end|>\n") == ["<|im_start|>", "im", " a", "<|im_end|>", "\n"]


@pytest.mark.fault("A21")
@pytest.mark.parametrize("text", ["a", "x", "t|>"])
def test_a_control_token_is_known_by_its_name_also_where_the_text_after_it_is_a_part_of_that(text: str) -> None:
    spans = ["<|im_start|>", text, "<|endoftext|>", text, "<|im_end|>"]
    texts = ["", text, "", text, ""]
    assert aligned(texts, "".join(spans), [span if not own else "" for span, own in zip(spans, texts, strict=True)]) == spans


@pytest.mark.parametrize(
    ("texts", "spans"),
    [
        (["", " the", " cat", ".", " the", " cat", "."], ["", "the", " cat", ".", " the", " cat", "."]),
        (["", " a", "", " b", " b"], ["", "a", "</s>", "b", " b"]),
        (["", " a", "", " b", " b"], ["", "a", "</s>", " b", " b"]),
        (["", " ", "\n", " ", "a"], ["", "", "\n", " ", "a"]),
    ],
)
def test_the_space_that_sentencepiece_adds_is_not_looked_for_later(texts: list[str], spans: list[str]) -> None:
    assert aligned(texts, "".join(spans)) == spans


def test_a_normalised_token_takes_what_the_next_one_leaves() -> None:
    assert aligned(["caf", "é", " au"], "cafe\u0301 au") == ["caf", "e\u0301", " au"]


def test_what_is_left_belongs_to_the_last_token() -> None:
    assert aligned(["a"], "ab") == ["ab"]
    assert aligned(["", "a", ""], "a<eos>") == ["", "a", "<eos>"]


def test_aligning_a_long_prompt_that_never_matches_ends() -> None:
    """A search is bounded, so that the whole is linear in the prompt."""
    spans = aligned(["x"] * 100_000, "y" * 400_000)
    assert spans[-1] == "y" * 400_000
