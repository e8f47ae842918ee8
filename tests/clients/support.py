"""Shared by the checks; needs nothing but the standard library."""

from __future__ import annotations

import inspect
import json
import os
import re
import urllib.request
from collections.abc import Callable
from typing import Any

TOY = os.environ.get("QUINTET_TOY_URL", "")
"""``http://host:port`` of the toy model's server. Its tokens are bytes, so what a prompt's ids are is plain to see."""

GUARDED = os.environ.get("QUINTET_GUARDED_URL", "")
"""The same of one with a moderation model, which finds a ``k`` unsafe."""

SEEING = os.environ.get("QUINTET_SEEING_URL", "")
"""The same of a model that sees images."""

SCENARIOS = os.environ.get("QUINTET_SCENARIOS", "")
"""The same of ``scenarios.py``."""

REFUSED: dict[str, list[str]] = json.loads(os.environ.get("QUINTET_REFUSED", "{}"))
"""Per dialect the fields that the server does not serve yet."""

PATHS = {
    "openai": "/openai/v1",
    "fireworks": "/fireworks/inference",
    "together": "/together",
    "cerebras": "/cerebras",
    "novita": "/novita/openai/v1",
}
"""Base URL of each provider's current SDK, after the host."""


def served(dialect: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that the server still refuses; null is taken for all."""
    return {name: value for name, value in fields.items() if value is None or name not in REFUSED[dialect]}


def split_extra(create: Callable[..., Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Arguments for an SDK's method; fields that it has no argument for go through ``extra_body``."""
    known = inspect.signature(create).parameters
    extra = {name: value for name, value in fields.items() if name not in known}
    return {**{name: value for name, value in fields.items() if name in known}, **({"extra_body": extra} if extra else {})}


def read(url: str) -> Any:
    """The JSON at a URL."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def attempts(scenario: str) -> int:
    """Completions asked for since the last call."""
    count = read(f"{SCENARIOS}/{scenario}/attempts")
    assert isinstance(count, int)
    return count


def places(errors: list[Any]) -> set[str]:
    """Where pydantic's errors are: ``choices.finish_reason``, without indexes and the names of types."""
    return {".".join(str(part) for part in error["loc"] if re.fullmatch(r"[a-z_]+", str(part))) for error in errors}
