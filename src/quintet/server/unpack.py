"""Packed request bodies as JSON: gzip, and MessagePack."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from quintet.dialects.json_guard import MAX_PARTS, MAX_VALUES, too_many
from quintet.errors import BadRequest, BodyTooLarge
from quintet.server.asgi import Headers
from quintet.server.bodies import MSGPACK, encoding, media, too_large

_INVALID = "invalid_body"

MAX_CONTAINERS = 2**17
"""Most bytes of a MessagePack body that may begin an array or an object, for it to be read as any other. Bytes of texts that are not ASCII
look the same; a body with more must be without arrays in arrays, so that no hundreds of thousands of them are made."""

MOST_BESIDE_TEXTS = 5 * MAX_VALUES
"""Most bytes of a MessagePack body that are in none of its texts: of as many values as may be, each the longest integer of a token's id."""

MOST_MEMBERS = 100
"""Most members of a gzip body; each costs a look at all that follows it."""

MOST_RATIO = 1032
"""Bytes that one may be unpacked to: 258 for each two bits (https://zlib.net/zlib_tech.html)."""

MOST_CONTROLS = 2 * MAX_VALUES
"""Most bytes of a MessagePack body that are control characters, or look so as bytes of numbers do, unless it is so long that they are a
tenth. In JSON each takes six bytes (but for tabs and the like, which have a letter), and to write and read those nothing else runs."""

_CONTROLS = bytes(set(range(0x20)) - set(b"\b\t\n\f\r"))
_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])  # https://github.com/msgpack/msgpack/blob/master/spec.md#formats
_Leaf = None | bool | int | float | str
_ANY = msgspec.msgpack.Decoder(dict[str, Any])
_FLAT = msgspec.msgpack.Decoder(dict[str, _Leaf | list[_Leaf]])
_FEW = msgspec.Meta(max_length=1024)  # texts that are long; there may be as many prompts
_PARTS = msgspec.msgpack.Decoder(str | Annotated[list[msgspec.Raw], _FEW] | Annotated[dict[str, msgspec.Raw], _FEW])
_SHORT = 2048  # not worth a look
_CONTAINER = {list, dict}
_EXACT = _CONTAINER | {int, bool, str, type(None)}


def as_json(body: bytes, headers: Headers, most: int) -> bytes:
    """The body as JSON text; ``check_media`` has passed.

    Raises:
        BodyTooLarge: over ``most`` bytes once it is unpacked; noticed before more than that is.
        BadRequest: not what the headers say it is.
    """
    if encoding(headers) == "gzip":
        body = _inflate(body, most)
    return _unpack(body) if media(headers)[0] in MSGPACK else body


def _inflate(body: bytes, most: int) -> bytes:
    """RFC 1952: one or more members, one after the other. The last four bytes say how long the last one is: what would be too long is not
    unpacked up to there, which takes as long as the longest body there may be."""
    if len(body) * MOST_RATIO > most and int.from_bytes(body[-4:], "little") > most:
        raise BodyTooLarge(f"The gzip body is cut off, or it unpacks to more than the {most} bytes that a body may have.")
    parts: list[bytes] = []
    left = most + 1
    while body:
        if len(parts) == MOST_MEMBERS:
            raise BadRequest("", f"The gzip body must have at most {MOST_MEMBERS} members", code=_INVALID)
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(body, left))
        except zlib.error:
            raise BadRequest("", "The body is not valid gzip", code=_INVALID) from None
        left -= len(parts[-1])
        if left <= 0:
            raise too_large(most)
        if not member.eof:
            raise BadRequest("", "The gzip body ends too early", code=_INVALID)
        body = member.unused_data
    return b"".join(parts)


def _unpack(body: bytes) -> bytes:
    """MessagePack as JSON text, which the dialect then checks like any other: NaN, depth and wrong types are refused there by name.

    Too many values are refused before they are decoded, and again before they are written: of 12 MB the one takes half a second, the other
    seven, and nothing else runs meanwhile.
    """
    if len(body) > MOST_BESIDE_TEXTS and _beside_texts(body) > MOST_BESIDE_TEXTS:
        raise BadRequest("", f"A MessagePack body must have at most {MOST_BESIDE_TEXTS} bytes beside its texts", code=_INVALID)
    if len(body) - len(body.translate(None, _CONTROLS)) > max(MOST_CONTROLS, len(body) // 10):
        raise BadRequest("", f"A MessagePack body must have at most {MOST_CONTROLS} control characters", code=_INVALID)
    containers = len(body) - len(body.translate(None, _CONTAINERS))
    decoder = _ANY if containers <= MAX_CONTAINERS else _FLAT
    try:
        return _written(decoder.decode(body))
    except msgspec.ValidationError:
        rule = "The body must be a MessagePack map whose keys are texts"
        if decoder is _FLAT:
            rule += f"; with more than {MAX_CONTAINERS} arrays and maps, or what looks so, none in another"
        raise BadRequest("", rule, code=_INVALID) from None
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        raise BadRequest("", "The body is not valid MessagePack of JSON values", code=_INVALID) from None


def _beside_texts(value: bytes | msgspec.Raw, levels: int = 3) -> int:
    """Bytes of a value that are in no long text. No field has these deeper than ``images``, which may be an array of arrays of them."""
    if len(value) <= _SHORT:
        return len(value)
    try:
        parts = _PARTS.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return len(value)
    if isinstance(parts, str):
        return 0
    items = parts.values() if isinstance(parts, dict) else parts
    return sum(_beside_texts(item, levels - 1) for item in items) if levels else len(value)


def _written(body: Mapping[str, object]) -> bytes:
    """As JSON.

    Raises:
        BadRequest: more values than JSON may have.
        TypeError: a value that JSON has not.
    """
    left, members = MAX_VALUES, list[bytes]()
    for name, value in body.items():
        left, exact = _look(value, left)
        text = msgspec.json.encode(value) if exact else json.dumps(value, ensure_ascii=False).encode()
        members.append(json.dumps(name).encode() + b":" + text)
    return b"{%b}" % b",".join(members)


def _look(value: object, left: int) -> tuple[int, bool]:
    """How many values there may still be after this one, and whether msgspec, which is fast, writes it as it is; it makes null of a NaN."""
    exact, floats = True, 0
    containers: list[Any] = [[value]]  # those not looked into yet
    while containers:
        container = containers.pop()
        is_map = isinstance(container, dict)
        items = container.values() if is_map else container
        kinds = set(map(type, items))
        left -= len(container)
        if left < 0:
            raise too_many(f"{MAX_VALUES} values")
        if float in kinds:
            floats += sum(type(item) is float for item in items)
            if floats > MAX_PARTS:
                raise too_many(f"{MAX_PARTS} fractions")
        exact &= kinds <= _EXACT and (not is_map or set(map(type, container)) <= {str})
        if not kinds.isdisjoint(_CONTAINER):
            containers += [item for item in items if type(item) in _CONTAINER]
    return left, exact
