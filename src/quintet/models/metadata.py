"""Typed, checked access to the key-value part of a model file. Pure values; the file format itself is ``gguf.py``'s business."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain

from quintet.errors import ModelError, counted, shorten

Numbers = memoryview
"""Of a buffer's bytes, cast to the format of one number."""


LENGTH_BYTES = 8
"""Of a string, before it."""


class StringArray:
    """An array of byte strings inside a buffer, cut out only when asked for.

    Args:
        data: each string after its length, one after the other; kept alive, not copied.
        ends: int64 [n], where each string ends.
    """

    __slots__ = ("data", "ends")

    def __init__(self, data: memoryview, ends: array[int]) -> None:
        self.data, self.ends = data, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        start = self.ends[index - 1] if index else 0
        return bytes(self.data[start + LENGTH_BYTES : self.ends[index]])

    def __iter__(self) -> Iterator[bytes]:
        ends, blob = self.ends, bytes(self.data)  # one copy, short-lived: slices of bytes are cheaper than of a memoryview
        return (blob[start + LENGTH_BYTES : end] for start, end in zip(chain((0,), ends), ends, strict=False))


Value = bool | int | float | str | Numbers | StringArray


class Metadata:
    """The key-value pairs of one model file.

    Every getter raises ``ModelError`` naming file, key and value when the key is missing (and has no default), has the
    wrong type, or is out of range.

    Args:
        file: the file's name, for messages.
        values: as read; integers of any width are ``int``.
    """

    def __init__(self, file: str, values: Mapping[str, Value]) -> None:
        self.file = file
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def error(self, key: str, rule: str, got: object = None) -> ModelError:
        """The error for ``key``: one line with the file, the key, the rule and (unless ``None``) the value."""
        return ModelError(f"{self.file}: {quoted(key)} {rule}{'' if got is None else f', got {show(got)}'}.")

    def get(self, key: str) -> Value:
        """The value, whatever its type."""
        try:
            return self._values[key]
        except KeyError:
            raise self.error(key, "is missing") from None

    def text(self, key: str, default: str | None = None) -> str:
        value = default if default is not None and key not in self else self.get(key)
        if not isinstance(value, str):
            raise self.error(key, "must be a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be a boolean", value)
        return value

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = (1 << 31) - 1) -> int:
        """An integer in ``[low, high]``."""
        value = default if default is not None and key not in self else self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(key, f"must be an integer from {low} to {high}", value)
        return value

    def same_integer(self, key: str, length: int, default: int | None = None, high: int = (1 << 31) - 1) -> int:
        """An integer in ``[1, high]``, or an array of at least ``length`` of them whose first ``length`` are all the same."""
        listed = self.numbers(key, length) if isinstance(self._values.get(key), memoryview) else None
        if listed is None:
            return self.integer(key, default, high=high)
        if any(number != listed[0] for number in listed):
            raise self.error(key, f"must be the same {counted(length, 'time')}; others are not implemented", self._values[key])
        return Metadata(self.file, {key: listed[0]}).integer(key, high=high)

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = default if default is not None and key not in self else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.error(key, "must be a finite number above 0", value)
        return float(value)

    def strings(self, key: str) -> StringArray:
        value = self.get(key)
        if not isinstance(value, StringArray):
            raise self.error(key, "must be an array of strings", value)
        return value

    def texts(self, key: str) -> list[str]:
        """An array of strings, all UTF-8."""
        raw = self.strings(key)
        try:
            return [item.decode() for item in raw]
        except UnicodeDecodeError as error:
            raise self.error(key, "must hold UTF-8 texts only", error.object) from None

    def numbers(self, key: str, length: int, *, flags: bool = False) -> Numbers | None:
        """A numeric array of at least ``length`` entries, cut to it; ``None`` if the key is missing.

        Args:
            flags: one of booleans will do as well.
        """
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, memoryview) or (value.format == "?" and not flags):
            raise self.error(key, "must be an array of numbers", value)
        if len(value) < length:
            raise self.error(key, f"must have {length} {'entry' if length == 1 else 'entries'}", len(value))
        return value[:length]


def quoted(name: str) -> str:
    """A key or tensor name for an error message, which stays one line."""
    return shorten(name, 100)


def show(value: object) -> str:
    """``value`` for an error message: short, and arrays by their size only."""
    if isinstance(value, memoryview | StringArray):
        return f"an array of {len(value)}"
    return shorten(value)
