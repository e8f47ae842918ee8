"""``top_logprobs`` as a map of texts: as many entries as alternatives, and the sampled token's own under its own text."""

from __future__ import annotations

from quintet.dialects.wire import FLOOR, top_map
from quintet.events import TokenText


def made(text: str, logprob: float, *others: tuple[str | bytes, float], name: str = "") -> dict[str, float] | None:
    raws = [other.encode() if isinstance(other, str) else other for other, _ in others]
    top = [
        (0, name or text, logprob),
        *((at, raw.decode(errors="replace"), value) for at, (raw, (_, value)) in enumerate(zip(raws, others, strict=True), 1)),
    ]
    return top_map(TokenText(0, text, text.encode(), logprob, tuple(top), 0, name, top_raw=(text.encode(), *raws)))


def test_alternatives_that_are_parts_of_characters_are_told_apart_by_their_bytes() -> None:
    """OpenAI's page, logprobs: "if `logprobs` is 5, the API will return a list of the 5 most likely tokens"."""
    some = made("", -1.5, (b"\xe3\x83", -0.5), (b"\xe3\x81", -2.0), ("\u3042", -3.0), (b"a\xff", -4.0))
    assert some == {"": -1.5, r"bytes:\xe3\x83": -0.5, r"bytes:\xe3\x81": -2.0, "\u3042": -3.0, r"bytes:\x61\xff": -4.0}


def test_a_token_of_the_sampled_ones_text_does_not_take_its_place() -> None:
    """lm-eval takes a token for the likeliest where its text has the largest value."""
    assert made("\u672c", -2.0, ("\u672c", -0.5)) == {"\u672c": -2.0, r"bytes:\xe6\x9c\xac": -0.5}


def test_the_character_that_stands_for_broken_ones_has_its_own_text() -> None:
    assert made("a", -0.5, ("\ufffd", -1.0), (b"\xff", -2.0)) == {"a": -0.5, "\ufffd": -1.0, r"bytes:\xff": -2.0}


def test_of_several_with_the_same_bytes_the_likeliest_counts_and_none_is_below_the_floor() -> None:
    assert made("a", -9.0, ("b", -2.0), ("b", -1.0), ("c", float("-inf"))) == {"a": -9.0, "b": -2.0, r"bytes:\x62": -1.0, "c": FLOOR}
