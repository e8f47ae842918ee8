"""Messages as msgpack frames, for a worker in another process. Plain code over bytes.

::

    | length: 4 bytes, little-endian | one message: an array of its type's name and its fields |

Either side can be sure of what it reads: a frame holds one of the types of ``messages``, every field of which is checked while it is
decoded, and no more than ``MAX_FRAME`` bytes. What is not that raises ``BadFrameError``, whatever it is, and nothing of it is used. Nothing
that could be code is ever sent, so the worst that a worker which went mad can do is to say what is not true.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

import msgspec

from quintet.backends.native.wire.messages import FromWorker, Message, Submit, ToProcess

MAX_FRAME = 1 << 28
"""Bytes; what is made of the largest body that is taken stays below."""

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the library's own error is only the first of them

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class BadFrameError(Exception):
    """The other side sent something that is not a frame."""


def encode(message: Message) -> bytearray:
    """The message's frame.

    Raises:
        OverflowError, ValueError: a field holds what no frame can, or the frame would be too long.
    """
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    length = len(buffer) - _LENGTH.size
    if length > MAX_FRAME:  # the other side would end at it
        raise OverflowError(f"a frame of {length} bytes")
    _LENGTH.pack_into(buffer, 0, length)
    return buffer


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


def decode_to_worker(data: bytes) -> ToProcess:
    """A frame's contents.

    Raises:
        BadFrameError: not one of these, or a field of a wrong type.
    """
    return _decoded(_to_worker, data)


def decode_from_worker(data: bytes) -> FromWorker:
    """A frame's contents.

    Raises:
        BadFrameError: not one of these, or a field of a wrong type.
    """
    return _decoded(_from_worker, data)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        raise BadFrameError(str(error)) from None


def digest(submit: Submit) -> bytes:
    """What a request asks for, whoever asks and whatever its seeds, as 32 bytes: everything that the engine computes with is in it.

    The salt of the cached prefixes, which differs from one API key to the next, is not: it changes nothing that is computed. So many bytes
    that nobody can make a request whose digest is another's.
    """
    seedless = [replace(asked, salt=b"", sampling=replace(asked.sampling, seed=0, seeded=False)) for asked in submit.asked]
    samples = [msgspec.structs.replace(sample, seed=0) for sample in submit.samples]
    computed = (submit.prompts, seedless, samples, submit.images, submit.adapter)
    return blake2b(_encoder.encode(computed), digest_size=32).digest()
