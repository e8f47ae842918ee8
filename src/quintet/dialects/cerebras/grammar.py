"""What each of Cerebras' grammar roots accepts.

Page, grammar_root: "The grammar root used for structured output generation", and twelve names; it does not say what they stand for. Seven
are the rules of the JSON grammar that llama.cpp made common (root, value, object, array, string, number, ws). The others tell apart
whether the model calls functions: so ``root`` is here what lets it do either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from quintet.request import Guide, GuideKind


@dataclass(frozen=True, slots=True)
class Root:
    """A grammar root.

    Args:
        accepts: in words, for the docs.
        text: as ``Guide`` has it.
    """

    accepts: str
    kind: GuideKind
    text: str


_FUNC: Mapping[str, object] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
_FUNCS: Mapping[str, object] = {"type": "array", "items": _FUNC, "minItems": 1}
_CALL: Mapping[str, object] = {"anyOf": [_FUNC, _FUNCS]}

# Whatever does not begin as JSON objects and arrays do, so that a reader can tell by the first character.
_NO_CALL = r"\s*([^\s{\[](.|\n)*)?"
_EITHER = f"start: call | NO_CALL\ncall: %json {json.dumps(_CALL)}\nNO_CALL: /{_NO_CALL}/\n"
# Bounded, or a model could go on with white space for ever.
_SPACE = r"[ \t\n\r]{1,20}"


def _json(accepts: str, schema: Mapping[str, object]) -> Root:
    return Root(accepts, GuideKind.JSON_SCHEMA, json.dumps(schema))


ROOTS: Mapping[str, Root] = {
    "root": Root("`fcall` or `nofcall`, as the model likes", GuideKind.GRAMMAR, _EITHER),
    "fcall": _json("`func` or `funcarray`", _CALL),
    "nofcall": Root("any text that does not begin, after white space, with `{` or `[`", GuideKind.REGEX, _NO_CALL),
    "insidevalue": _json(
        "a JSON value that holds no others: string, number, `true`, `false`, `null`", {"type": ["string", "number", "boolean", "null"]}
    ),
    "value": _json("any JSON value", {}),
    "object": _json("a JSON object", {"type": "object"}),
    "array": _json("a JSON array", {"type": "array"}),
    "string": _json("a JSON string", {"type": "string"}),
    "number": _json("a JSON number", {"type": "number"}),
    "funcarray": _json("a JSON array of one or more `func`", _FUNCS),
    "func": _json('`{"name": string, "arguments": object}`', _FUNC),
    "ws": Root("1 to 20 characters of JSON's white space", GuideKind.REGEX, _SPACE),
}
"""By name, in the page's order."""


def guide(root: str, param: str) -> Guide:
    """The guide of a root of ``ROOTS``."""
    return Guide(ROOTS[root].kind, ROOTS[root].text, param)
