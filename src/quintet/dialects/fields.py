"""Request fields as data: a dialect is a table of these, from which its docs are generated and its contract tests enumerated.

A ``Kind`` reads one JSON value and raises ``BadRequest`` naming the field, the rule and the value. ``null`` never reaches a kind: in
every dialect it means "unset", because the SDKs send ``None`` arguments as explicit nulls.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from quintet.errors import BadRequest, Unsupported, printable, shorten
from quintet.request import Prompt

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EXACT_FLOAT = 2**53
"""Integers up to here survive being written as a float, e.g. by a client whose only number type is a double."""

REQUIRED = "required"
"""``Field.shown`` of a field that has no default."""

MAX_TOKEN_ID = 2**31 - 1
"""No vocabulary comes near it; the backend checks ids against the one it serves."""


class Kind(Protocol[T_co]):
    """A JSON type with its range."""

    @property
    def type(self) -> str:
        """The type in the words of the providers' pages."""
        ...

    @property
    def range(self) -> str:
        """The accepted values in words; empty when the type says it all."""
        ...

    def read(self, name: str, value: object) -> T_co:
        """The value of field ``name``; raises ``BadRequest``."""
        ...


@runtime_checkable
class HasForms(Protocol):
    """Of a kind whose values have one of several forms."""

    @property
    def forms(self) -> tuple[Kind[Any], ...]:
        """How each form is to be described; the last is the one to show."""
        ...


class Status(enum.Enum):
    """What a field does here. There is no other: nothing documented is dropped in silence."""

    DONE = "done"
    NO_OP = "no-op"  # accepted, and by its documented meaning without effect on the answer
    EXTENSION = "extension"  # done, though the provider has no such field
    LATER = "400"  # not there yet: refused with any value but the default


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One request field of a dialect.

    Args:
        name: as on the page; ``a.b`` is the member ``b`` of the object ``a``.
        default: the value when the field is absent or null.
        note: for the docs: what differs from, or is not said by, the provider's page.
        shown: the default as the docs print it, where ``default`` itself would mislead.
        refusal: with ``Status.LATER``: the rule to tell, where there is more to say than "not yet".
    """

    name: str
    kind: Kind[T]
    default: T
    status: Status = Status.DONE
    note: str = ""
    shown: str = ""
    refusal: str = "is not supported by this server yet; leave it out"

    def of(self, body: Mapping[str, object]) -> T:
        """The field's value in a request, checked; the default if absent or null."""
        given = body.get(self.name.rpartition(".")[2])
        if given is None:
            return self.default
        value = self.kind.read(self.name, given)
        if self.status is Status.LATER and value != self.default:
            raise Unsupported(self.name, self.refusal, shorten(given))
        return value

    def required(self, body: Mapping[str, object]) -> T:
        """The same for a field that must be given, and not as null."""
        if body.get(self.name.rpartition(".")[2]) is None:
            raise BadRequest(self.name, "is required", code="missing_required_parameter")
        return self.of(body)


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true`` or ``false``; never 0, 1 or a string."""

    type: str = "boolean"
    range: str = ""

    def read(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(name, "a boolean", value)
        return value


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer in [low, high]; a bound that is ``None`` is open."""

    low: int | None = None
    high: int | None = None
    type: str = "integer"

    @property
    def range(self) -> str:
        return _range(self.low, self.high)

    def read(self, name: str, value: object) -> int:
        number = integral(value)
        if number is None:
            raise wrong_type(name, "an integer", value)
        _require_range(name, number, self.low, self.high, value)
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number in [low, high]."""

    low: float
    high: float
    type: str = "number"

    @property
    def range(self) -> str:
        return _range(self.low, self.high)

    def read(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(name, "a number", value)
        _require_range(name, value, self.low, self.high, value)
        return float(value)


@dataclass(frozen=True, slots=True)
class Positive:
    """A finite number in (0, high]."""

    high: float
    type: str = "number"

    @property
    def range(self) -> str:
        return f"above 0, up to {self.high:g}"

    def read(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(name, "a number", value)
        if not 0 < value <= self.high:
            raise BadRequest(name, f"must be {self.range}", shorten(value))
        return float(value)


@dataclass(frozen=True, slots=True)
class String:
    """Text of at most ``most`` characters; ``None``: as many as fit the body."""

    most: int | None = None
    type: str = "string"

    @property
    def range(self) -> str:
        return "" if self.most is None else f"up to {self.most} characters"

    def read(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        if self.most is not None and len(value) > self.most:
            raise BadRequest(name, f"must be at most {self.most} characters", f"{len(value)} characters")
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]
    type: str = "string"

    @property
    def range(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)

    def read(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        if value not in self.words:
            raise BadRequest(name, f"must be one of {', '.join(self.words)}", shorten(value))
        return value


@dataclass(frozen=True, slots=True)
class Object:
    """A JSON object; its members are fields of their own."""

    type: str = "object"
    range: str = ""

    def read(self, name: str, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise wrong_type(name, "an object", value)
        return value


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop string or a list of them; an empty list is none."""

    most: int
    longest: int
    type: str = "string | array<string>"

    @property
    def range(self) -> str:
        return f"up to {self.most} strings of 1 to {self.longest} characters"

    def read(self, name: str, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return (self._one(name, value),)
        if not isinstance(value, list):
            raise wrong_type(name, "a string or an array of strings", value)
        if len(value) > self.most:
            raise BadRequest(name, f"must be at most {self.most} strings", f"{len(value)} strings")
        return tuple(self._one(f"{name}[{index}]", one) for index, one in enumerate(value))

    def _one(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        if not 1 <= len(value) <= self.longest:
            raise BadRequest(name, f"must be 1 to {self.longest} characters", f"{len(value)} characters")
        return value


@dataclass(frozen=True, slots=True)
class Prompts:
    """The four prompt forms: text, texts, token ids, lists of token ids; never a mixture."""

    most: int | None = None
    type: str = "string | array<string> | array<integer> | array<array<integer>>"

    @property
    def range(self) -> str:
        return "no empty array" if self.most is None else f"1 to {self.most} prompts; no empty array"

    def read(self, name: str, value: object) -> tuple[Prompt, ...]:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise wrong_type(name, "a string, an array of strings, an array of token ids or an array of such arrays", value)
        if not value:
            raise BadRequest(name, "must not be an empty array", "[]")
        if not isinstance(value[0], str | list):
            return (_token_ids(name, value),)
        if self.most is not None and len(value) > self.most:
            raise BadRequest(name, f"must be at most {self.most} prompts", f"{len(value)} prompts")
        read = _text if isinstance(value[0], str) else _token_ids
        return tuple(read(f"{name}[{index}]", one) for index, one in enumerate(value))


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Token id, as a string of decimal digits, to the bias that is added to its logit; an empty object is none."""

    most: int
    low: float = -100.0
    high: float = 100.0
    type: str = "object"

    @property
    def range(self) -> str:
        return f"up to {self.most} token ids, each {_range(self.low, self.high)}"

    def read(self, name: str, value: object) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise wrong_type(name, "an object of token ids and numbers", value)
        if len(value) > self.most:
            raise BadRequest(name, f"must have at most {self.most} token ids", f"{len(value)} token ids")
        number = Number(self.low, self.high)
        return tuple((_token_key(name, key), number.read(f"{name}.{printable(key)}", bias)) for key, bias in value.items())


_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,9}")


def _token_key(name: str, key: str) -> int:
    """One spelling per token id, so that no two keys mean the same token; what ``int`` reads is far more than that."""
    if not _TOKEN_KEY.fullmatch(key) or int(key) > MAX_TOKEN_ID:
        raise BadRequest(name, "must have token ids, in plain decimal digits, as its keys", shorten(key))
    return int(key)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string like the prompts before it", value)
    return value


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    """Checked by C-speed passes over the list, since an id list may fill the whole body; item by item only to name the offender."""
    if not isinstance(value, list):
        raise wrong_type(name, "an array of token ids like the prompts before it", value)
    if not value:
        raise BadRequest(name, "must not be an empty array", "[]")
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_TOKEN_ID:
        return tuple(value)
    return tuple(_token_id(f"{name}[{index}]", one) for index, one in enumerate(value))


def _token_id(name: str, value: object) -> int:
    number = integral(value)
    if number is None:
        raise wrong_type(name, "a token id (an integer)", value)
    if not 0 <= number <= MAX_TOKEN_ID:
        raise BadRequest(name, "must be a token id of the model's vocabulary", shorten(value))
    return number


def integral(value: object) -> int | None:
    """The integer that a JSON number is, or ``None``.

    JSON does not tell 16 from 16.0, and JSON Schema, in which the providers' pages are written, calls both integers
    (2020-12, 6.1.1: "any number with a zero fractional part"); a float beyond 2**53 may not be the number the client meant.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= EXACT_FLOAT else None
    return value if isinstance(value, int) else None


def wrong_type(name: str, wanted: str, value: object) -> BadRequest:
    """The error for a value of the wrong JSON type."""
    return BadRequest(name, f"must be {wanted}", shorten(value), code="invalid_type")


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""
    return f"{low:g} to {high:g}" if abs(low) < 1e6 and high < 1e6 else f"{low} to {high}"


def _require_range(name: str, number: float, low: float | None, high: float | None, value: object) -> None:
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = _range(low, high) if low is None or high is None else f"between {low} and {high}"
        raise BadRequest(name, f"must be {bounds}", shorten(value))


def unknown(fields: Iterable[Field[object]], body: Mapping[str, object]) -> tuple[str, ...]:
    """Keys of the body, and of its objects, that no field of the table has; printable, in the order sent."""
    known = {field.name for field in fields}
    parents = {name.partition(".")[0] for name in known if "." in name}
    names: list[str] = []
    for key, value in body.items():
        if "." in key or key not in known:  # a dotted name is a member's, and no key of the body itself
            names.append(printable(key))
        elif key in parents and isinstance(value, dict):
            names += [f"{key}.{printable(inner)}" for inner in value if f"{key}.{inner}" not in known]
    return tuple(names)


def table(fields: Sequence[Field[object]]) -> str:
    """The fields as a Markdown table, for the docs."""
    rows = ["| field | type | values | default | here | notes |", "|---|---|---|---|---|---|"]
    for field in fields:
        kind = field.kind.type.replace("|", "\\|")
        cells = [f"`{field.name}`", f"`{kind}`", field.kind.range, shown(field), field.status.value, field.note]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def shown(field: Field[object]) -> str:
    """The default as the docs print it."""
    if field.shown:
        return field.shown
    if field.default in (None, "", (), {}):
        return "unset"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{str(field.default).lower()}`"
