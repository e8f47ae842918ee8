"""The documents: complete, for every dialect, from the tables; the page asks nothing of anybody else."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.server.asgi import Answer, call
from tests.server.documents import completions
from tests.server.goldens import CASES, chunks, recorded, sent
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.reference import tried
from quintet.guides.translate import translate, verify


def get(path: str, query: str = "", **config: Any) -> Answer:
    return call(create_app(ScriptedBackend(), ServerConfig(**config)), method="GET", path=path, query=query)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_document_has_every_field_and_path_of_its_dialect(name: str) -> None:
    answer = get("/openapi.json", f"dialect={name}")
    made = answer.json()
    assert (answer.status, made["openapi"]) == (200, "3.2.0")
    properties = made["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for field in PROVIDERS[name].fields:
        outer, _, inner = field.name.partition(".")
        found = properties[outer]["properties"][inner] if inner else properties[outer]
        assert field.note in found["description"]
        assert not any("anyOf" in form for form in found["anyOf"]), "the playground reads the forms that stand here"
    assert made["servers"][0]["url"] == PROVIDERS[name].bases[0]


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_goldens_satisfy_the_document(name: str) -> None:
    """Requests that were answered are valid by the request's schema, JSON answers and errors by theirs."""
    seen = {True: 0, False: 0}
    for case in [case for case in CASES if case.startswith(f"{name}/")]:
        answer, described = recorded(case), completions(name)
        if answer.header("content-type") != "application/json":
            assert all(map(completions(name).chunk.is_valid, chunks(answer.body))), case
            continue
        good = answer.status == 200
        seen[good] += 1
        (described.answer if good else described.errors[answer.status]).validate(answer.json())
        if good:
            described.request.validate(json.loads(sent(case)))
    assert seen[True] >= 20
    assert seen[False] >= 15


WRONG: dict[str, list[dict[str, Any]]] = {
    "openai": [{"n": 0}, {"n": 2**31}, {"temperature": 2.1}, {"prompt": []}, {"prompt": [[-1]]}, {"stop": [""]}, {"stream": 1}],
    "fireworks": [{"prompt": None}, {"logprobs": 6}, {"reasoning_effort": "most"}, {"response_format": {}}, {"thinking": {}}],
    "together": [{"prompt": None}, {"prompt": ["a"]}, {"logit_bias": {"05": 1}}],
    "cerebras": [{"grammar_root": "x"}, {"temperature": 1.6}],
    "novita": [{"prompt": None}, {"top_p": 0}, {"repetition_penalty": 0}, {"top_k": 0}],
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_the_document_forbids_is_refused(name: str) -> None:
    app = create_app(ScriptedBackend(), ServerConfig(dialect=name))
    for fields in WRONG[name]:
        assert not completions(name).request.is_valid({"prompt": "a", **fields}), fields
        answer = call(app, {"prompt": "a", **fields})
        assert answer.status == 400
        completions(name).errors[400].validate(answer.json())
    for missing in ({}, {"model": "scripted"}):
        assert completions(name).request.is_valid(missing) == (call(app, missing).status == 200)


def test_without_a_name_it_is_the_dialect_of_the_setting_and_an_unknown_one_is_refused() -> None:
    assert "OpenAI" in get("/openapi.json").json()["info"]["title"]
    assert "Together" in get("/openapi.json", dialect="together").json()["info"]["title"]
    assert get("/openapi.json", "dialect=nope").status == 400


class Assets(HTMLParser):
    """What a browser would load by itself, what it would run or style, and what is tried: (path, members of the request)."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.links: list[str] = []
        self.tried: dict[str, tuple[str, Any]] = {}
        self._base = self._field = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "link", "img", "iframe", "object", "embed", "video", "audio", "source", "base"):
            self.loaded.append(given.get("src") or given.get("href", ""))
        self.links += [given["href"]] if tag == "a" else []
        self.inline += [tag] if tag == "style" else []
        self.inline += [name for name in given if name in ("srcset", "style", "action") or name.startswith("on")]
        self._base = given.get("data-base", self._base)
        self._field = given["id"] if tag == "article" else self._field
        if "data-members" in given:
            self.tried[self._field] = (f"{self._base}/completions", json.loads(given["data-members"]))


def assets() -> Assets:
    parser = Assets()
    parser.feed(get("/docs").body.decode())
    return parser


@pytest.mark.fault("F13")
def test_the_page_loads_files_of_this_server_alone_and_runs_nothing_inline() -> None:
    answer, found = get("/docs"), assets()
    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    policy = answer.header("content-security-policy") or ""
    assert policy == get("/").header("content-security-policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert found.inline == []
    assert found.loaded
    assert not [link for link in found.links + found.loaded if link.startswith("/")]  # they hold beneath a path of a reverse proxy too
    assert all(get(f"/{path}").status == 200 for path in found.loaded)


def test_the_page_has_every_field_of_every_dialect_with_something_to_try() -> None:
    assert assets().tried.keys() == {f"{name}.{field.name}" for name, provider in PROVIDERS.items() for field in provider.fields}


ELSEWHERE = {"safety_model": 404}
"""What needs another model than the one of this test: one that judges."""


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_is_tried_for_a_field_is_answered(name: str) -> None:
    """It is a request that the server takes, unless the table says that it is refused; or it says what else the field needs.

    Nothing of it is ignored, and no rule of a field is broken: where it is refused, then for what the server or the model lacks.
    """
    app = create_app(ScriptedBackend(), ServerConfig())
    statuses = {field.name: field.status.value for field in PROVIDERS[name].fields}
    for one, (path, members) in assets().tried.items():
        dialect, _, field = one.partition(".")
        if dialect == name:
            named = {"model": "scripted"} if members.get("model") == "" else {}
            answer = call(app, {"prompt": "The sky is", "max_tokens": 2, **members, **named}, path=path)
            expected = ELSEWHERE.get(field, 400 if statuses[field] == "400" else 200)
            assert answer.status == expected, (field, members, answer.body)
            assert answer.header("warning") is None, (field, members)
            lacks = b"is not supported" if name == "cerebras" else b"unsupported_parameter"  # its service has one code for every 400
            assert lacks in answer.body or answer.status != 400, (field, members, answer.body)


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_is_tried_for_a_constraint_can_be_followed(name: str) -> None:
    found = [(field.name, {"model": "m", "prompt": "a", **tried(field)}) for field in PROVIDERS[name].fields if field.status.value != "400"]
    guides = {field: PROVIDERS[name].dialect.parse(json.dumps(body).encode(), 7).request.guide for field, body in found}
    guided = {field: guide for field, guide in guides.items() if guide is not None}
    assert guided.keys() >= {"response_format", "guided_json", "guided_choice", "regex", "ebnf", "grammar"}
    for guide in guided.values():
        verify(guide.kind, translate(guide.kind, guide.text))
