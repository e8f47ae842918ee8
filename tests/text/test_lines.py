"""Ends of a text by its lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenText
from quintet.text.lines import LineLimit


def delta(text: str) -> ChoiceDelta:
    """A piece in tokens of two characters."""
    parts = [text[at : at + 2] for at in range(0, len(text), 2)]
    return ChoiceDelta(0, text, tuple(TokenText(1, part, part.encode(), None, (), 0) for part in parts))


def run(pieces: list[str], indent: int, seconds: float = 0.0, elapsed: float = 0.0) -> tuple[str, bool]:
    limit, text = LineLimit(indent, seconds), ""
    for piece in pieces:
        events, ended = limit.feed([delta(piece)], elapsed)
        for event in events:
            assert isinstance(event, ChoiceDelta)
            assert "".join(token.text for token in event.tokens) == event.text != ""
            text += event.text
        if ended:
            return text, True
    return text, False


def allowed(text: str, indent: int) -> str:
    """The oracle: line by line."""
    first, *others = text.split("\n")
    kept = first
    for line in others:
        blanks = len(line) - len(line.lstrip(" \t"))
        kept += "\n" + line[:blanks]
        rest = line[blanks:]
        if blanks < indent and (rest or text[len(kept) :]):
            return kept
        kept += rest
    return kept


@settings(deadline=None)
@given(st.text("ab \t\n", max_size=30), st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1))
def test_a_line_that_is_not_indented_enough_ends_the_text_however_it_is_cut(text: str, indent: int, sizes: list[int]) -> None:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        pieces.append(text[at : at + sizes[len(pieces) % len(sizes)]])
        at += len(pieces[-1])
    wanted = allowed(text, indent)
    assert run(pieces, indent) == (wanted, wanted != text)


def test_late_the_first_piece_with_a_line_break_is_the_last() -> None:
    assert run(["a", "b\nc", "d"], 0, seconds=1.0, elapsed=1.5) == ("ab\nc", True)
    assert run(["a", "b\nc", "d"], 0, seconds=1.0, elapsed=0.5) == ("ab\ncd", False)


def test_an_end_of_another_kind_passes() -> None:
    done = ChoiceDone(0, Finish.EOS)
    assert LineLimit(2, 0.0).feed([delta("a"), done], 0.0) == ([delta("a"), done], False)
