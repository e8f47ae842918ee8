"""The ids of a text that grows are those of the whole text, and what is encoded for them is what is new and a bit before it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bundled import bundled_path

from quintet.backends.native.worker.load import load_tokenizer
from quintet.inputs.tokenizer import Tokenizer
from quintet.moderation.growing import BACK, Growing

CHUNK = 60
WORDS = [
    "the",
    " naïve",
    " €",
    "\n\n",
    "    ",
    "1234567",
    " def f(x):",
    "…",
    " \U0001d538",
    "\t",
    "'ll",
    "https://",
    "日本語",
    ".",
    " a",
    "zzz" * 9,
]


@cache
def bundled() -> Tokenizer:
    return load_tokenizer(bundled_path(), None)


def grown(texts: Sequence[str], encode: Callable[[str], Sequence[int]], pieces: Sequence[bytes]) -> tuple[list[list[int]], int]:
    """The ids of each text, and the characters that were encoded for them all."""
    seen = 0

    async def counted(text: str) -> Sequence[int]:
        nonlocal seen
        seen += len(text)
        return encode(text)

    async def go() -> list[list[int]]:
        growing = Growing(counted, pieces)
        return [list(await growing.ids(text)) for text in texts]

    return asyncio.run(go()), seen


def prefixes(text: str, step: int, after: str = "") -> list[str]:
    return [text[:end] + after for end in range(step, len(text) + step, step)]


@pytest.mark.parametrize("after", ["", "]\nIs it safe?"])
def test_what_is_encoded_grows_with_the_text_and_not_with_its_square(after: str) -> None:
    draw = random.Random(1)
    text = "".join(draw.choice(WORDS) for _ in range(6_000))
    texts, encode = prefixes(text, CHUNK, after), bundled().encode_quoted
    found, seen = grown(texts, encode, bundled().pieces)
    assert found[-1] == encode(texts[-1])
    assert seen < len(texts) * (BACK + 4 * CHUNK)
    assert sum(map(len, texts)) > 20 * seen


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS) | st.text(max_size=5), min_size=100, max_size=600),
    st.integers(1, 300),
    st.sampled_from(["", "|", "\n>"]),
)
def test_the_ids_are_those_of_the_whole_text(words: list[str], step: int, after: str) -> None:
    texts = prefixes("".join(words), step, after)[-12:]
    found, _ = grown(texts, bundled().encode_quoted, bundled().pieces)
    assert found == [bundled().encode_quoted(text) for text in texts]


@pytest.mark.parametrize("text", ["a" * 5000, " " * 5000, "1" * 5000, "\n" * 5000, "é" * 3000, "ab" * 3000, "\N{ZERO WIDTH JOINER}" * 2000])
def test_a_run_without_words(text: str) -> None:
    texts = prefixes(text, 700, "!")
    found, _ = grown(texts, bundled().encode_quoted, bundled().pieces)
    assert found == [bundled().encode_quoted(text) for text in texts]


def test_a_space_that_is_put_before_each_text_is_put_before_the_whole_one_only() -> None:
    pieces = [bytes([byte]) for byte in range(256)]
    texts = prefixes("".join(f"{number} " for number in range(900)), 100)

    def encode(text: str) -> Sequence[int]:
        return [*b" " + text.encode()]

    found, seen = grown(texts, encode, pieces)
    assert found == [encode(text) for text in texts]
    assert seen < sum(map(len, texts)) / 2


@pytest.mark.parametrize("character", ["À", "ÿ"], ids=["80", "bf"])
def test_tokens_may_begin_inside_a_character(character: str) -> None:
    """Of three bytes each here, over characters of two."""
    three = character.encode() * 3
    pieces = [*(bytes([byte]) for byte in range(256)), three[:3], three[3:]]
    texts = prefixes(character * 3000, 30)

    def encode(text: str) -> Sequence[int]:
        data = text.encode()
        whole = len(data) // 3
        return [*(256 + at % 2 for at in range(whole)), *data[whole * 3 :]]

    found, seen = grown(texts, encode, pieces)
    assert found == [encode(text) for text in texts]
    assert seen < sum(map(len, texts)) / 2


def test_a_token_may_be_longer_than_what_is_encoded_again() -> None:
    pieces = [*(bytes([byte]) for byte in range(256)), b"x" * 2 * BACK]
    texts = ["a" * BACK + "x" * 2 * BACK + "b" * count for count in range(3)]

    def encode(text: str) -> Sequence[int]:
        return [*b"a" * BACK, 256, *text[3 * BACK :].encode()]

    assert grown(texts, encode, pieces)[0] == [encode(text) for text in texts]


def test_pieces_that_do_not_spell_the_text_have_all_of_it_encoded() -> None:
    texts = prefixes("Ab" * 1000, 500)

    def encode(text: str) -> Sequence[int]:
        return [*text.lower().encode()]

    found, seen = grown(texts, encode, [bytes([byte]) for byte in range(256)])
    assert found == [encode(text) for text in texts]
    assert seen == sum(map(len, texts))


def test_a_text_that_is_another_one_is_encoded_as_it_is() -> None:
    texts = ["one " * 400, "two " * 400, "one " * 400 + "two", "one"]
    found, _ = grown(texts, bundled().encode_quoted, bundled().pieces)
    assert found == [bundled().encode_quoted(text) for text in texts]
