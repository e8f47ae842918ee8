"""Text for any bytes, any tokens, any chunking: against oracles that see everything at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenEvent, TokenText
from quintet.text.choice import Choice
from quintet.text.detokenize import Detokenizer, align, token_texts
from quintet.text.entries import Echo
from quintet.text.labels import Labels
from quintet.text.stop import StopMatcher, compile_stops

PREFIXES = {
    encoded[:size]
    for code in range(0x80, 0x110000, 64)  # prefixes do not see the last six bits
    if not 0xD800 <= code < 0xE000
    for encoded in [chr(code).encode()]
    for size in range(1, len(encoded))
}
"""Every byte string that is a proper beginning of some character."""

# Bytes that meet often: every kind of lead and continuation byte, beside plain letters.
BITS = [b"a", b"b", b"<", "é".encode(), "€".encode(), "😀".encode(), b"\xe0", b"\xed", b"\xf0", b"\xf4", b"\x80", b"\xa0", b"\xff"]
BYTES = st.one_of(st.binary(max_size=24), st.lists(st.sampled_from(BITS), max_size=16).map(b"".join))
TEXT = st.text("ab€", max_size=30)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=5), max_size=4)


def settled(data: bytes) -> str:
    """The text of ``data`` without the bytes that may still become a character."""
    held = next((size for size in (3, 2, 1) if data[-size:] in PREFIXES and len(data) >= size), 0)
    return data[: len(data) - held].decode("utf-8", "replace")


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """End and stop string of the winning match: earliest end, then longest."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end, stop
    return None


def splits(data: st.DataObject, whole: bytes) -> list[bytes]:
    """``whole`` in pieces, empty ones too."""
    marks = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=len(whole) + 2), label="marks"))
    return [whole[low:high] for low, high in pairwise([0, *marks, len(whole)])]


@settings(deadline=None)
@given(BYTES, st.data())
def test_any_chunking_of_bytes_decodes_like_the_whole(whole: bytes, data: st.DataObject) -> None:
    """And after each piece everything is out but what may still become a character."""
    detokenizer = Detokenizer()
    seen, text = b"", ""
    for piece in splits(data, whole):
        seen += piece
        text += detokenizer.feed(piece)
        assert text == settled(seen)
        assert detokenizer.pending == (text != seen.decode("utf-8", "replace"))
    assert text + detokenizer.flush() == whole.decode("utf-8", "replace")
    assert detokenizer.flush() == ""


@pytest.mark.fault("H07")
@settings(deadline=None)
@given(BYTES, st.data())
def test_token_texts_join_to_the_text(whole: bytes, data: st.DataObject) -> None:
    pieces = splits(data, whole)
    texts = token_texts(pieces)
    assert len(texts) == len(pieces)
    assert "".join(texts) == whole.decode("utf-8", "replace")
    assert all(not text for piece, text in zip(pieces, texts, strict=True) if not piece)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.text("ab<", max_size=3)] * 2), min_size=1, max_size=12), st.text("ab<", max_size=30))
def test_aligned_spans_always_join_to_the_prompt(tokens: list[tuple[str, str]], whole: str) -> None:
    texts = [text for text, _ in tokens]
    spans = list(align(texts, whole, ["" if text else name for text, name in tokens]))
    assert len(spans) == len(texts)
    assert "".join(spans) == whole


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=12))
def test_alignment_changes_nothing_where_texts_already_join(texts: list[str]) -> None:
    assert [text for text in align(texts, "".join(texts), [""] * len(texts)) if text] == [text for text in texts if text]


@pytest.mark.fault("A18")
@settings(deadline=None)
@given(STOPS, TEXT, st.booleans(), st.data())
@example(["abcd", "bc"], "abcd", False, None)
@example(["bc", "abc"], "abc", False, None)
@example(["ab", "b"], "ab", True, None)
def test_any_chunking_of_text_finds_the_same_stop(stops: list[str], text: str, include: bool, data: st.DataObject | None) -> None:
    """The winner is the brute-force one, and what is held back is the longest end that is a proper beginning of a stop."""
    winner = first_stop(text, stops)
    matcher = StopMatcher(compile_stops(stops), include)
    seen = out = ""
    hit = None
    for piece in chunks(data, text):
        seen += piece
        final, hit = matcher.feed(piece)
        out += final
        if hit is not None:
            break
        assert out + longest_hold(seen, stops) == seen
    if winner is None:
        assert hit is None
        assert out + matcher.flush() == text
    else:
        end, stop = winner
        assert hit == stop
        assert out == text[: end if include else end - len(stop)]


def chunks(data: st.DataObject | None, text: str) -> list[str]:
    if data is None:
        return list(text)
    marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8), label="marks"))
    return [text[low:high] for low, high in pairwise([0, *marks, len(text)])]


def longest_hold(text: str, stops: list[str]) -> str:
    holds = [stop[:size] for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(holds, key=len, default="")


@dataclass(frozen=True)
class Run:
    """One run of a choice and what came out."""

    deltas: list[ChoiceDelta]
    done: ChoiceDone
    counted: int

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> list[TokenText]:
        return [token for delta in self.deltas for token in delta.tokens]


def run(events: list[TokenEvent], stops: list[str], include: bool, logprobs: bool, prompt: str = "", echo: Echo | None = None) -> Run:
    rest = {"logprobs": logprobs, "patterns": compile_stops(stops), "include": include, "seed": 3, "labels": Labels([b"x"] * 300)}
    choice = Choice(7, start=len(prompt), echo=echo, **rest)  # type: ignore[arg-type]
    out: list[ChoiceDelta | ChoiceDone] = []
    for event in events:
        out += choice.feed(event)
        assert choice.done == (bool(out) and isinstance(out[-1], ChoiceDone))
        if choice.done:
            break
    *deltas, done = out
    assert isinstance(done, ChoiceDone)
    return Run([delta for delta in deltas if isinstance(delta, ChoiceDelta)], done, choice.completion_tokens)


def sequence(pieces: list[bytes], finish: Finish) -> list[TokenEvent]:
    """Generated tokens; their ids are their numbers. At end-of-sequence one token without bytes more."""
    pieces = [*pieces, b""] if finish is Finish.EOS or not pieces else pieces
    *start, last = [TokenEvent(0, index, piece, -0.5, ((299, -0.25),)) for index, piece in enumerate(pieces)]
    return [*start, TokenEvent(0, last.token, last.piece, last.logprob, last.top, finish=finish)]


CHOICE_STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "€", "<", "a<", "€😀", "\ufffd", "b\ufffd", "aab"]), max_size=3)
FINISH = st.sampled_from([Finish.EOS, Finish.LENGTH, Finish.ABORT])


@pytest.mark.fault("A18")
@settings(deadline=None)
@given(BYTES, CHOICE_STOPS, st.booleans(), FINISH, st.data())
def test_text_and_finish_do_not_depend_on_the_tokens(
    whole: bytes, stops: list[str], include: bool, finish: Finish, data: st.DataObject
) -> None:
    """Joined deltas are the decoded bytes up to the cut, with and without log-probabilities, for any split into tokens."""
    text = whole.decode("utf-8", "replace")
    winner = first_stop(text, stops)
    events = sequence(splits(data, whole), finish)
    for logprobs in (False, True):
        result = run(events, stops, include, logprobs)
        if winner is None:
            assert (result.text, result.done.finish, result.done.stop) == (text, finish, "")
        else:
            end, stop = winner
            assert (result.text, result.done.finish, result.done.stop) == (text[: end if include else end - len(stop)], Finish.STOP, stop)


@settings(deadline=None)
@given(BYTES, CHOICE_STOPS, st.booleans(), FINISH, st.data())
def test_counted_are_the_tokens_up_to_the_one_that_completed_the_stop(
    whole: bytes, stops: list[str], include: bool, finish: Finish, data: st.DataObject
) -> None:
    events = sequence(splits(data, whole), finish)
    expected = len(events)
    for count in range(1, len(events) + 1):
        if first_stop(settled(b"".join(event.piece for event in events[:count])), stops):
            expected = count
            break
    assert run(events, stops, include, False).counted == expected
    assert run(events, stops, include, True).counted == expected


@pytest.mark.fault("H07")
@settings(deadline=None)
@given(BYTES, CHOICE_STOPS, st.booleans(), FINISH, st.text("ab€😀", max_size=4), st.data())
def test_entries_and_offsets_slice_the_returned_text(
    whole: bytes, stops: list[str], include: bool, finish: Finish, prompt: str, data: st.DataObject
) -> None:
    """The entries are the first tokens of the sequence; their texts join to the text, delta by delta, and offsets slice it."""
    events = sequence(splits(data, whole), finish)
    result = run(events, stops, include, True, prompt=prompt)
    everything = prompt + result.text
    assert [token.token for token in result.tokens] == list(range(len(result.tokens)))
    assert [token.raw for token in result.tokens] == [event.piece for event in events[: len(result.tokens)]]
    for delta in result.deltas:
        assert delta.tokens
        assert "".join(token.text for token in delta.tokens) == delta.text
    at = len(prompt)
    for token in result.tokens:
        assert token.offset == at
        assert everything[token.offset : token.offset + len(token.text)] == token.text
        assert token.top == ((299, "x", -0.25), (token.token, token.label, -0.5))
        assert token.name == ("" if token.raw else "x")
        at += len(token.text)
    if result.done.finish is not Finish.STOP:
        assert len(result.tokens) == len(events)
    elif ends := [token for token in result.tokens[-1:] if token.raw]:
        assert ends[0].text  # no fragment of a character that was cut away


@settings(deadline=None)
@given(BYTES, CHOICE_STOPS, st.data())
def test_no_released_text_is_ever_taken_back(whole: bytes, stops: list[str], data: st.DataObject) -> None:
    """At every moment what was sent holds no stop string and is a beginning of the final text."""
    events = sequence(splits(data, whole), Finish.LENGTH)
    result = run(events, stops, False, False)
    sent = ""
    for delta in result.deltas:
        sent += delta.text
        assert first_stop(sent, stops) is None
    assert whole.decode("utf-8", "replace").startswith(sent)


@settings(deadline=None)
@given(BYTES, BYTES, CHOICE_STOPS, st.data())
def test_echo_puts_the_prompt_in_front_and_changes_nothing_else(before: bytes, whole: bytes, stops: list[str], data: st.DataObject) -> None:
    """The prompt is the first delta, alone, with all its tokens; stops are not looked for in it; offsets are the same without it."""
    prompt = before.decode("utf-8", "replace")
    pieces = [b"", *splits(data, before)]  # a BOS has no bytes
    echo = Echo(prompt, range(len(pieces)), Labels(pieces))
    for index, piece in enumerate(pieces):
        echo.add(TokenEvent(0, index, piece, -1.0 if index else None, prompt=True))
    events = sequence(splits(data, whole), Finish.EOS)
    plain = run(events, stops, False, True, prompt=prompt)
    echoed = run(events, stops, False, True, prompt=prompt, echo=echo)
    first, *rest = echoed.deltas
    assert (first.text, rest, echoed.done, echoed.counted) == (prompt, plain.deltas, plain.done, plain.counted)
    assert [token.raw for token in first.tokens] == pieces
    assert "".join(token.text for token in first.tokens) == prompt
    assert all(prompt[token.offset :].startswith(token.text) for token in first.tokens)
    assert run(events, stops, False, False, prompt=prompt, echo=Echo(prompt, (), Labels(()))).text == echoed.text
