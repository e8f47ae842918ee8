"""With a listener of their own, metrics and administration are there, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.asgi import Answer, acall
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.server.asgi import Receive, Scope, Send

pytestmark = pytest.mark.fault("F05")

INSIDE = [("GET", "/metrics"), ("GET", "/health/models"), ("POST", "/models/load"), ("POST", "/v1/models/unload")]
OUTSIDE = [("POST", "/v1/completions"), ("POST", "/tokenize"), ("POST", "/infill"), ("GET", "/tokenizer_info"), ("GET", "/")]
SPLIT = [("public", INSIDE), ("admin", OUTSIDE)]
BOTH = [("GET", "/livez"), ("GET", "/health"), ("GET", "/v1/models"), ("GET", "/version")]


def ask(method: str, path: str, listener: str, apart: bool = True, **facts: Any) -> Answer:
    import asyncio

    async def go() -> Answer:
        app = create_app(ScriptedBackend(), ServerConfig(admin_listener=apart, admin_key="admin"))

        async def over(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": {"listener": listener, **facts}}, receive, send)

        headers = [("content-type", "application/json"), ("authorization", "Bearer admin")]
        return await acall(over, {"model": "scripted", "prompt": "a"}, method=method, path=path, headers=headers)

    return asyncio.run(go())


def is_there(answer: Answer) -> bool:
    return answer.status not in (404, 405)


@pytest.mark.parametrize(("method", "path"), INSIDE)
def test_what_is_for_the_operator_is_on_that_listener_alone(method: str, path: str) -> None:
    assert is_there(ask(method, path, "admin"))
    assert ask(method, path, "public").status == 404
    assert is_there(ask(method, path, "public", apart=False))


@pytest.mark.parametrize(("method", "path"), OUTSIDE)
def test_what_is_for_clients_is_on_the_public_one_alone(method: str, path: str) -> None:
    assert is_there(ask(method, path, "public"))
    assert not is_there(ask(method, path, "admin"))


@pytest.mark.parametrize(
    ("listener", "path", "said"),
    [
        *((listener, path, " here: it is at the server's other address") for listener, there in SPLIT for _, path in there),
        ("public", "/nothing", "; completions are at POST /v1/completions"),
        ("admin", "/nothing", "; completions are at the server's other address"),
    ],
)
def test_a_path_of_the_other_address_is_told_as_that(listener: str, path: str, said: str) -> None:
    assert ask("POST", path, listener).json()["error"]["message"] == f"There is nothing at this path{said}."


def test_on_one_address_nothing_is_said_of_another() -> None:
    told = "There is nothing at this path; completions are at POST /v1/completions."
    assert ask("GET", "/nothing", "public", apart=False).json()["error"]["message"] == told


@pytest.mark.parametrize(("method", "path"), BOTH)
def test_probes_and_what_there_is_are_on_both(method: str, path: str) -> None:
    assert ask(method, path, "public").status == ask(method, path, "admin").status == 200


@pytest.mark.fault("B22")
def test_over_a_connection_too_many_only_probes_are_answered() -> None:
    assert ask("GET", "/health", "public", crowded=True).status == 200
    answer = ask("POST", "/v1/completions", "public", crowded=True)
    assert (answer.status, answer.header("retry-after"), answer.json()["error"]["code"]) == (503, "1", "overloaded")
