"""JSON Schema's regular expressions in the compiler's dialect. Plain code.

JSON Schema's are ECMA 262's; the compiler's are those of Rust's ``regex``, in which some of the same texts mean something else: sets in
sets, ``&&`` and ``--`` in them, flags, and what ``.`` and ``\\s`` stand for. What the two do not share is written out or refused.
"""

from __future__ import annotations

import re

_SPACE = r"\t\n\x0b\x0c\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""ECMA 262, WhiteSpace and LineTerminator; Rust's has U+0085 and lacks U+FEFF."""

_CONTROLS = r"\x00-\x07\x0b\x0e-\x1f"
"""Characters that no string holds here, as JSON would write them as codes. In a set that has them but not the quotation mark, or not the
backslash, the compiler takes that one for a member too (llguidance 1.9.1): so they are taken out of every set."""

_ESCAPE = r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[pP]\{[^{}]+\}|.?)"
_QUANTIFIER = r"(?:[*+?]|\{\d+(?:,\d*)?\})\??"
_SET = rf"\[\^?(?:{_ESCAPE}|[^\\\]])*\]?"
ATOM = re.compile(rf"({_ESCAPE})|({_QUANTIFIER})|({_SET})|(\((?:\?(?::|<[A-Za-z]\w*>)?)?)|.", re.DOTALL)
_MEMBER = re.compile(rf"({_ESCAPE})|--|.", re.DOTALL)

_SAME = frozenset("dDwWtnrfvbBpPux")
"""Letters that mean the same in both after a backslash, or that the compiler refuses."""


class PatternError(ValueError):
    """Not ECMA 262's, or not in what the compiler can enforce; ``str(error)`` is the part."""


def from_ecma(pattern: str) -> str:
    """The same pattern in Rust's dialect.

    Raises:
        PatternError: it has no such form.
    """
    made, quantified = [], True
    for atom in ATOM.finditer(pattern):
        text, (escape, quantifier, members, group) = atom[0], atom.groups()
        if (quantifier and quantified) or group == "(?":
            raise PatternError(pattern[atom.start() : atom.start() + 8])
        quantified = bool(quantifier) or bool(group) or text in "|^$"
        if escape:
            made.append(_escape(text))
        elif members:
            made.append(_set(text))
        elif text == ".":
            made.append(r"[^\n\r\u2028\u2029]")
        else:
            made.append(rf"\{text}" if text in "{}]" else text)  # literal where they begin or end nothing
    return "".join(made)


def _set(text: str) -> str:
    start = "[^" if text.startswith("[^") else "["
    if not text.endswith("]") or len(text) == len(start) + 1:
        raise PatternError(text)
    made = [start]
    for member in _MEMBER.finditer(text, len(start), len(text) - 1):
        if member[0] == "--":
            raise PatternError(text)
        if member[1]:
            made.append(_escape(member[0], backspace=r"\x08"))
        else:
            made.append(rf"\{member[0]}" if member[0] in "[&~^" else member[0])
    return _writable("".join([*made, "]"]))


def _writable(members: str) -> str:
    """A set without ``_CONTROLS``."""
    return f"[{members}&&[^{_CONTROLS}]]"


def _escape(text: str, backspace: str = "") -> str:
    """An escape; ``backspace`` is what ``\\b`` stands for inside a set, as it is a boundary elsewhere."""
    letter = text[1:2]
    if letter in ("s", "S"):
        return _writable(f"[{'^' * (letter == 'S')}{_SPACE}]")
    if letter == "b" and backspace:
        return backspace
    if not letter or (letter.isalnum() and letter not in _SAME) or (letter in "xupP" and len(text) == 2):
        raise PatternError(text)
    if letter in ("p", "P"):
        return _writable(text)
    return letter if letter in "<>" else text
