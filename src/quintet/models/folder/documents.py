"""The JSON files of a folder, which are downloaded data: bounded, one object each, no key twice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from quintet.errors import ModelError, counted, shorten
from quintet.models.files import file_errors, file_name, open_regular, require_content
from quintet.models.metadata import quoted

MAX_CONFIG = 1 << 24
"""Bytes of a file of settings."""


def read_document(path: Path, limit: int = MAX_CONFIG) -> dict[str, Any]:
    """The object in ``path``.

    Raises:
        ModelError: not readable, over ``limit`` bytes, or not an object in JSON.
    """
    name = file_name(path)
    with file_errors(path), open_regular(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise ModelError(f"{name}: must be at most {limit} bytes.")
    require_content(name, raw)
    return parse_object(name, raw)


def parse_object(what: str, raw: bytes | memoryview) -> dict[str, Any]:
    """The object in ``raw``.

    Args:
        what: what it is, for messages.

    Raises:
        ModelError: not an object in JSON, or a key is there twice.
    """
    try:
        found = json.loads(str(raw, "utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ModelError(f"{what}: is nested too deep.") from None
    except ValueError as error:
        raise ModelError(f"{what}: must be JSON ({shorten(str(error))}).") from None
    if not isinstance(found, dict):
        raise ModelError(f"{what}: must hold an object.")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key is there twice."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"key {quoted(key)} is there twice")
        members[key] = value
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


class Settings:
    """Typed, checked access to an object of settings, and a record of what was asked for.

    Every getter raises ``ModelError`` naming file, key and value when the key is missing and has no default, has the wrong type, or
    is out of range. ``null`` is no value, not that of ``defaults`` either.

    Args:
        file: its name, for messages.
        values: the object.
        defaults: what a missing key means.
        path: the keys that lead to it in the file, with a dot after each.
    """

    def __init__(self, file: str, values: Mapping[str, Any], defaults: Mapping[str, Any], path: str = "") -> None:
        self.file, self._path = file, path
        self._values = {**defaults, **values}
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def unasked(self) -> dict[str, Any]:
        """What nobody asked for, but ``null``."""
        return {key: value for key, value in self._values.items() if value is not None and key not in self._asked}

    def error(self, key: str, rule: str, got: object = None) -> ModelError:
        """The error for ``key``: one line with the file, the key, the rule and (unless ``None``) the value."""
        return ModelError(f"{self.file}: {quoted(self._path + key)} {rule}{'' if got is None else f', got {shorten(got)}'}.")

    def know(self, *keys: str) -> None:
        """These mean nothing here, whatever their values."""
        self._asked.update(keys)

    def get(self, key: str) -> Any:
        """The value whatever its type; ``None`` = missing."""
        self._asked.add(key)
        return self._values.get(key)

    def _value(self, key: str, default: object) -> Any:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "is missing")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false", value)
        return value

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 27) -> int:
        """An integer in ``[low, high]``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"must be an integer from {low} to {high}", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if not is_real(value) or value <= 0:
            raise self.error(key, "must be a finite number above 0", value)
        return float(value)

    def reals(self, key: str, length: int) -> list[float]:
        """As many finite numbers above zero."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != length or not all(is_real(one) and one > 0 for one in value):
            raise self.error(key, f"must be a list of {counted(length, 'finite number')} above 0", value)
        return [float(one) for one in value]

    def choices(self, key: str, length: int, words: Sequence[object]) -> list[Any]:
        """As many of ``words``."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != length or not all(one in words for one in value):
            raise self.error(key, f"must be a list of {length} of {', '.join(map(str, words))}", value)
        return value

    def section(self, key: str, defaults: dict[str, Any] | None = None) -> Settings | None:
        """The object under ``key``; ``None`` = missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be an object", value)
        return Settings(self.file, value, defaults or {}, f"{self._path}{key}.")


def is_real(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
