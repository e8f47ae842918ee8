"""The dialect: by header, then by prefix, then by setting; told in every answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.asgi import JSON, Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.server.asgi import ASGIApp
from quintet.server.routing import AUTO, BARE, HEADER

BODY = {"model": "scripted", "prompt": "a", "max_tokens": 1}
BASES = [(base, name) for name, provider in PROVIDERS.items() for base in provider.bases]


def app(**config: Any) -> ASGIApp:
    return create_app(ScriptedBackend(), ServerConfig(**config))


def used(answer: Answer) -> str | None:
    return answer.header(HEADER)


@pytest.mark.parametrize(("base", "name"), BASES)
def test_a_prefix_chooses_for_completions_and_models(base: str, name: str) -> None:
    served = create_app(ScriptedBackend(), ServerConfig(), ("org/scripted", "scripted"))
    answer = call(served, BODY, path=f"{base}/completions")
    assert (answer.status, used(answer)) == (200, name)
    dialect = PROVIDERS[name].dialect
    listed = call(served, method="GET", path=f"{base}/models")
    shown = call(served, method="GET", path=f"{base}/models/org/scripted")
    assert (used(listed), used(shown)) == (name, name)
    assert b"org/scripted" in shown.body
    assert (listed.body[:1] == b"[") == (dialect.models([])[:1] == b"[")


@pytest.mark.parametrize("base", BARE)
@pytest.mark.parametrize("name", PROVIDERS)
def test_the_bare_paths_speak_the_dialect_of_the_setting(base: str, name: str) -> None:
    assert used(call(app(dialect=name), BODY, path=f"{base}/completions")) == name


def test_bases_are_unambiguous_and_every_provider_has_its_own_name_as_prefix() -> None:
    bases = [base for base, _ in BASES]
    assert len(set(bases)) == len(bases)
    assert not set(bases) & set(BARE)
    assert all(any(base.startswith(f"/{name}") for base in provider.bases) for name, provider in PROVIDERS.items())


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("path", ["/v1/completions", "/openai/v1/completions"])
def test_the_header_wins_over_everything_else(name: str, path: str) -> None:
    answer = call(app(), BODY, path=path, headers=[*JSON, (HEADER, name)])
    assert (answer.status, used(answer)) == (200, name)
    assert used(call(app(), BODY, path=path, headers=[*JSON, (HEADER, f" {name.upper()}")])) == name


@pytest.mark.parametrize("values", [["nobody"], [""], ["openai", "openai"], ["open\r\nai"], ["\u00e9" * 500]])
def test_a_header_that_names_no_dialect_is_a_400_in_the_words_of_the_path(values: list[str]) -> None:
    answer = call(app(), BODY, headers=[*JSON, *((HEADER, value) for value in values)])
    error = answer.json()["error"]
    assert (answer.status, error["param"], used(answer)) == (400, "X-Completions-Dialect", "openai")
    assert "openai" in error["message"]
    assert len(error["message"]) < 300


AGENTS = [(agent, name) for name, provider in PROVIDERS.items() for agent in provider.agents]


@pytest.mark.parametrize(("agent", "name"), AGENTS)
def test_the_user_agent_decides_only_with_auto_and_only_on_bare_paths(agent: str, name: str) -> None:
    headers = [*JSON, ("user-agent", f"{agent}Python 3.1.1")]
    assert used(call(app(dialect=AUTO), BODY, headers=headers)) == name
    assert used(call(app(), BODY, headers=headers)) == "openai"
    assert used(call(app(dialect=AUTO), BODY, path="/openai/v1/completions", headers=headers)) == "openai"


@pytest.mark.parametrize(("agent", "name"), AGENTS)
def test_a_key_of_novitas_form_says_more_than_openais_sdk_and_less_than_those_that_read_no_other_answers(agent: str, name: str) -> None:
    headers = [*JSON, ("user-agent", f"{agent}Python 3.1.1"), ("authorization", "Bearer sk_0123456789")]
    for path in ("/v1/completions", "/completions"):
        assert used(call(app(dialect=AUTO), BODY, path=path, headers=headers)) == ("novita" if name == "openai" else name)
    assert used(call(app(dialect=AUTO), BODY, path="/openai/v1/completions", headers=headers)) == "novita"
    assert used(call(app(), BODY, headers=headers)) == "openai"


@pytest.mark.parametrize("base", ["/openai/v1", "/openai", "/openai/v1/v1"])
def test_novitas_own_path_is_novitas_where_the_server_speaks_it_or_its_key_or_the_header_says_so(base: str) -> None:
    path, key = f"{base}/completions", ("authorization", "Bearer sk_0123456789")
    assert used(call(app(), BODY, path=path, headers=[*JSON, key])) == "openai"
    assert used(call(app(dialect="novita"), BODY, path=path)) == "novita"
    assert used(call(app(dialect="novita"), BODY, path=path, headers=[*JSON, (HEADER, "openai")])) == "openai"
    assert used(call(app(dialect=AUTO), BODY, path=path)) == "openai"
    assert used(call(app(dialect=AUTO), BODY, path=path, headers=[*JSON, key])) == "novita"
    assert used(call(app(dialect=AUTO), BODY, path=path, headers=[*JSON, ("authorization", "bearer sk-0123456789")])) == "openai"
    assert used(call(app(dialect=AUTO), BODY, headers=[*JSON, key, ("user-agent", "OpenAI/Python 3.52.0")])) == "novita"
    assert used(call(app(dialect=AUTO), BODY, headers=[*JSON, ("x-api-key", "sk_0123456789")])) == "novita"
    assert used(call(app(dialect=AUTO), BODY, path="/together/v1/completions", headers=[*JSON, key])) == "together"


@pytest.mark.parametrize("base", ["/fireworks", "/fireworks/v1", "/inference", "/inference/v1", "/fireworks/inference"])
def test_an_sdk_that_adds_the_version_again_finds_what_is_there(base: str) -> None:
    """docs/http.md: these, "and with a second `/v1`"."""
    assert used(call(app(), BODY, path=f"{base}/completions")) == "fireworks"
    assert used(call(app(), BODY, path=f"{base.removesuffix('/v1')}/v1/v1/completions")) == "fireworks"


@pytest.mark.parametrize("headers", [[], [("content-type", "application/x-www-form-urlencoded")], [("content-type", "text/plain")]])
def test_novitas_bodies_say_that_they_are_json(headers: list[tuple[str, str]]) -> None:
    """Its page: "Content-Type, string, required. Enum: `application/json`". Other pages have no such rule."""
    answer = call(app(), BODY, path="/novita/openai/v1/completions", headers=headers)
    assert (answer.status, answer.json()["reason"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    typed = [("content-type", "application/json; charset=utf-8")]
    assert call(app(), BODY, path="/novita/openai/v1/completions", headers=typed).status == 200
    other = call(app(), BODY, path="/openai/v1/completions", headers=headers).status
    assert other == (415 if ("content-type", "text/plain") in headers else 200)


@pytest.mark.parametrize("agent", ["curl/8", "python-requests/2", "", "NotOpenAI/1"])
def test_an_unknown_user_agent_gets_the_default(agent: str) -> None:
    assert used(call(app(dialect=AUTO), BODY, headers=[*JSON, ("user-agent", agent)])) == "openai"


@pytest.mark.parametrize("path", ["/openai", "/openai/", "/openaix/v1/completions", "/openai/v1/completions/", "/openai//v1/completions"])
def test_what_only_looks_like_a_prefix_is_not_found(path: str) -> None:
    answer = call(app(), BODY, path=path)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.fault("A28")
@pytest.mark.parametrize("base", [*BARE, *(base for base, _ in BASES)])
@pytest.mark.parametrize("path", ["/models/", "/files/", "/batches/", "/v2/"])
def test_nothing_is_beneath_a_slash_that_ends_a_path(base: str, path: str) -> None:
    """The model without a name was the first one."""
    answer, unknown = (call(app(), method="GET", path=f"{base}{one}") for one in (path, "/nothing"))
    assert (answer.status, answer.body) == (404, unknown.body)


@pytest.mark.parametrize("name", PROVIDERS)
def test_errors_are_in_the_words_of_the_dialect_chosen(name: str) -> None:
    answer = call(app(api_keys=("sk",)), BODY, path=f"{PROVIDERS[name].bases[0]}/completions")
    assert (answer.status, used(answer)) == (401, name)


@pytest.mark.parametrize(("name", "provider"), PROVIDERS.items())
def test_tcp_warming_is_there_for_the_sdk_that_asks_for_it(name: str, provider: Any) -> None:
    backend = ScriptedBackend()
    answer = call(create_app(backend, ServerConfig()), method="GET", path=f"{provider.bases[0]}/tcp_warming")
    assert answer.status == (200 if provider.warming else 404)
    assert backend.prepared == 0
