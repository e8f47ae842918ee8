"""Messages as msgpack frames, for a worker in another process.

A frame is its length (4 bytes, little-endian) and one value of a closed set of types, every field of which is checked while it
is decoded; nothing that could be code is ever sent. An event travels without the token's bytes, which the other side knows, and
without its last fields where they are at their defaults: that is most events.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from quintet.backends.base import Counts, Pages
from quintet.backends.native.wire.messages import Events, Submit
from quintet.config import EngineConfig
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import PreparedSequence

MAX_FRAME = 1 << 28
"""Bytes; the largest honest frame, a full queue of prompts of a long context, stays far below."""

_LENGTH = struct.Struct("<I")


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True, gc=False):
    """Base of everything that is sent."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model the worker loads.

    Args:
        path: of a GGUF file; empty = the toy.
        threads, context, isa: see ``weights.load_weights``.
    """

    path: str
    threads: int
    context: int | None
    name: str
    isa: str = ""


class Load(Frame, frozen=True):
    """The first frame: what to load, and how to run it."""

    source: ModelSource
    config: EngineConfig


class Vocabulary(Frame, frozen=True):
    """What the worker needs of the tokenizer, which only the other side has.

    Args:
        blob, lengths: the bytes of all token ids, see ``Pieces``.
    """

    blob: bytes
    lengths: list[int]
    eos_ids: frozenset[int]


class Work(Frame, frozen=True):
    """``Submit``, with each prompt only once.

    Args:
        sequences: number of the prompt, and the rest.
    """

    request_id: int
    at: float
    tenant: str
    prompts: tuple[tuple[int, ...], ...]
    sequences: tuple[tuple[int, PreparedSequence], ...]


class Drop(Frame, frozen=True):
    """``Abort``."""

    request_id: int
    seq: int | None


class Loading(Frame, frozen=True):
    """``Progress``."""

    share: float


class Up(Frame, frozen=True):
    """``Ready``: the capabilities, less the pieces."""

    context: int
    vocab: int
    max_logprobs: int
    max_sequences: int
    fingerprint: str
    step_s: float


class Begun(Frame, frozen=True):
    """``Started``."""

    requests: tuple[int, ...]


class Step(Frame, frozen=True):
    """``Stepped``, for encoding: events as rows."""

    running: int
    waiting: int
    counts: Counts
    pages: Pages
    events: dict[int, list[tuple[Any, ...]]]


class Failure(Frame, frozen=True):
    """``Died``.

    Args:
        model: the model cannot be loaded, for this client-safe reason; else a fault of ours, which the log has.
    """

    reason: str
    model: bool


_FIELDS = [field for field in fields(TokenEvent) if field.name not in ("seq", "token", "piece")]
_HINTS = get_type_hints(TokenEvent)
_DEFAULTS = tuple(field.default for field in _FIELDS)
_rest = attrgetter(*(field.name for field in _FIELDS))

_Row = msgspec.defstruct(
    "_Row",
    [("seq", int), ("token", int), *((field.name, _HINTS[field.name], field.default) for field in _FIELDS)],
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
)
_StepIn = msgspec.defstruct(
    "_StepIn",
    [("running", int), ("waiting", int), ("counts", Counts), ("pages", Pages), ("events", dict[int, list[_Row]])],  # type: ignore[valid-type]
    bases=(Frame,),
    frozen=True,
    array_like=True,
    tag="Step",
    forbid_unknown_fields=True,
    gc=False,
)

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the library's own error is only the first of them

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(Load | Vocabulary | Work | Drop)
_from_worker = msgspec.msgpack.Decoder(Loading | Up | Begun | _StepIn | Failure)


def encode(frame: Frame) -> bytearray:
    """The frame's bytes, its length before them."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(frame, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return buffer


class BadFrameError(Exception):
    """The other side sent something that is not a frame."""


class Splitter:
    """Bytes as they come, cut into the contents of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that ``data`` completes.

        Raises:
            BadFrameError: a length beyond ``MAX_FRAME``.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME:
                raise BadFrameError(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if end > len(buffer):
                break
            yield bytes(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
        del buffer[:at]


def decode_to_worker(data: bytes) -> Load | Vocabulary | Work | Drop:
    """A frame's contents.

    Raises:
        BadFrameError: not one of these, or a field of a wrong type.
    """
    try:
        frame: Load | Vocabulary | Work | Drop = _to_worker.decode(data)
    except _UNREADABLE as error:
        raise BadFrameError(str(error)) from None
    return frame


def decode_from_worker(data: bytes) -> Any:
    """A frame's contents: ``Loading``, ``Up``, ``Begun``, ``Failure``, or a step for ``events_of``.

    Raises:
        BadFrameError: not one of these, or a field of a wrong type.
    """
    try:
        return _from_worker.decode(data)
    except _UNREADABLE as error:
        raise BadFrameError(str(error)) from None


def work(message: Submit) -> Work:
    """``message`` as a frame."""
    numbers: dict[tuple[int, ...], int] = {}
    known: dict[int, int] = {}  # by identity: samples of a prompt hold the same object, and hashing it 128 times is slow
    sequences = []
    for sequence in message.sequences:
        tokens = sequence.tokens
        if id(tokens) not in known:
            known[id(tokens)] = numbers.setdefault(tokens, len(numbers))
        sequences.append((known[id(tokens)], replace(sequence, tokens=())))
    return Work(message.request_id, message.at, message.tenant, tuple(numbers), tuple(sequences))


def submit(frame: Work) -> Submit:
    """``frame`` as the message it was.

    Raises:
        BadFrameError: it names a prompt that it does not hold.
    """
    try:
        sequences = tuple(replace(sequence, tokens=frame.prompts[number]) for number, sequence in frame.sequences)
    except IndexError:
        raise BadFrameError("a prompt is missing") from None
    return Submit(frame.request_id, sequences, frame.at, frame.tenant)


def rows_of(events: Events) -> dict[int, list[tuple[Any, ...]]]:
    """Events as rows to send."""
    return {request: [_row(event) for event in batch] for request, batch in events.items()}


def _row(event: TokenEvent) -> tuple[Any, ...]:
    rest = _rest(event)
    return (event.seq, event.token) if rest == _DEFAULTS else (event.seq, event.token, *rest)


def events_of(rows: Mapping[int, Sequence[Any]], pieces: Sequence[bytes]) -> Events:
    """Decoded rows as events, each with its token's bytes."""
    return {request: [_event(row, pieces) for row in batch] for request, batch in rows.items()}


def _event(row: Any, pieces: Sequence[bytes]) -> TokenEvent:
    token: int = row.token
    # A token that ends its sequence has no text, whatever it is elsewhere: `stop_token_ids` may name any.
    piece = pieces[token] if token >= 0 and row.finish is not Finish.EOS else b""
    return TokenEvent(row.seq, token, piece, *_rest(row))


def digest(sequences: Sequence[PreparedSequence]) -> bytes:
    """What a request asks for, whatever its seeds, as 16 bytes."""
    asked = work(Submit(0, tuple(replace(each, sampling=replace(each.sampling, seed=0, seeded=False)) for each in sequences), 0.0))
    return blake2b(_encoder.encode(asked), digest_size=16).digest()
