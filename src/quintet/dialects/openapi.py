"""The OpenAPI document of a dialect, made from the tables that the code enforces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from quintet.dialects import tokens
from quintet.dialects.batches import Batches
from quintet.dialects.catalog import Provider
from quintet.dialects.extensions import MirostatVersion
from quintet.dialects.fields import (
    MAX_TOKEN_ID,
    REQUIRED,
    Field,
    HasForms,
    Integer,
    Kind,
    LogitBias,
    Number,
    OneOf,
    Positive,
    Prompts,
    Stop,
    String,
    shown,
)
from quintet.dialects.lists import ListOf

Json = dict[str, Any]

_STATUSES = {
    "400": "A field breaks a rule; the message names the field, the rule and the value.",
    "401": "Missing or wrong API key.",
    "403": "The key may not do this.",
    "404": "No such model, or no such path.",
    "405": "Wrong method; see the header `allow`.",
    "408": "The body did not arrive in time.",
    "409": "An answer that was given once already, and is not here any more to be given again.",
    "413": "The body is too large.",
    "414": "The URL is too long.",
    "415": "The body is not of a type, character set or encoding that is read.",
    "421": "The `Host` is none that this server answers to.",
    "422": "The `Idempotency-Key` is another request's.",
    "429": "Over this key's own limit; see the header `retry-after`.",
    "431": "The headers are too many or too long.",
    "500": "The server, or its engine, failed.",
    "503": "The model is loading, or the queue is full; see the header `retry-after`.",
    "504": "Over the server's time limit.",
}

_TOKEN_IDS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}


_API = "1"
"""The API's version, as in ``/v1``. The program's own is told with a key only."""


def document(provider: Provider) -> Json:
    """The OpenAPI 3.2 document of one provider's paths."""
    components: dict[str, Json] = {}
    body = _of_hint(provider.body, components)
    chunk = body if provider.chunk is None else _of_hint(provider.chunk, components)
    error = _json(_of_hint(provider.error, components))
    errors = {status: {"description": text, "content": error} for status, text in sorted({**_STATUSES, **provider.statuses}.items())}
    return {
        "openapi": "3.2.0",
        "info": {"title": f"Quintet: {provider.title} completions", "version": _API, "description": f"Follows {provider.page}"},
        "servers": [{"url": provider.bases[0]}, {"url": "/v1", "description": "With the header X-Completions-Dialect or --dialect."}],
        "security": [{}, {"key": []}],
        "paths": {
            "/completions": {"post": _completions(provider, body, chunk, errors)},
            "/models": {"get": _get("The models served.", errors)},
            "/models/{name}": {"get": {**_get("One model.", errors), "parameters": [_in_path("name")]}},
            **(_of_project(errors) if provider.of_project is not None else {}),
            "/tokenize": {"post": _post("Text to token ids.", request(tokens.FIELDS), errors)},
            "/detokenize": {"post": _post("Token ids to text.", _ids(), errors)},
            "/tokenizer_info": {"get": _get("The tokenizer's special tokens.", errors)},
            **(_batches(provider.batches, errors) if provider.batches is not None else {}),
        },
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def request(fields: Sequence[Field[Any]]) -> Json:
    """The JSON Schema of a body; ``a.b`` becomes the member ``b`` of ``a``. Unknown fields are allowed, as they are by the server."""
    made: Json = {"type": "object", "required": [], "properties": {}}
    for field in sorted(fields, key=lambda field: "." in field.name):
        outer, _, inner = field.name.partition(".")
        owner = made["properties"].setdefault(outer, {"type": ["object", "null"]}) if inner else made
        owner.setdefault("properties", {})[inner or outer] = _property(field)
        if field.shown == REQUIRED:
            owner.setdefault("required", []).append(inner or outer)
    return made


def _property(field: Field[Any]) -> Json:
    words = [field.kind.range, f"Default: {shown(field)}.", field.note, f"Here: {field.status.value}."]
    null = [] if field.shown == REQUIRED else [{"type": "null"}]
    one = schema(field.kind)
    forms = one["anyOf"] if one.keys() == {"anyOf"} else [one]  # each beside the null: who reads the forms need not look inside one
    return {"anyOf": [*forms, *null], "description": " ".join(word for word in words if word)}


def schema(kind: Kind[object]) -> Json:
    """The JSON Schema of a kind: of its type, and its bounds where they are of a common kind."""
    made = _of_type(kind.type)
    match kind:
        case Integer(low, high) | Number(low, high):
            made |= {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
        case Positive(high):
            made |= {"exclusiveMinimum": 0, "maximum": high}
        case String(most) if most is not None:
            made["maxLength"] = most
        case OneOf(words):
            made["enum"] = list(words)
        case LogitBias(most, low, high):
            made |= {"maxProperties": most, "additionalProperties": {"type": "number", "minimum": low, "maximum": high}}
            made["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,9})$"}
        case Prompts(most):
            text, ids = {"type": "string"}, {**_TOKEN_IDS, "minItems": 1}
            bounds = {"minItems": 1} if most is None else {"minItems": 1, "maxItems": most}
            many = [{"type": "array", **bounds, "items": one} for one in (text, ids)]
            made = {"anyOf": [text, ids, *many]}
        case HasForms(forms=forms):
            made = {"anyOf": [*map(schema, forms)]}
        case ListOf(one, most, least):
            made = {"type": "array", "minItems": least, "maxItems": most, "items": schema(one)}
        case MirostatVersion():
            made["enum"] = [0, 2]
        case Stop(most, longest):
            string = {"type": "string", "minLength": 1, "maxLength": longest}
            made = {"anyOf": [string, {"type": "array", "maxItems": most, "items": string}]}
    return made


def _of_type(text: str) -> Json:
    """The words of the providers' pages: ``string | array<integer>``."""
    parts = [part.strip() for part in re.split(r"\|(?![^<]*>)", text)]
    if len(parts) > 1:
        return {"anyOf": [_of_type(part) for part in parts]}
    if found := re.fullmatch(r"array<(.*)>", parts[0]):
        return {"type": "array", "items": _of_type(found[1])}
    return {"type": parts[0]} if parts[0] in ("string", "integer", "number", "boolean", "object", "array", "null") else {}


_PLAIN: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _of_hint(hint: Any, components: dict[str, Json]) -> Json:
    """The JSON Schema of an annotation of the wire structs; these become components. (msgspec's own has no untagged unions of structs.)"""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin in (Union, UnionType):
        return {"anyOf": [_of_hint(part, components) for part in parts if part is not msgspec.UnsetType]}
    if origin in (list, tuple):
        return {"type": "array", "items": _of_hint(parts[0], components)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_hint(parts[1], components)}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint.__name__ not in components:
            components[hint.__name__] = {}  # taken, in case it holds itself
            components[hint.__name__] = _of_struct(hint, components)
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    return {}


def _of_struct(struct: type[msgspec.Struct], components: dict[str, Json]) -> Json:
    hints, fields = get_type_hints(struct), msgspec.structs.fields(struct)
    properties = {field.encode_name: _of_hint(hints[field.name], components) for field in fields}
    return {"type": "object", "required": [field.encode_name for field in fields if field.required], "properties": properties}


def _completions(provider: Provider, body: Json, chunk: Json, errors: Mapping[str, Json]) -> Json:
    made = _post("Complete text.", request(provider.fields), errors)
    broken = {"type": "object", "required": ["error"]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": [chunk, broken]}}
    event = {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}}}
    stream = {"text/event-stream": {"itemSchema": event}}
    made["responses"] = {"200": {"description": "The completion.", "content": {**_json(body), **stream}}, **errors}
    return made


def _batches(batches: Batches, errors: Mapping[str, Json]) -> dict[str, Json]:
    form = {"file": {"contentMediaType": "application/octet-stream"}, "purpose": {"enum": ["batch"]}}
    body = {"type": "object", "required": ["file", "purpose"], "properties": form}
    upload = {**_get("Upload a file.", errors), "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": body}}}}
    named = {"parameters": [_in_path("name")]}
    content = {"200": {"description": "As it was uploaded or made.", "content": {"application/octet-stream": {}}}, **errors}
    return {
        "/files": {"post": upload, "get": _get("The files.", errors)},
        "/files/{name}": {"get": {**_get("One file.", errors), **named}, "delete": {**_get("Delete a file.", errors), **named}},
        "/files/{name}/content": {"get": {"summary": "What is in a file.", "responses": content, **named}},
        "/batches": {"post": _post("Begin a batch.", request(batches.fields), errors), "get": _get("The batches.", errors)},
        "/batches/{name}": {"get": {**_get("One batch.", errors), **named}},
        "/batches/{name}/cancel": {"post": {**_get("Cancel a batch.", errors), **named}},
    }


def _post(summary: str, body: Json, errors: Mapping[str, Json]) -> Json:
    return {**_get(summary, errors), "requestBody": {"required": True, "content": _json(body)}}


def _get(summary: str, errors: Mapping[str, Json]) -> Json:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": _json({})}, **errors}}


def _json(body: Json) -> Json:
    return {"application/json": {"schema": body}}


def _of_project(errors: Json) -> Json:
    path, project = "/v2/projects/{project}/models", _in_path("project")
    return {
        path: {"get": {**_get("The models served, of a project of any name.", errors), "parameters": [project]}},
        f"{path}/{{name}}": {"get": {**_get("One of them.", errors), "parameters": [project, _in_path("name")]}},
    }


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _ids() -> Json:
    return {"type": "object", "required": ["tokens"], "properties": {"tokens": _TOKEN_IDS}}
