"""What crosses between the processes comes out as it went in, and nothing else comes in."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quintet.backends.base import Counts, Pages
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Submit
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))  # what msgpack can hold
st.register_type_strategy(float, st.floats(allow_nan=False))

PIECES = tuple(bytes([value]) for value in range(50))
SPECIAL = {"sampling": st.builds(Sampling, temperature=st.floats(0, 2), top_p=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))}


def bytes_of(event: TokenEvent) -> bytes:
    """A token that ends its sequence has no text, whatever it is elsewhere."""
    return PIECES[event.token] if event.token >= 0 and event.finish is not Finish.EOS else b""


events = st.builds(TokenEvent, token=st.integers(-1, 49)).map(lambda event: replace(event, piece=bytes_of(event)))
ids = st.integers(0, 2**40)
prompts = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
sequences = st.builds(PreparedSequence, tokens=prompts, **SPECIAL)


def through(frame: codec.Frame) -> bytes:
    (data,) = codec.Splitter().feed(bytes(codec.encode(frame)))
    return data


@given(st.dictionaries(ids, st.lists(events, max_size=4), max_size=4))
def test_events_come_out_as_they_went_in_every_field_of_them(sent: dict[int, list[TokenEvent]]) -> None:
    counts, pages = Counts(7, 9, 5, 1, 4, 3, 2, 8, 6), Pages(20, 16, 6, 8)
    step = codec.decode_from_worker(through(codec.Step(2, 1, counts, pages, codec.rows_of(sent))))
    assert (step.running, step.waiting, step.counts, step.pages) == (2, 1, counts, pages)
    assert codec.events_of(step.events, PIECES) == sent


@given(ids, st.lists(sequences, max_size=4), st.floats(0, 1e9))
def test_requests_come_out_as_they_went_in(request_id: int, asked: list[PreparedSequence], at: float) -> None:
    message = Submit(request_id, tuple(asked), at, "tenant")
    frame = codec.decode_to_worker(through(codec.work(message)))
    assert isinstance(frame, codec.Work)
    assert codec.submit(frame) == message


def sequence(tokens: tuple[int, ...], seed: int = 0) -> PreparedSequence:
    return PreparedSequence(tokens, 5, Sampling(1.0, 1.0, seed), None, echo=False)


def test_a_prompt_of_many_samples_is_sent_once() -> None:
    prompt = tuple(range(5000))
    size = len(codec.encode(codec.work(Submit(1, tuple(sequence(prompt, seed) for seed in range(100)), 0.0))))
    alone = len(codec.encode(codec.work(Submit(1, (sequence(prompt),), 0.0))))
    assert size < alone + 100 * 1000


def test_a_plain_token_is_a_few_bytes() -> None:
    counts, pages = Counts(*[10**6] * 9), Pages(10**5, 16, 10**4, 10**4)
    frame = codec.encode(codec.Step(32, 0, counts, pages, codec.rows_of({index: [TokenEvent(0, 30000)] for index in range(1000, 1032)})))
    assert len(frame) < 32 * 12


def test_a_digest_tells_requests_apart_by_all_but_their_seeds() -> None:
    one = codec.digest([sequence((1, 2), 3)])
    assert one == codec.digest([sequence((1, 2), 4)])
    others = [[sequence((1, 3))], [sequence((1, 2))] * 2, [sequence((1,)), sequence((2,))]]
    assert len({one, *map(codec.digest, others)}) == 4


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=20))
def test_frames_are_found_however_the_bytes_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    data = b"".join(struct.pack("<I", len(each)) + each for each in contents)
    splitter, found = codec.Splitter(), []
    for cut in cuts:
        found += splitter.feed(data[:cut])
        data = data[cut:]
    assert [*found, *splitter.feed(data)] == contents


def test_a_length_that_nobody_could_mean_is_refused_before_anything_is_read() -> None:
    with pytest.raises(codec.BadFrameError):
        list(codec.Splitter().feed(struct.pack("<I", codec.MAX_FRAME + 1)))


@pytest.mark.parametrize(
    "value",
    [["Stop"], ["Drop", "1", None], ["Drop", 1, None, 2], ["Work", 1, 0.0, [[1]], [[0, {}]]], ["Up", 1], {}, 3, ["Step", 1, 1, 1, {}]],
    ids=str,
)
def test_what_is_not_a_message_to_the_worker_is_refused(value: Any) -> None:
    with pytest.raises(codec.BadFrameError):
        codec.decode_to_worker(msgspec.msgpack.encode(value))


@given(st.binary(max_size=200))
@example(b"\x91\xa5\x00\x00\x00\x00\x80")
@example(b"\x91" * 100_000)
def test_noise_is_refused_or_understood_and_nothing_else(data: bytes) -> None:
    for decode in (codec.decode_to_worker, codec.decode_from_worker):
        with contextlib.suppress(codec.BadFrameError):
            assert isinstance(decode(data), codec.Frame)


def test_a_request_that_names_a_prompt_it_lacks_is_refused() -> None:
    with pytest.raises(codec.BadFrameError):
        codec.submit(codec.Work(1, 0.0, "", (), ((0, sequence(())),)))
