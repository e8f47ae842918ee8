"""A guide as the library takes it, or why it is refused. Runs in a disposable process (``check``)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache

import numpy as np

from quintet.guides.gbnf import is_gbnf
from quintet.guides.matcher import TRIED_FUEL, Compiler, Matcher, fault, notation_of_regex
from quintet.guides.protocol import GuideError
from quintet.guides.schema import SchemaError, enforceable
from quintet.guides.terminals import notation
from quintet.request import GuideKind

BLANKS = 64
"""Most characters of white space in one place of generated JSON: enough to indent 30 levels, and no model can run on in it for ever."""

_JSON = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{BLANKS}}}",
    "lenient": False,
    "coerce_one_of": False,
    # One spelling per character: else the name of a declared property, written with other escapes, passes for an undeclared one.
    "json_allowed_escapes": '"\\bfnrt',
    "json_allow_general_unicode_escapes": False,
}

_TAIL = '\n%llguidance {"no_forcing": true}\n'
"""A mask allows every token that keeps to the guide. The library would else force its own way to cut a fixed text into tokens, which a
model that was trained on another continues badly."""

_WALKS, _WALK_BYTES = 4, 48  # through a guide when it is verified
_NOTHING_FOLLOWS = frozenset({"", "NoExtensionBias"})  # the library's own word for a mask without tokens


def translate(kind: GuideKind, text: str) -> str:
    """A guide in the library's own notation.

    Raises:
        GuideError: not a guide of this kind, or one with a keyword that cannot be enforced.
    """
    try:
        return _TRANSLATORS[kind](text)
    except GuideError:
        raise
    except RecursionError:
        raise GuideError("must not be nested so deeply") from None
    except Exception as error:  # the library raises what it likes; each of it is about the text
        raise GuideError(f"must be a valid {_NAMES[kind]}: {_line(str(error))}") from None


def verify(kind: GuideKind, grammar: str) -> None:
    """Compile for a vocabulary of bytes and follow it a little; may crash or take for ever, so only in a disposable process.

    Raises:
        GuideError: it does not compile, cannot be enforced as a whole, is too complex, or admits no text at all.
    """
    if found := fault(grammar):
        raise GuideError(f"must be a valid {_NAMES[kind]} that can be enforced: {_line(found)}")
    first = _over_bytes().compile(grammar)
    for seed in range(_WALKS):
        _walk(first.copy(), random.Random(seed))


_END = 256
"""Of a vocabulary in which each byte is a token the one that ends a text."""


@cache
def _over_bytes() -> Compiler:
    return Compiler([*(bytes([byte]) for byte in range(_END)), b""], frozenset({_END}), _END + 1, TRIED_FUEL)


def _walk(matcher: Matcher, rng: random.Random) -> None:
    """Follow a guide for ``_WALK_BYTES``, or to its end, by any token that may come.

    Raises:
        GuideError: nothing can follow, or it is too complex to say what.
    """
    mask = np.zeros(_END // 32 + 1, np.uint32)
    for _ in range(_WALK_BYTES):
        if not matcher.fill(mask):
            if matcher.error in _NOTHING_FOLLOWS:
                raise GuideError("must admit some text, and not come to where nothing can follow")
            raise GuideError(f"must be less complex: {_line(matcher.error)}")
        token = rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
        if token == _END:
            return
        if not matcher.consume(token):
            raise GuideError(f"must be less complex: {_line(matcher.error)}")


def _schema(text: str) -> str:
    return f"start: %json {_enforced(json.loads(text))}{_TAIL}"


def _enforced(schema: object) -> str:
    if not isinstance(schema, dict):
        raise GuideError("must be a JSON Schema that is an object")
    try:
        return json.dumps({**enforceable(schema), "x-guidance": _JSON})
    except SchemaError as error:
        raise GuideError(_line(str(error))) from None


def _choice(text: str) -> str:
    options = json.loads(text)
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise GuideError("must be a list of at least one string")
    return f"start: {' | '.join(map(_quoted, options))}{_TAIL}"


def _quoted(text: str) -> str:
    """U+007F, which JSON leaves as it is, the library takes as a code only."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _grammar(text: str) -> str:
    return (notation(text) if is_gbnf(text) else _with_enforced_schemas(text)) + _TAIL


def _with_enforced_schemas(text: str) -> str:
    """A Lark grammar, its schemas as ``_schema`` has them.

    Raises:
        GuideError: a rule has a temperature, which the library hands to whoever draws the tokens.
    """
    made, at = [], 0
    while found := _LEXEME.search(text, at):
        if found[0].startswith("temperature"):
            raise GuideError("must not use temperature in a rule, which cannot be kept")
        made.append(text[at : found.end()])
        at = found.end()
        if found[0].startswith("%"):
            schema, at = _READER.raw_decode(text, at)
            made.append(_enforced(schema))
    return "".join([*made, text[at:]])


def _regex(text: str) -> str:
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise GuideError("must not end with a backslash that escapes nothing")  # the library would leave it out
    return notation_of_regex(text) + _TAIL


_TRANSLATORS: dict[GuideKind, Callable[[str], str]] = {
    GuideKind.JSON_OBJECT: lambda _: _schema('{"type": "object"}'),
    GuideKind.JSON_SCHEMA: _schema,
    GuideKind.REGEX: _regex,
    GuideKind.GRAMMAR: _grammar,
    GuideKind.CHOICE: _choice,
}

_NAMES = {
    GuideKind.JSON_OBJECT: "JSON Schema",
    GuideKind.JSON_SCHEMA: "JSON Schema",
    GuideKind.REGEX: "regular expression",
    GuideKind.GRAMMAR: "grammar (GBNF or Lark)",
    GuideKind.CHOICE: "list of choices",
}


_LONGEST = 160  # characters of a message
_READER = json.JSONDecoder()
_LEXEME = re.compile(r""""(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\])+/|%json\s*|\btemperature\s*=""")
"""A string, a comment, a regular expression, what comes before a schema or a temperature, as llguidance's lexer has them."""

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_SOURCE = re.compile(r"\n\s*\d+ \| ")
_REPEATED = re.compile(r'^invalid regex "(?:\\.|[^"\\])*" \([^)]*\): ', re.DOTALL)
_PARSED = re.compile(r"^regex parse error:\n {4}(?P<regex>.*)\n {4}(?P<before> *)\^.*\nerror: (?P<reason>.*)")
_ONE_OF = "oneOf constraints are not supported"  # and it goes on with an option that no request can set
_SHOWN = 20  # characters of a regular expression, from where it is wrong


def _line(text: str) -> str:
    """A message on one line, in printable ASCII, without the places in what we made of the guide.

    Nor with the regular expression that the client knows, before the reason: of a long one the reason would be left out.
    """
    told = _REPEATED.sub("", _SOURCE.split(_PLACE.sub("", text))[0])
    if parsed := _PARSED.match(told):
        told = f"{parsed['reason']}: {parsed['regex'][len(parsed['before']) :][:_SHOWN]}"
    elif told.startswith(_ONE_OF):
        told = "oneOf of schemas that may hold at once; have them exclude each other, or use anyOf"
    flat = " ".join(told.split()).rstrip(".")
    short = flat if len(flat) <= _LONGEST else f"{flat[:_LONGEST]}..."
    return "".join(char if char.isascii() and char.isprintable() else ascii(char)[1:-1] for char in short)
