"""What an output must conform to, as clients of vLLM, SGLang and llama-server ask for it; taken in every dialect, under their names.

"vLLM": its ``StructuredOutputsParams`` and the ``guided_*`` fields before those; "SGLang": its ``CompletionRequest``; "llama":
tools/server/README.md, "POST /completion"; "OpenAI": ``response_format`` of chat completions, which all of them take here too. A request
has one constraint at most. None is ever ignored: what cannot be kept is a 400 that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintet.dialects.fields import REQUIRED, Boolean, Field, Object, OneOf, Status, String, unknown, wrong_type
from quintet.dialects.json_guard import decode_object
from quintet.dialects.lists import ListOf
from quintet.errors import BadRequest, Unsupported, printable, shorten
from quintet.request import Guide, GuideKind

_EXTENSION = Status.EXTENSION

_RESTRICTING = frozenset(
    {
        *("type", "enum", "const", "not", "if", "then", "else", "allOf", "anyOf", "oneOf", "disallow", "extends"),
        *("requires", "optional", "minimumCanEqual", "maximumCanEqual", "maxDecimal"),
        *("$ref", "$dynamicRef", "$recursiveRef"),
        *("format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"),
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("required", "minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "uniqueItems", "minItems", "maxItems"),
        *("contains", "minContains", "maxContains"),
    }
)
"""Keywords of JSON Schema, any draft's, without which a schema admits anything."""

_WRAPPING = frozenset({"name", "schema", "strict"})
"""Members of OpenAI's object around a schema that are no keywords of one."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema, as an object or as JSON text; read as text."""

    type: str = "object | string"
    range: str = ""

    def read(self, name: str, value: object) -> str:
        schema = self._object(name, value)
        # Fireworks' page: `{"type": "json_schema", "json_schema": <json_schema>}`; OpenAI: `{"name": ..., "schema": <json_schema>,
        # "strict": ...}`. What is no schema there, null or nothing, is not taken for one around it, which would admit anything.
        around = not _WRAPPING.isdisjoint(schema) and _RESTRICTING.isdisjoint(schema)
        if around or ("name" in schema and schema.get("schema") is not None):
            _require_nothing_beside(name, schema)
            schema = self._object(f"{name}.schema", schema.get("schema"))
        return json.dumps(schema, separators=(",", ":"))

    def _object(self, name: str, value: object) -> dict[str, object]:
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            raise wrong_type(name, "an object, or a string that holds one", value)
        try:
            return decode_object(value.encode())
        except BadRequest as error:
            where = f"'{error.param}' in it" if error.param else "it"
            raise BadRequest(name, f"must hold one JSON object; {where} {error.rule.removeprefix('The body ')}", error.got) from None


def _require_nothing_beside(name: str, around: Mapping[str, object]) -> None:
    """What is written beside a schema and restricts is meant to: neither may be passed over for the other.

    Raises:
        BadRequest: something is, but for the type that OpenAI's newer API has there.
    """
    beside = next((key for key in sorted(_RESTRICTING & around.keys()) if (key, around[key]) != ("type", "json_schema")), None)
    if beside is not None:
        raise BadRequest(
            f"{name}.{beside}", "must stand inside 'schema', or have no 'name' and 'schema' beside it", shorten(around[beside])
        )


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's text.

    Args:
        none: an empty one is none.
    """

    type: str = "string"
    range: str = "no NUL"
    none: bool = False

    def read(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        if "\0" in value:
            raise BadRequest(name, "must not hold a NUL character", f"one at offset {value.index(chr(0))}")
        if not value and not self.none:
            raise BadRequest(name, "must not be empty")
        return value


RESPONSE_FORMAT: Field[dict[str, object] | None] = Field("response_format", Object(), None, _EXTENSION)
FORMAT_TYPE = Field(
    "response_format.type", OneOf(("text", "json_object", "json_schema", "grammar")), "", _EXTENSION, "`text`: anything.", REQUIRED
)
JSON_SCHEMA = Field("response_format.json_schema", Schema(), "", _EXTENSION, 'Bare, or as OpenAI has it: `{"name": ..., "schema": ...}`.')
SCHEMA = Field("response_format.schema", Schema(), "", _EXTENSION, "Another name of `json_schema`; also with `json_object`.")
GRAMMAR = Field("response_format.grammar", Grammar(), "", _EXTENSION, "GBNF or Lark.")

# vLLM, structured_outputs: "One of these fields will be used to build a logit processor": json, regex, choice, grammar, json_object.
STRUCTURED: Field[dict[str, object] | None] = Field("structured_outputs", Object(), None, _EXTENSION, "One of its members.")
_CHOICES = ListOf(String(1024), 1024, 1)
_JSON = Field("structured_outputs.json", Schema(), "", _EXTENSION)
_REGEX = Field("structured_outputs.regex", Grammar(), "", _EXTENSION)
_CHOICE: Field[tuple[str, ...]] = Field("structured_outputs.choice", _CHOICES, (), _EXTENSION)
_GRAMMAR = Field("structured_outputs.grammar", Grammar(), "", _EXTENSION, "GBNF or Lark.")
_JSON_OBJECT = Field("structured_outputs.json_object", Boolean(), False, _EXTENSION)

GUIDED_JSON = Field("guided_json", Schema(), "", _EXTENSION)
GUIDED_REGEX = Field("guided_regex", Grammar(), "", _EXTENSION)
GUIDED_CHOICE: Field[tuple[str, ...]] = Field("guided_choice", _CHOICES, (), _EXTENSION)
GUIDED_GRAMMAR = Field("guided_grammar", Grammar(), "", _EXTENSION, "GBNF or Lark.")
# SGLang: json_schema, regex, ebnf; llama: json_schema, and grammar, whose default is "".
BARE_SCHEMA = Field("json_schema", Schema(), "", _EXTENSION)
BARE_REGEX = Field("regex", Grammar(), "", _EXTENSION)
EBNF = Field("ebnf", Grammar(), "", _EXTENSION, "GBNF or Lark.")
BARE_GRAMMAR = Field("grammar", Grammar(none=True), "", _EXTENSION, "GBNF or Lark.")

_OF_STRUCTURED: tuple[tuple[Field[Any], GuideKind], ...] = (
    (_JSON, GuideKind.JSON_SCHEMA),
    (_REGEX, GuideKind.REGEX),
    (_CHOICE, GuideKind.CHOICE),
    (_GRAMMAR, GuideKind.GRAMMAR),
    (_JSON_OBJECT, GuideKind.JSON_OBJECT),
)
_BARE: tuple[tuple[Field[Any], GuideKind], ...] = (
    (GUIDED_JSON, GuideKind.JSON_SCHEMA),
    (GUIDED_REGEX, GuideKind.REGEX),
    (GUIDED_CHOICE, GuideKind.CHOICE),
    (GUIDED_GRAMMAR, GuideKind.GRAMMAR),
    (BARE_SCHEMA, GuideKind.JSON_SCHEMA),
    (BARE_REGEX, GuideKind.REGEX),
    (EBNF, GuideKind.GRAMMAR),
    (BARE_GRAMMAR, GuideKind.GRAMMAR),
)

_NOTHING: tuple[object, ...] = (None, False, [], "")
# vLLM, RepetitionDetectionParams, max_pattern_size: "Set to 0 to disable", the default, as that of its other members is.
_OFF = {"max_pattern_size": 0}
NOT_KEPT: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("structural_tag", "grammar_lazy", "grammar_triggers"), _NOTHING),
    "guided_whitespace_pattern": (None,),  # an empty one asks for JSON without white space
    **dict.fromkeys(("prompt_embeds", "stop_regex", "lora_path", "custom_logit_processor"), _NOTHING),
    "repetition_detection": (*_NOTHING, {}, _OFF, {**_OFF, "min_pattern_size": 0, "min_count": 0}),
    "no_stop_trim": (None, False),  # SGLang, whose texts end with the stop string with true: include_stop_str_in_output here
    "skip_special_tokens": (None, True),  # vLLM and SGLang, whose texts have special tokens with false; here none has
}
"""Fields of other servers without which another text comes than was asked for, and that are not kept here, with the values that ask for
nothing. vLLM's ``guided_decoding_backend`` is none: it says who keeps a constraint."""
_NO_REQUEST: Mapping[str, tuple[object, ...]] = {
    **NOT_KEPT,
    "priority": (None, 0),  # vLLM, which refuses others "if the served model does not use priority scheduling"
    "spaces_between_special_tokens": (None, True, False),  # vLLM: of no effect while skip_special_tokens is true
    **dict.fromkeys(("return_hidden_states", "return_routed_experts", "return_cached_tokens_details"), (None, False)),  # SGLang
}
"""All fields of other servers with the values that ask for nothing: those not kept, and those that change no text. With another value the
former are refused, and the latter are unknown fields like any other."""
_MEMBERS_NOT_KEPT: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("disable_fallback", "disable_any_whitespace", "disable_additional_properties"), (None, False)),
    "whitespace_pattern": (None,),
    "structural_tag": (None, ""),
}
"""As ``NOT_KEPT``, of members of vLLM's ``structured_outputs``."""
_OPTIONS_DONE: Mapping[str, tuple[object, ...]] = {"include_usage": (None, True)}
"""The same of members of OpenAI's ``stream_options`` where a provider has no such option: streams of Fireworks and Together end with the
usage, whoever asks, and clients of OpenAI's SDK do. Fireworks' page: "returning `usage` for streaming requests is an OpenAI API
extension"."""
_MEMBERS = {STRUCTURED.name: _MEMBERS_NOT_KEPT, "stream_options": _OPTIONS_DONE}

FIELDS: tuple[Field[Any], ...] = (
    *(RESPONSE_FORMAT, FORMAT_TYPE, JSON_SCHEMA, SCHEMA, GRAMMAR),
    *(STRUCTURED, *(field for field, _ in _OF_STRUCTURED)),
    *(field for field, _ in _BARE),
)


def unknown_fields(fields: Iterable[Field[object]], body: Mapping[str, object]) -> tuple[str, ...]:
    """As ``fields.unknown``, without other servers' fields that ask for nothing, which is done: their clients send their defaults along."""
    asked = {name: value for name, value in body.items() if value not in _NO_REQUEST.get(name, ())}
    for outer, nothing in _MEMBERS.items():
        if isinstance(members := asked.get(outer), dict):
            asked[outer] = {name: value for name, value in members.items() if value not in nothing.get(name, ())}
    return unknown(fields, asked)


def constraint(given: Mapping[str, object], own: Guide | None) -> Guide | None:
    """The guide that a body's fields ask for.

    Args:
        given: of the body those that its provider does not have itself.
        own: what the provider's own fields ask for.

    Raises:
        BadRequest: a field that cannot be kept, that is malformed, or that comes beside another.
    """
    for name, nothing in sorted(NOT_KEPT.items()):
        if given.get(name) not in nothing:
            raise Unsupported(name, "is not kept by this server; leave it out", shorten(given[name]))
    found = [] if own is None else [own]
    for guide in _guides(given):
        if found:
            raise BadRequest(guide.param, f"must not be given together with {found[0].param}")
        found.append(guide)
    return found[0] if found else None


def response_format(given: Mapping[str, object] | None) -> Guide | None:
    """The guide of a ``response_format``; ``None`` = anything may come.

    Raises:
        BadRequest: a member that is missing, malformed, or that its type has no use for.
    """
    if given is None:
        return None
    kind, grammar = FORMAT_TYPE.required(given), GRAMMAR.of(given)
    if JSON_SCHEMA.of(given) and SCHEMA.of(given):
        raise BadRequest(SCHEMA.name, "must not be given together with json_schema")
    schema = JSON_SCHEMA.of(given) or SCHEMA.of(given)
    if grammar and kind != "grammar":
        raise BadRequest(GRAMMAR.name, "needs the type grammar", kind)
    if schema and kind in ("text", "grammar"):
        raise BadRequest(FORMAT_TYPE.name, "must be json_schema or json_object where there is a schema", kind)
    if (kind == "grammar" and not grammar) or (kind == "json_schema" and not schema):
        raise BadRequest(f"response_format.{kind}", "is required", code="missing_required_parameter")
    if kind == "text":
        return None
    if kind == "grammar":
        return Guide(GuideKind.GRAMMAR, grammar, RESPONSE_FORMAT.name)
    if not schema:
        return Guide(GuideKind.JSON_OBJECT, "", RESPONSE_FORMAT.name)
    return Guide(GuideKind.JSON_SCHEMA, _of_objects(schema) if kind == "json_object" else schema, RESPONSE_FORMAT.name)


def _of_objects(schema: str) -> str:
    """The same, as JSON text, of objects only."""
    part = json.loads(schema)
    others = part.get("allOf", [])
    if part.get("type") == "object" or not isinstance(others, list):  # else no list, which is refused where guides are checked
        return schema
    return json.dumps({**part, "allOf": [*others, {"type": "object"}]}, separators=(",", ":"))


def _guides(given: Mapping[str, object]) -> Iterator[Guide]:
    if guide := response_format(RESPONSE_FORMAT.of(given)):
        yield guide
    if (structured := STRUCTURED.of(given)) is not None:
        yield from _structured(structured)
    yield from _named(_BARE, given)


def _structured(members: Mapping[str, object]) -> Iterator[Guide]:
    known = {field.name.partition(".")[2] for field, _ in _OF_STRUCTURED}
    for name, value in members.items():
        if name not in known and value not in _MEMBERS_NOT_KEPT.get(name, (None, False)):
            raise Unsupported(f"{STRUCTURED.name}.{printable(name)}", "is not kept by this server; leave it out", shorten(value))
    guides = [*_named(_OF_STRUCTURED, members)]
    if not guides:
        # vLLM: "You must use one kind of structured outputs constraint but none are specified".
        raise BadRequest(STRUCTURED.name, "must have one of json, regex, choice, grammar, json_object")
    yield from guides


def _named(fields: Sequence[tuple[Field[Any], GuideKind]], given: Mapping[str, object]) -> Iterator[Guide]:
    for field, kind in fields:
        if value := field.of(given):
            yield Guide(kind, _guide_text(kind, value), field.name)


def _guide_text(kind: GuideKind, value: Any) -> str:
    if kind is GuideKind.JSON_OBJECT:
        return ""
    return json.dumps(value) if kind is GuideKind.CHOICE else str(value)
