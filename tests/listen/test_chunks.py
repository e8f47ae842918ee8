"""How far a body in chunks goes, however it is cut: never behind its end, and to its end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quintet.listen.chunks import Chunks

CONTENT = st.text("a0;\r\n", min_size=1, max_size=40).map(str.encode)
EXTENSION = st.sampled_from([b"", b";e", b' ; e="\\"0"', b";" + b"0" * 50])
CHUNK = st.tuples(CONTENT, EXTENSION, st.sampled_from(["%x", "%X", "000%x"])).map(
    lambda chunk: (chunk[2] % len(chunk[0])).encode() + chunk[1] + b"\r\n" + chunk[0] + b"\r\n"
)
END = st.tuples(st.sampled_from([b"0", b"000"]), EXTENSION, st.sampled_from([b"", b"a: 0\r\n", b"a: 1\r\nb: 0\r\n"]))


@settings(max_examples=300, deadline=None)
@given(st.lists(CHUNK, max_size=4), END, st.lists(st.integers(0, 300), max_size=12), st.sampled_from([80, 100, 10_000]))
@example([b"5\r\n0\r\n\r\n\r\n"], (b"0", b"", b"a: 0\r\n"), list(range(60)), 80)
@example([b"40\r\n%b\r\n" % (b"a" * 64)], (b"0", b"", b"a: 0\r\n"), [10, 75], 80)
def test_a_piece_ends_where_the_body_does_and_none_goes_beyond(
    parts: list[bytes], last: tuple[bytes, bytes, bytes], cuts: list[int], most: int
) -> None:
    body = b"".join(parts) + last[0] + last[1] + b"\r\n" + last[2] + b"\r\n"
    sent = body + b"GET / HTTP/1.1\r\n\r\n"
    ends = [0, *sorted({cut for cut in cuts if cut < len(sent)}), len(sent)]
    chunks, data, at, met = Chunks(), b"", 0, []
    for piece in (sent[a:b] for a, b in itertools.pairwise(ends)):
        data += piece
        while at < min(len(data), len(body)):
            there = min(len(data), at + most)
            end = chunks.end(data, at, there)
            assert at <= end <= there, "no further than it was asked"
            if end == at:
                break
            at = end
            met.append(at)
    assert met[-1] == len(body)


@pytest.mark.parametrize("line", [b"\r\n", b"zz\r\n", b"5\n", b"5\rx", b";e\r\n", b"-1\r\n"])
def test_what_is_no_size_is_left_to_the_parser_at_once(line: bytes) -> None:
    assert Chunks().end(line, 0, len(line)) == len(line)


def test_a_size_that_is_not_all_there_waits_unless_it_is_longer_than_may_be_handed_over() -> None:
    chunks = Chunks()
    for part in (b"5", b"5;" + b"e" * 70, b"5\r"):
        assert chunks.end(part, 0, len(part)) == 0
    assert chunks.end(b"5;" + b"e" * 100, 0, 80) == 80


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("tail", "taken"), [(b"", False), (b"\r", False), (b"\rx", True), (b"\n", True)])
def test_a_size_of_ever_more_digits_takes_no_more_time_than_they_do(tail: bytes, taken: bool) -> None:
    """A few microseconds for a thousand; at their square, two million would take hours."""
    line = b"0" * 2_000_000 + tail
    assert Chunks().end(line, 0, len(line)) == (len(line) if taken else 0)
