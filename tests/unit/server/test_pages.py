"""The documents: complete, for every dialect, from the tables; the page asks nothing of anybody else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.unit.server.asgi import Answer, call
from tests.unit.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.server.app import create_app

GOLDEN = Path(__file__).parents[2] / "golden"


def get(path: str, query: str = "", **config: Any) -> Answer:
    return call(create_app(ScriptedBackend(), ServerConfig(**config)), method="GET", path=path, query=query)


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The part of JSON Schema that the documents use."""
    if "$ref" in schema:
        return valid(value, root["components"]["schemas"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema and not any(valid(value, one, root) for one in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = schema.get("type", [])
    if kinds and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    return _within(value, schema) and _parts_valid(value, schema, root)


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        return whole and (kind == "number" or float(value).is_integer())
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}[kind])


def _within(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    return True


def _parts_valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if isinstance(value, list):
        return all(valid(one, schema.get("items", {}), root) for one in value)
    if isinstance(value, dict):
        if not set(schema.get("required", [])) <= set(value):
            return False
        names = schema.get("propertyNames", {}).get("pattern", "")
        if not all(re.search(names, name) for name in value):
            return False
        more = schema.get("additionalProperties", {})
        known = schema.get("properties", {})
        return all(valid(one, known.get(name, more if isinstance(more, dict) else {}), root) for name, one in value.items())
    return True


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_document_has_every_field_and_path_of_its_dialect(name: str) -> None:
    answer = get("/openapi.json", f"dialect={name}")
    made = answer.json()
    assert (answer.status, made["openapi"]) == (200, "3.1.0")
    properties = made["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for field in PROVIDERS[name].fields:
        outer, _, inner = field.name.partition(".")
        found = properties[outer]["properties"][inner] if inner else properties[outer]
        assert field.note in found["description"]
    assert made["servers"][0]["url"] == PROVIDERS[name].bases[0]


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_goldens_satisfy_the_document(name: str) -> None:
    """Requests that were answered are valid by the request's schema, their JSON answers by the answer's."""
    root = get("/openapi.json", f"dialect={name}").json()
    operation = root["paths"]["/completions"]["post"]
    sent = operation["requestBody"]["content"]["application/json"]["schema"]
    answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
    seen = 0
    for case in (GOLDEN / name).iterdir():
        head, _, body = (case / "response.http").read_bytes().partition(b"\n\n")
        if not head.startswith(b"200\ncontent-type: application/json"):
            continue
        seen += 1
        assert valid(json.loads((case / "request.json").read_text()), sent, root), case.name
        assert valid(json.loads(body), answered, root), case.name
    assert seen >= 20


def test_what_the_document_forbids_is_refused() -> None:
    root = get("/openapi.json").json()
    schema = root["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    app = create_app(ScriptedBackend(), ServerConfig())
    wrong = [{"n": 0}, {"n": 129}, {"temperature": 2.1}, {"prompt": []}, {"prompt": [[]]}, {"stop": [""]}, {"stream": 1}]
    for fields in wrong:
        assert not valid({"prompt": "a", **fields}, schema, root), fields
        assert call(app, {"prompt": "a", **fields}).status == 400


def test_without_a_name_it_is_the_dialect_of_the_setting_and_an_unknown_one_is_refused() -> None:
    assert "OpenAI" in get("/openapi.json").json()["info"]["title"]
    assert "Together" in get("/openapi.json", dialect="together").json()["info"]["title"]
    assert get("/openapi.json", "dialect=nope").status == 400


class Assets(HTMLParser):
    """Everything that a browser would load by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object", "embed", "video", "audio", "source", "form", "base"):
            self.found.append(tag)
        self.found += [name for name in given if name in ("src", "srcset", "style", "onload", "onclick")]
        self.ids |= {given["id"] or ""} if "id" in given else set()


def test_the_page_has_every_field_of_every_dialect_and_loads_nothing() -> None:
    answer = get("/docs")
    text = answer.body.decode()
    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in (answer.header("content-security-policy") or "")
    parser = Assets()
    parser.feed(text)
    assert parser.found == []
    assert not re.search(r"url\(|@import", text)
    assert parser.ids == set(PROVIDERS)
    for provider in PROVIDERS.values():
        assert all(f"<code>{field.name}</code>" in text for field in provider.fields)
