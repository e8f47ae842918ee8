"""What the child and the choosers in vLLM's workers tell each other. Plain code over bytes; frames are those of ``native.wire.codec``."""

from __future__ import annotations

import msgspec

from quintet.backends.native.wire.codec import BadFrameError
from quintet.backends.native.wire.messages import Message, Vocabulary
from quintet.inputs.sequence import PreparedSequence

EXTRA = "quintet"
"""Under which a ``Choose`` goes with vLLM's ``extra_args``, and the sidecar's path with its ``additional_config``."""


class Choose(Message, frozen=True):
    """How the tokens of a sequence are chosen; goes with its request through vLLM.

    Args:
        key: ours, unique in the life of an engine.
        start: position of the first token to choose.
        sequence: what was asked for; its tokens are the text of the prompt.
    """

    key: int
    start: int
    sequence: PreparedSequence


class Compile(Message, frozen=True):
    """To a chooser: these guides will be followed."""

    grammars: tuple[str, ...]


class Compiled(Message, frozen=True):
    """From a chooser: that is done.

    Args:
        well: each of them could be compiled.
    """

    grammars: tuple[str, ...]
    well: bool


class Refused(Message, frozen=True):
    """From a chooser: nothing could be chosen at this position, and the token that vLLM gives there is none.

    Args:
        outcome: an ``Outcome``.
    """

    key: int
    position: int
    outcome: int


ToChooser = Vocabulary | Compile
FromChooser = Compiled | Refused

_encoder = msgspec.msgpack.Encoder()
_choose = msgspec.msgpack.Decoder(Choose)
_to_chooser: msgspec.msgpack.Decoder[ToChooser] = msgspec.msgpack.Decoder(ToChooser)
_from_chooser: msgspec.msgpack.Decoder[FromChooser] = msgspec.msgpack.Decoder(FromChooser)


def encode_choose(choose: Choose) -> bytes:
    """For ``extra_args``."""
    return _encoder.encode(choose)


def decode_choose(data: bytes) -> Choose:
    """What ``encode_choose`` made."""
    return _choose.decode(data)


def decode_to_chooser(data: bytes) -> ToChooser:
    """A frame's contents, made by our child."""
    return _to_chooser.decode(data)


def decode_from_chooser(data: bytes) -> FromChooser:
    """A frame's contents.

    Raises:
        BadFrameError: not one of these: vLLM's workers run others' code too.
    """
    try:
        return _from_chooser.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrameError(str(error)) from None
