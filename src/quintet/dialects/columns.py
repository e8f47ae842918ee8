"""Long answers: lists that are turned into JSON as they grow, and a body in parts.

A JSON answer with log-probabilities is a few lists of up to a million entries. As objects they would take a kilobyte for each token,
and encoding all of them in one go would hold everybody up. So an entry is an object only until its stretch of the list is full; then
the stretch is JSON, which goes into the body as it is. What all samples of a prompt have in common, its echo, is one piece of JSON in all
their lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec

from quintet.dialects.wire import encode

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class HasChoices(Protocol):
    """A body."""

    choices: Any


STRETCH = 256
"""Entries that are encoded at a time: a millisecond or two, with twenty alternatives each."""

_LONG_STRETCH = 1 << 14
"""The same of numbers or short texts."""

IDS, CHARACTERS = 16, 64
"""So many token ids, and so many characters of text, take as long to render as the entry of one log-probability."""

HOLE = msgspec.Raw(b"\0")
"""Stands in encoded JSON for what goes there later; no text has such a byte in it."""

ELSEWHERE: Any = None
"""Stands in a chunk for a member that is ``Apart`` from it, whatever its type."""


class Apart(NamedTuple):
    """A member of a chunk that may be megabytes: in the chunk's JSON it is null, so that whoever changes that need not read it.

    Args:
        value: its JSON; ``None`` = there is no such member.
    """

    chunk: bytes
    name: bytes = b""
    value: bytes | None = None

    def joined(self, chunk: bytes) -> bytes:
        """The chunk, or what was made of it, with the member."""
        if self.value is None:
            return chunk
        # In a string a quotation mark has a backslash before it: these bytes are the member, whatever the texts are.
        return chunk.replace(b'"%b":null' % self.name, b'"%b":%b' % (self.name, self.value), 1)


class Column(list[T]):
    """A list that only grows, to be encoded at the end: each full stretch of it is kept as JSON, which takes a tenth of the memory."""

    def __init__(self, items: Sequence[T] = ()) -> None:
        super().__init__()
        self._written = 0  # items that are JSON already, each of a stretch
        self += items

    def __iadd__(self, items: Iterable[T]) -> Self:  # type: ignore[override, misc]
        items = items if isinstance(items, list) else list(items)
        if items and type(items[0]) is msgspec.Raw:  # written already; several columns may share it
            self._write()
            self.extend(items)
            self._written = len(self)
        else:
            self.extend(items)
            if len(self) - self._written >= STRETCH:
                self._write()
        return self

    def _write(self) -> None:
        if tail := self[self._written :]:
            self[self._written :] = [_items(tail)]
            self._written += 1


def _items(values: Sequence[object]) -> Any:
    """A list's JSON without its brackets: in a list it stands for the items."""
    return msgspec.Raw(encode(values)[1:-1])


def stretched(values: Sequence[object]) -> list[Any]:
    """What stands for a long list in encoded JSON: it is encoded in pieces, between which others have the interpreter."""
    return [_items(values[at : at + _LONG_STRETCH]) for at in range(0, len(values), _LONG_STRETCH)]


def written(parts: Sequence[S]) -> S:
    """Structs of lists, put together to one whose lists are JSON already."""
    first = parts[0]
    lists = [name for name in first.__struct_fields__ if isinstance(getattr(first, name), list)]
    return msgspec.structs.replace(first, **{name: [_items(getattr(part, name)) for part in parts] for name in lists})


def growing(struct: S) -> S:
    """A struct with a ``Column`` for each of its lists, and those of structs in it, to which others' can be added."""
    fields = [(name, getattr(struct, name)) for name in struct.__struct_fields__]
    columns = {name: Column(value) for name, value in fields if isinstance(value, list)}
    inner = {name: growing(value) for name, value in fields if isinstance(value, msgspec.Struct)}
    return msgspec.structs.replace(struct, **columns, **inner)


def filled(whole: HasChoices, choices: Iterable[object]) -> Iterator[bytes]:
    """The JSON of a body with these choices, in parts: each is as large as a choice."""
    whole.choices = [HOLE]
    head, tail = encode(whole).split(bytes(HOLE))
    yield head
    for number, choice in enumerate(choices):
        yield b"," * (number > 0) + encode(choice)
    yield tail
