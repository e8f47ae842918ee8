"""The OpenAPI documents as validators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema_rs

from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.openapi import document


@dataclass(frozen=True)
class Completions:
    """What a dialect's document says of ``POST /completions``.

    Args:
        chunk: of a stream.
        errors: of each status; nothing but what is described may be in their bodies.
    """

    request: jsonschema_rs.Draft202012Validator
    answer: jsonschema_rs.Draft202012Validator
    chunk: jsonschema_rs.Draft202012Validator
    errors: dict[int, jsonschema_rs.Draft202012Validator]


@cache
def completions(dialect: str) -> Completions:
    root = document(PROVIDERS[dialect])
    operation = root["paths"]["/completions"]["post"]
    event = operation["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    errors = {status: _json(made) for status, made in operation["responses"].items() if status != "200"}
    return Completions(
        _validator(root, _json(operation["requestBody"])),
        _validator(root, _json(operation["responses"]["200"])),
        _validator(root, event["properties"]["data"]["anyOf"][1]["contentSchema"]),
        {int(status): _validator(_closed(root), schema) for status, schema in errors.items()},
    )


def _json(part: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = part["content"]["application/json"]["schema"]
    return schema


def _validator(root: dict[str, Any], schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": root["components"]})


def _closed(root: dict[str, Any]) -> dict[str, Any]:
    """The document without room for members that it does not name."""
    schemas = {name: {"additionalProperties": False, **one} for name, one in root["components"]["schemas"].items()}
    return {"components": {"schemas": schemas}}
