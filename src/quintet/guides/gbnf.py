"""GBNF, llama.cpp's notation for grammars, put so that the library's converter understands it.

The converter (``llguidance.gbnf_to_lark``) knows most of it. What it reads otherwise than llama.cpp does is written in other words here: a
repetition of a repetition, ``.``, code points, classes with signs that mean something to its regular expressions, and rules whose names
Lark has no room for. Source: llama.cpp, grammars/README.md and src/llama-grammar.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LARK = re.compile(r"(?m)^[ \t]*(%llguidance\b|start[ \t]*:(?!:=))")
_LEXEME = re.compile(
    r"""(?P<blank>\s+|\#[^\r\n]*) | (?P<text>"(?:\\.|[^"\\])*") | (?P<class>\[(?:\\.|[^\]\\])*\]) | (?P<times>[*+?]|\{[^}]*\})
    | (?P<is>::=) | (?P<name>[\w-]+) | (?P<any>\.) | (?P<end>\)) | (?P<other>["[{].*|.)""",  # what is not closed is looked at once
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", re.DOTALL)
_CODES = {"x": 4, "u": 6, "U": 10}
_ANY = "[\\x00-\U0010ffff]"
_EMPTY = ' ""'


def is_gbnf(text: str) -> bool:
    """And not Lark, which has a rule ``start``."""
    return _LARK.search(text) is None


def plain(text: str) -> str:
    """The same grammar in the part of GBNF that the converter reads as llama.cpp does; what is wrong with it stays as it is.

    Raises:
        ValueError: a rule that is not there.
    """
    lexemes = [(found.lastgroup or "", found[0]) for found in _LEXEME.finditer(text)]
    names = _names(lexemes)
    made, before = [], ""
    for at, (kind, part) in enumerate(lexemes):
        if kind == "end" and before == "times" and _next(lexemes, at) == "times":
            made.append(_EMPTY)  # a repetition alone in parentheses would lose them
        made.append(_part(kind, part, names))
        before = before if kind == "blank" else kind
    return "".join(made)


def _names(lexemes: list[tuple[str, str]]) -> dict[str, str]:
    """What a rule is called, so that no two names become one in Lark, which has neither capitals nor ``-`` in them."""
    rules = dict.fromkeys(name for at, (kind, name) in enumerate(lexemes) if kind == "name" and _next(lexemes, at) == "is")
    for kind, name in lexemes:
        if kind == "name" and name not in rules:
            raise ValueError(f"there is no rule {name}")
    return {name: name if name == "root" else f"r{number}" for number, name in enumerate(rules)}


def _next(lexemes: list[tuple[str, str]], at: int) -> str:
    """The kind of what follows, blanks aside."""
    for later in range(at + 1, len(lexemes)):
        if lexemes[later][0] != "blank":
            return lexemes[later][0]
    return ""


def _part(kind: str, part: str, names: dict[str, str]) -> str:
    match kind:
        case "name":
            return names[part]
        case "any":
            return _ANY
        case "text":
            return f'"{"".join(_written(one) for one in _characters(part[1:-1]))}"'
        case "class":
            return f"[{''.join(_ranges(part[1:-1]))}]"
    return part


def _ranges(inside: str) -> Iterator[str]:
    """Source, parse_sequence: ``-`` makes a range unless the class ends there, ``^`` stands for all others where it comes first."""
    if inside.startswith("^"):
        yield "^"
    given = _characters(inside.removeprefix("^"))
    at = 0
    while at < len(given):
        yield _written(given[at])
        if at + 2 < len(given) and given[at + 1] == "-":
            yield f"-{_written(given[at + 2])}"
            at += 2
        at += 1


def _characters(text: str) -> list[str]:
    """Each as itself, or as an escape that is none of a code point."""
    return [_read(one) for one in _CHARACTER.findall(text)]


def _read(one: str) -> str:
    if one[1:2] in _CODES and len(one) == _CODES[one[1]]:
        code = int(one[2:], 16)
        return chr(code) if code <= 0x10FFFF else one
    return one[1] if one in ("\\[", "\\]") else one


def _written(one: str) -> str:
    """Signs as numbers: in a class some of them mean something, alone or twice."""
    return f"\\x{ord(one):02x}" if len(one) == 1 and one.isascii() and not one.isalnum() and one != " " else one
