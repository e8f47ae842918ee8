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
from quintet.backends.native.wire.messages import (
    Died,
    EventRow,
    FromWorker,
    Load,
    Message,
    Progress,
    Ready,
    Row,
    ScoredRow,
    Started,
    Stepped,
    Stop,
    Submit,
    TokenRow,
    ToProcess,
    Vocabulary,
)
from quintet.backends.native.wire.sources import ModelSource
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, ModelError
from quintet.events import Finish, TokenEvent
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling
from quintet.thinking import Thinking

st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))  # what msgpack can hold
st.register_type_strategy(float, st.floats(allow_nan=False))

PIECES = tuple(bytes([value]) for value in range(50))
SPECIAL = {"sampling": st.builds(Sampling, temperature=st.floats(0, 2), top_p=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))}


rows = st.one_of(*(st.builds(kind, token=st.integers(-1, 49)) for kind in (TokenRow, ScoredRow, EventRow)))
ids = st.integers(0, 2**40)
prompts = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
sequences = st.builds(PreparedSequence, tokens=prompts, **SPECIAL)
samples = st.builds(  # so few of each that many have something in common
    lambda tokens, most, grammar, seed, words: replace(sequence(tokens, seed), max_tokens=most, grammar=grammar, bad_words=words),
    st.sampled_from([(1,), (1, 2)]),
    *(st.sampled_from(few) for few in ((3, 4), ("", "a"), (0, 1), ((), ((5,),)))),
)


def through(message: Message) -> bytes:
    (data,) = codec.Splitter().feed(bytes(codec.encode(message)))
    return data


@given(st.dictionaries(ids, st.lists(rows, max_size=4), max_size=4))
def test_steps_come_out_as_they_went_in_every_field_of_their_events(sent: dict[int, list[Row]]) -> None:
    step = Stepped(2, 1, Counts(7, 9, 5, 1, 4, 3, 2, 8, 6), Pages(20, 16, 6, 8), sent)
    assert codec.decode_from_worker(through(step)) == step


@given(ids, st.lists(sequences, max_size=4) | st.lists(samples, max_size=9), st.floats(0, 1e9))
def test_requests_come_out_as_they_went_in(request_id: int, asked: list[PreparedSequence], at: float) -> None:
    message = codec.decode_to_worker(through(Submit.of(request_id, asked, at, tenant="tenant", weight=3)))
    assert isinstance(message, Submit)
    assert (message.request_id, message.at, message.tenant, message.weight) == (request_id, at, "tenant", 3)
    assert message.sequences() == tuple(asked)


SOURCE = ModelSource(path="a.gguf", threads=2, context=None, name="a", isa="avx2")
TO_PROCESS = (Load(SOURCE, EngineConfig(max_running=3)), Vocabulary(b"abc", b"ends", frozenset({1})), Stop())
FROM_WORKER = (
    Progress(0.5),
    Ready(model="a", context=8, vocab=50, max_logprobs=5, max_sequences=8, fingerprint="fp", step_s=0.25),
    Started((1, 2)),
    Died("why", True),
    Died(),
)


@pytest.mark.parametrize("message", TO_PROCESS, ids=lambda message: type(message).__name__)
def test_every_message_to_a_process_comes_out_as_it_went_in(message: ToProcess) -> None:
    assert codec.decode_to_worker(through(message)) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_every_message_from_a_worker_comes_out_as_it_went_in(message: FromWorker) -> None:
    assert codec.decode_from_worker(through(message)) == message


def test_a_row_has_every_field_of_an_event_but_the_bytes_of_its_token() -> None:
    names = list(TokenEvent.__struct_fields__)
    names.remove("piece")
    assert list(EventRow.__struct_fields__) == names
    assert list(TokenRow.__struct_fields__) == names[:2]
    assert list(ScoredRow.__struct_fields__) == names[:5]


@given(rows)
def test_the_front_adds_the_bytes_of_a_token_and_changes_nothing_else(row: Row) -> None:
    event = row.event(PIECES)
    whole = EventRow(*(getattr(row, name) for name in row.__struct_fields__))
    assert all(getattr(event, name) == getattr(whole, name) for name in EventRow.__struct_fields__)
    ends = event.finish is Finish.EOS
    assert event.piece == (b"" if ends or event.token < 0 else PIECES[event.token]), "what ends a sequence has no text"


def test_a_death_tells_its_reason_only_if_it_is_meant_to_be_told() -> None:
    model, ours, bug = map(Died.of, (ModelError("no such file"), EngineFailed("it ended."), KeyError("a secret")))
    assert [type(each.error) for each in (model, ours, bug)] == [ModelError, EngineFailed, EngineFailed]
    assert [each.reason for each in (model, ours, bug)] == ["no such file", "it ended.", "the engine broke (KeyError)."]
    assert Died().error is None


def sequence(tokens: tuple[int, ...], seed: int = 0) -> PreparedSequence:
    return PreparedSequence(tokens, 5, Sampling(1.0, 1.0, seed), None, echo=False)


def test_a_prompt_of_many_samples_is_sent_once() -> None:
    prompt = tuple(range(5000))
    size = len(codec.encode(Submit.of(1, [sequence(prompt, seed) for seed in range(100)], 0.0)))
    alone = len(codec.encode(Submit.of(1, [sequence(prompt)], 0.0)))
    assert size < alone + 100 * 1000


def test_controls_of_many_samples_are_sent_once_whatever_becomes_of_them_by_their_prompts() -> None:
    words = tuple(tuple(range(300 + word, 556 + word)) for word in range(64))
    controls = Sampling(1.0, 1.0, 0, bad_words=("x" * 256,) * 64, logit_bias=tuple((token, 1.0) for token in range(300)))
    alone = replace(sequence((1,)), sampling=controls, bad_words=words, grammar="x" * 50_000, thinking=Thinking(b"<", b">", (1,)))
    many = [
        replace(
            alone,
            tokens=(1,) * length,
            max_tokens=9 - length,
            sampling=replace(controls, seed=seed, min_tokens=length),
            echo=length > 1,
            echo_from=length - 1,
            prompt_end=length,
            thinking=Thinking(b"<", b">", (1,), inside=length > 1),
        )
        for seed, length in enumerate([1, 2, 3, 1, 2] * 20)
    ]
    frame = codec.encode(Submit.of(1, many, 0.0))
    assert len(frame) < len(codec.encode(Submit.of(1, [alone], 0.0))) + 100 * 100
    came = codec.decode_to_worker(bytes(frame)[4:]).sequences()  # type: ignore[union-attr]
    assert came == tuple(many)
    assert len({id(one.bad_words) for one in came}) == 1


def test_a_message_that_the_other_side_would_end_at_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Submit.of(1, [sequence((1, 2))], 0.0)
    monkeypatch.setattr(codec, "MAX_FRAME", len(through(message)))
    assert through(message)
    with pytest.raises(OverflowError):
        codec.encode(Submit.of(1, [sequence((1, 2, 3))], 0.0))


def test_a_plain_token_is_a_few_bytes() -> None:
    counts, pages = Counts(*[10**6] * len(Counts._fields)), Pages(10**5, 16, 10**4, 10**4)
    frame = codec.encode(Stepped(32, 0, counts, pages, {index: [TokenRow(0, 30000)] for index in range(1000, 1032)}))
    alone = codec.encode(Stepped(32, 0, counts, pages, {}))
    assert len(frame) - len(alone) < 32 * 12
    assert len(alone) < 128


def test_a_digest_tells_requests_apart_by_all_but_their_seeds() -> None:
    def digest(*sequences: PreparedSequence, request_id: int = 1, tenant: str = "") -> bytes:
        return codec.digest(Submit.of(request_id, sequences, 0.0, tenant=tenant))

    one = digest(sequence((1, 2), 3))
    assert one == digest(sequence((1, 2), 4)) == digest(sequence((1, 2), 3), request_id=2, tenant="other")
    others = [digest(sequence((1, 3))), digest(*[sequence((1, 2))] * 2), digest(sequence((1,)), sequence((2,)))]
    assert len({one, *others}) == 4


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=20))
def test_frames_are_found_however_the_bytes_are_cut(contents: list[bytes], cuts: list[int]) -> None:
    data = b"".join(struct.pack("<I", len(each)) + each for each in contents)
    splitter = codec.Splitter()
    found: list[bytes] = []
    for cut in cuts:
        found += splitter.feed(data[:cut])
        data = data[cut:]
    assert [*found, *splitter.feed(data)] == contents


def test_a_length_that_nobody_could_mean_is_refused_before_anything_is_read() -> None:
    with pytest.raises(codec.BadFrameError):
        list(codec.Splitter().feed(struct.pack("<I", codec.MAX_FRAME + 1)))


@pytest.mark.fault("F12")
@pytest.mark.parametrize(
    "value",
    [
        ["Stop", 1],
        ["Abort", "1", None],
        ["Abort", 1, None, 2],
        ["Submit", 1, 0.0, "", [[1]], [[0, {}]]],
        ["Compiled", 1],
        ["Ready", "a", 1],
        {},
        3,
        ["Stepped", 1, 1, 1, {}],
    ],
    ids=str,
)
def test_what_is_not_a_message_to_the_worker_is_refused(value: Any) -> None:
    with pytest.raises(codec.BadFrameError):
        codec.decode_to_worker(msgspec.msgpack.encode(value))


@pytest.mark.fault("F12")
@given(st.binary(max_size=200))
@example(b"\x91\xa5\x00\x00\x00\x00\x80")
@example(b"\x91" * 100_000)
def test_noise_is_refused_or_understood_and_nothing_else(data: bytes) -> None:
    for decode in (codec.decode_to_worker, codec.decode_from_worker):
        with contextlib.suppress(codec.BadFrameError):
            assert isinstance(decode(data), Message)


@pytest.mark.parametrize("number", [-1, 1])
@pytest.mark.parametrize("what", [0, 1], ids=["prompt", "asked"])
def test_a_request_that_names_a_prompt_it_lacks_is_refused(what: int, number: int) -> None:
    good = codec.encode(Submit.of(1, [sequence((1, 2))], 0.0))[4:]
    message = msgspec.msgpack.decode(good)
    message[-4][0][what] = number
    with pytest.raises(codec.BadFrameError, match="a prompt is missing"):
        codec.decode_to_worker(msgspec.msgpack.encode(message))


def pictured(name: bytes, tokens: tuple[int, ...] = (1, 2, 2), pixels: bytes = b"red, green") -> PreparedSequence:
    return replace(sequence(tokens), images=(PreparedImage(name.ljust(32), ((1, 2),), (1, 2), (1, 1, 2), pixels),))


def test_images_cross_without_their_pixels_once_for_all_samples_of_a_prompt() -> None:
    one, other = pictured(b"a"), pictured(b"b")
    submit = Submit.of(1, [one, one, other, sequence((1, 2, 2))], 0.0)
    assert [len(images) for images in submit.images] == [1, 1, 0]
    assert b"red, green" not in through(submit)
    (came, again, third, text) = codec.decode_to_worker(through(submit)).sequences()  # type: ignore[union-attr]
    assert came == again == pictured(b"a", pixels=b"")
    assert third == pictured(b"b", pixels=b"")
    assert text == sequence((1, 2, 2))


def test_a_request_without_images_says_nothing_of_them_and_one_with_other_images_is_another() -> None:
    assert Submit.of(1, [sequence((1, 2))], 0.0).images == ()
    digests = {codec.digest(Submit.of(1, [each], 0.0)) for each in (pictured(b"a"), pictured(b"b"), sequence((1, 2, 2)))}
    assert len(digests) == 3
    assert codec.digest(Submit.of(1, [pictured(b"a")], 0.0)) == codec.digest(Submit.of(2, [pictured(b"a", pixels=b"")], 5.0))


def test_a_request_with_the_images_of_too_few_prompts_is_refused() -> None:
    message = msgspec.msgpack.decode(through(Submit.of(1, [pictured(b"a"), pictured(b"b")], 0.0)))
    message[-3].pop()
    with pytest.raises(codec.BadFrameError, match="images are missing"):
        codec.decode_to_worker(msgspec.msgpack.encode(message))
