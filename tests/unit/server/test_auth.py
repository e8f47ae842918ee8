"""Without a key only ``/health`` is open; every other path is closed, whether it exists or not."""

from __future__ import annotations

import pytest
from tests.unit.server.asgi import JSON, Answer, call
from tests.unit.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.server.app import PUBLIC, create_app
from quintet.server.auth import Keys

KEYS = ("sk-one", "sk-two")
BODY = {"prompt": "a", "max_tokens": 1}


def ask(*headers: tuple[str, str], path: str = "/v1/completions", method: str = "POST") -> Answer:
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=KEYS))
    return call(app, BODY, path=path, method=method, headers=[*JSON, *headers])


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(key: str) -> None:
    assert ask(("authorization", f"Bearer {key}")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer sk-on")],
        [("authorization", "Bearer sk-one ")],
        [("authorization", "Bearer  sk-one")],
        [("authorization", "Bearer sk-one\x00")],
        [("authorization", "Bearer SK-ONE")],
        [("authorization", "Bearer sk-\u00e9")],
        [("authorization", "Bearer " + "x" * 1_000_000)],
        [("authorization", "Bearer sk-one,sk-two")],
        [("authorization", "bearer sk-one")],
        [("authorization", "Basic c2stb25lOg==")],
        [("authorization", "sk-one")],
        [("authorization", "Bearer sk-one"), ("authorization", "Bearer sk-one")],
        [("x-api-key", "sk-one")],
        [("host", "evil/?"), ("x-forwarded-for", "127.0.0.1"), ("x-original-url", "/health")],
    ],
)
def test_anything_else_gets_the_same_401(headers: list[tuple[str, str]]) -> None:
    answer = ask(*headers)
    assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
    assert answer.body == ask().body


PATHS = ["/v1/completions", "/completions", "/v1/models", "/models/x", "/", "", "/docs", "/nope"]
NEARLY_HEALTH = ["//health", "/health/", "/HEALTH", "/v1/../health", "/health\0", "/health;x"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("path", [*PATHS, *NEARLY_HEALTH])
def test_every_path_but_health_is_closed(path: str, method: str) -> None:
    assert ask(path=path, method=method).status == 401


def test_health_is_open_and_nothing_else_is_meant_to_be() -> None:
    assert ask(path="/health", method="GET").status == 200
    assert frozenset({"/health"}) == PUBLIC


def test_nothing_is_computed_without_a_key() -> None:
    backend = ScriptedBackend()
    call(create_app(backend, ServerConfig(api_keys=KEYS)), BODY)
    assert (backend.prepared, backend.submitted) == (0, 0)


def test_memory_holds_no_key() -> None:
    assert not any(key in repr(vars(Keys(KEYS))) for key in KEYS)
