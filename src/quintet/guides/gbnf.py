"""GBNF, llama.cpp's notation for grammars, read as llama.cpp reads it, but that a line may begin with ``|``. Plain code.

Source: llama.cpp, grammars/README.md and src/llama-grammar.cpp. How the library follows what is read here: ``terminals``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LARK = re.compile(
    r"(?m)^[ \t]*(%llguidance\b|!?\??start[ \t]*(\.[ \t]*\d+[ \t]*)?"
    r"(\[[ \t]*[a-z_]+[ \t]*(?=[=,\]])(?:\"(?:\\.|[^\"\\\n])*\"|[^\"\]\n])*\][ \t]*)?:(?!:=))"
)
"""A rule ``start``, with its marks, priority and attributes, as llguidance's parser has them."""
_LEXEME = re.compile(
    r"""(?P<blank>[ \t]+|\#[^\r\n]*) | (?P<line>[\r\n]+) | (?P<text>"(?:\\.|[^"\\])*") | (?P<class>\[(?:\\.|[^\]\\])*\])
    | (?P<times>[*+?]|\{[^}]*\}) | (?P<is>::=) | (?P<name>[\w-]+) | (?P<any>\.) | (?P<or>\|) | (?P<open>\() | (?P<close>\))
    | (?P<other>["[{].*|.)""",  # what is not closed is looked at once
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_CODES = {"x": 4, "u": 6, "U": 10}
"""Characters of an escape by a code, all in all."""
_SIGNS = {"\\t": "\t", "\\r": "\r", "\\n": "\n", "\\\\": "\\", '\\"': '"', "\\[": "[", "\\]": "]"}
_TIMES = re.compile(r"\{\s*([0-9]+)\s*(,?)\s*([0-9]*)\s*\}")
_MEANT = {"is": "::=", "line": "the end of the rule", "close": ")", "name": "the name of a rule"}
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Range = tuple[int, int]
"""The first and the last code point."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of these, in order and apart."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after the other; of none: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of these."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Again and again; ``most`` None: without end."""

    inner: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """What the rule of this name is."""

    name: str


Node = Chars | Sequence | Choice | Times | Name
"""Each is itself only, wherever an equal one stands."""


def is_gbnf(text: str) -> bool:
    """And not Lark, which has a rule ``start``."""
    return _LARK.search(text) is None


def read(text: str) -> dict[str, Node]:
    """The rules, ``root`` among them; of two of one name the later.

    Raises:
        ValueError: it is no grammar, or a rule is not there.
    """
    return _Reader(text).rules()


class _Reader:
    def __init__(self, text: str) -> None:
        self._lexemes = [(found.lastgroup or "", found[0]) for found in _LEXEME.finditer(text)]
        self._at = 0
        self._named = ["root"]

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(lines=True)
        while self._kind():
            name = self._take("name")
            self._skip(lines=False)
            self._take("is")
            self._skip(lines=True)
            rules[name] = self._choice(nested=False)
            if self._kind():
                self._take("line")
            self._skip(lines=True)
        for name in self._named:
            if name not in rules:
                raise ValueError(f"there is no rule {name}")
        return rules

    def _choice(self, *, nested: bool) -> Node:
        parts = [self._sequence(nested=nested)]
        while self._or():
            self._at += 1
            self._skip(lines=True)
            parts.append(self._sequence(nested=nested))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _or(self) -> bool:
        """A ``|`` comes, which may begin a line: in XGrammar, whose grammars vLLM's clients send; no rule of llama.cpp's begins so."""
        before = self._at
        self._skip(lines=True)
        if self._kind() != "or":
            self._at = before
        return self._kind() == "or"

    def _sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while (kind := self._kind()) in ("text", "class", "any", "name", "open", "times"):
            part = self._take(kind)
            match kind:
                case "text":
                    characters = tuple(Chars(_only(code)) for code in _codes(part[1:-1]))
                    parts.append(characters[0] if len(characters) == 1 else Sequence(characters))
                case "class":
                    parts.append(_class(part[1:-1]))
                case "any":
                    parts.append(Chars(_without_surrogates([(0, _LAST)])))
                case "name":
                    parts.append(Name(part))
                    self._named.append(part)
                case "open":
                    self._skip(lines=True)
                    parts.append(self._choice(nested=True))
                    self._take("close")
                case _ if parts:
                    parts.append(_times(parts.pop(), part))
                case _:
                    raise ValueError(f"there is nothing before {part}")
            self._skip(lines=nested)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _kind(self) -> str:
        """Of what comes next; nothing at the end."""
        return self._lexemes[self._at][0] if self._at < len(self._lexemes) else ""

    def _take(self, kind: str) -> str:
        if self._kind() != kind:
            line = 1 + sum(text.count("\n") for _, text in self._lexemes[: self._at])
            found = "its end" if self._kind() in ("line", "") else self._lexemes[self._at][1][:20]
            raise ValueError(f"line {line} has {found} where {_MEANT[kind]} was expected")
        self._at += 1
        return self._lexemes[self._at - 1][1]

    def _skip(self, *, lines: bool) -> None:
        while self._kind() == "blank" or (lines and self._kind() == "line"):
            self._at += 1


def _times(inner: Node, sign: str) -> Times:
    if sign in ("*", "+", "?"):
        return Times(inner, int(sign == "+"), 1 if sign == "?" else None)
    found = _TIMES.fullmatch(sign)
    if found is None:
        raise ValueError(f"{sign[:20]} is no number of times")
    least, most = int(found[1]), int(found[3] or 0)
    has_comma, has_most = bool(found[2]), bool(found[3])
    if has_most and (not has_comma or most < least):
        raise ValueError(f"{sign[:20]} is no number of times")
    if not has_comma:  # {3}
        return Times(inner, least, least)
    return Times(inner, least, most if has_most else None)


def _class(inside: str) -> Chars:
    """Source, parse_sequence: ``-`` makes a range unless the class ends there, ``^`` stands for all others where it comes first."""
    codes = list(_codes(inside.removeprefix("^")))
    signs = _CHARACTER.findall(inside.removeprefix("^"))  # as they are written: an escaped ``-`` makes no range
    ranges, at = list[Range](), 0
    while at < len(codes):
        step = 3 if at + 2 < len(codes) and signs[at + 1] == "-" else 1
        ranges.append((codes[at], codes[at + step - 1]))
        at += step
    if any(first > last for first, last in ranges):
        raise ValueError(f"[{inside[:20]}] has a range from its end")
    return Chars(_without_surrogates(_others(ranges) if inside.startswith("^") else ranges))


def _others(ranges: list[Range]) -> list[Range]:
    """What is in none of them; some of these ranges may be empty, their last code point before their first."""
    others, begin = [], 0
    for first, last in sorted(ranges):
        others.append((begin, first - 1))
        begin = max(begin, last + 1)
    return [*others, (begin, _LAST)]


def _only(code: int) -> tuple[Range, ...]:
    return ((code, code),) if code < _SURROGATES[0] else _without_surrogates([(code, code)])


def _without_surrogates(ranges: list[Range]) -> tuple[Range, ...]:
    """In order and apart, and without what UTF-8 has no bytes for."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        for begin, end in ((first, min(last, _SURROGATES[0] - 1)), (max(first, _SURROGATES[1] + 1), last)):
            if begin > end:
                continue
            if joined and begin <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
    if not joined:
        raise ValueError("there is a class of no character")
    return tuple(joined)


def _codes(text: str) -> Iterator[int]:
    """The code point of each character, which may be written as an escape."""
    for written in _CHARACTER.findall(text):
        if written[1:2] in _CODES and len(written) == _CODES[written[1]]:
            if (code := int(written[2:], 16)) > _LAST:
                raise ValueError(f"{written} is no code point")
            yield code
        elif len(written) == 2 and written not in _SIGNS:
            raise ValueError(f"Invalid escape sequence {written}")
        else:
            yield ord(_SIGNS.get(written, written))
