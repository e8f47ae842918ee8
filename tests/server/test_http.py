"""Routes, media types, limits, ids and errors, in process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.asgi import JSON, SOURCE, acall, call, converse
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.dialects.openai.dialect import OpenAI
from quintet.errors import Overloaded
from quintet.inputs.sequence import SequenceSpec
from quintet.server.asgi import ASGIApp
from quintet.server.completions import INLINE_BYTES

OK = {"prompt": "a", "max_tokens": 2}


def app(backend: ScriptedBackend | None = None, **config: Any) -> ASGIApp:
    return create_app(backend or ScriptedBackend(), ServerConfig(**config), source=SOURCE)


@pytest.mark.parametrize("path", ["/v1/completions", "/completions"])
def test_completions_are_served_with_and_without_v1(path: str) -> None:
    assert call(app(), OK, path=path).json()["choices"][0]["text"] == " the cat"


NEARLY = ["//v1/completions", "/v1/completions/", "/V1/completions", "/v1/./completions", "/v1/completions\0"]


@pytest.mark.fault("A28")
@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/v1/docs", "/redoc", *NEARLY])
def test_an_unknown_path_is_a_404_in_the_dialects_words(path: str) -> None:
    answer = call(app(), OK, path=path)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.fault("A28")
@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("OPTIONS", "/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/scripted", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405_with_allow(method: str, path: str, allow: str) -> None:
    answer = call(app(), OK, method=method, path=path)
    assert (answer.status, answer.header("allow"), answer.json()["error"]["code"]) == (405, allow, "method_not_allowed")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("content-type", "application/json")],
        [("content-type", "application/json; charset=UTF-8")],
        [("content-type", "Application/JSON;charset=\"utf-8\"")],
        [("content-type", "application/x-www-form-urlencoded")],
        [("content-type", "application/json"), ("content-encoding", "identity")],
        [("content-type", "application/json"), ("origin", "https://example.org")],
        [("content-type", "application/json"), ("accept", "text/event-stream")],
    ],
)  # fmt: skip
def test_json_is_read_with_these_headers(headers: list[tuple[str, str]]) -> None:
    assert call(app(), OK, headers=headers).status == 200


@pytest.mark.fault("A27", "F11")
@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", "text/plain")],
        [("content-type", "multipart/form-data; boundary=x")],
        [("content-type", "application/json; charset=latin-1")],
        [("content-type", "application/vnd.msgpack")],
        [("content-type", "application/json"), ("content-encoding", "gzip")],
        [("content-type", "application/x-www-form-urlencoded"), ("origin", "https://example.org")],
        [("sec-fetch-site", "cross-site")],
    ],
)
def test_other_media_and_browsers_that_did_not_ask_get_a_415(headers: list[tuple[str, str]]) -> None:
    answer = call(app(), OK, headers=headers)
    assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.fault("B13")
def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    answer = call(app(max_body_bytes=2 << 20), [], headers=[*JSON, ("content-length", "3000000")])  # a receive() would wait for ever
    assert (answer.status, answer.json()["error"]["code"], answer.header("connection")) == (413, "body_too_large", None)


@pytest.mark.fault("E02")
@pytest.mark.parametrize("length", [str(10**9), "9" * 30, "-1", "\u00b2"])
def test_after_an_absurd_length_the_connection_is_closed(length: str) -> None:
    for path in ("/v1/completions", "/infill"):
        answer = call(app(), [], path=path, headers=[*JSON, ("content-length", length)])
        assert (answer.status, answer.header("connection")) == (413, "close")


@pytest.mark.fault("B13")
def test_a_body_of_unknown_length_is_refused_once_it_passes_the_limit() -> None:
    pieces = [b"x" * 60] * 1000
    answer = call(app(max_body_bytes=100), pieces, headers=[*JSON, ("transfer-encoding", "chunked")])
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert len(pieces) == 1000


def test_a_body_of_exactly_the_limit_is_read_whole_in_pieces() -> None:
    body = b'{"prompt":"a","max_tokens":2}'
    assert call(app(max_body_bytes=len(body)), [body[:3], b"", body[3:]]).status == 200
    assert call(app(max_body_bytes=len(body) - 1), [body[:3], body[3:]]).status == 413


def test_a_large_body_is_parsed_in_a_thread_with_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {**OK, "padding": "x" * INLINE_BYTES}
    threads: list[str] = []
    parse = OpenAI.parse

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*given)

    monkeypatch.setattr(OpenAI, "parse", watched)
    assert call(app(), large).json() == call(app(), OK).json()
    assert call(app(), {**large, "n": 0}).json()["error"]["param"] == "n"
    assert call(app(), {**OK, "padding": [{}] * 7000}).status == 200  # dear to read, though it has no 64 KiB
    assert [name == "MainThread" for name in threads] == [False, True, False, False]


@pytest.mark.fault("A26")
@pytest.mark.parametrize("sent", ["a", "A-z.0_9", "x" * 128])
def test_a_safe_request_id_is_repeated(sent: str) -> None:
    assert call(app(), OK, headers=[*JSON, ("x-request-id", sent)]).header("x-request-id") == sent


@pytest.mark.fault("A26")
@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "a\r\nx: y", "\u00e9", "a/b", "a\n"])
def test_any_other_request_id_is_replaced(sent: str) -> None:
    assert call(app(), OK, headers=[*JSON, ("x-request-id", sent)]).header("x-request-id") == "req-0123456789abcdef"


def test_models_lists_the_names_and_each_can_be_had_alone() -> None:
    served = create_app(ScriptedBackend(), ServerConfig(), ("org/name", "short"), source=SOURCE)
    entry = {"id": "org/name", "object": "model", "created": 1_700_000_000, "owned_by": "quintet", "root": "org/name", "max_model_len": 64}
    short = {**entry, "id": "short", "root": "short"}
    assert call(served, method="GET", path="/v1/models").json() == {"object": "list", "data": [entry, short]}
    assert call(served, method="GET", path="/v1/models/org/name").json() == entry
    missing = call(served, method="GET", path="/models/nope")
    assert (missing.status, missing.json()["error"]["param"]) == (404, "model")


def test_the_names_are_known_before_the_model_is_loaded() -> None:
    loading = app(ScriptedBackend(state=State.LOADING))
    assert [one["id"] for one in call(loading, method="GET", path="/models").json()["data"]] == ["scripted"]
    assert call(loading, {"model": "anything", **OK}).json()["error"]["code"] == "model_not_found"
    assert call(loading, {"model": "scripted", **OK}).json()["error"]["code"] == "model_loading"


@pytest.mark.fault("A19")
def test_a_request_may_use_any_of_the_names_and_is_answered_with_it() -> None:
    served = create_app(ScriptedBackend(), ServerConfig(), ("org/name", "short"), source=SOURCE)
    assert [call(served, {**OK, **one}).json()["model"] for one in ({}, {"model": "short"})] == ["org/name", "short"]
    error = call(served, {**OK, "model": "sh\u043ert\r\n"}).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "org/name, short" in error["message"]
    assert "\u043e" not in error["message"]


@pytest.mark.parametrize(("state", "status"), [(state, 200 if state is State.READY else 503) for state in State])
def test_health_tells_the_engines_state(state: State, status: int) -> None:
    answer = call(app(ScriptedBackend(state=state)), method="GET", path="/health")
    assert (answer.status, answer.json()["status"]) == (status, "ok" if state is State.READY else state.value)
    assert answer.json().get("progress") == (0.42 if state is State.LOADING else None)


def test_what_the_backend_refuses_keeps_its_status_and_retry_headers() -> None:
    class Full(ScriptedBackend):
        async def prepare(self, specs: Any, tenant: str = "", watch: object = None) -> Any:
            raise Overloaded("The queue is full.", retry_after=1.5)

    answer = call(app(Full()), OK)
    assert (answer.status, answer.header("retry-after"), answer.header("retry-after-ms")) == (503, "2", "1500")
    assert answer.json()["error"]["code"] == "overloaded"


class Faulty(ScriptedBackend):
    """A fault of ours, with a secret in its text."""

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "", watch: object = None) -> Any:
        raise RuntimeError(f"secret {specs[0].prompt} 0x7f00")


@pytest.mark.fault("G04")
def test_an_unexpected_error_is_a_500_that_tells_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "quintet"):
        answer = call(app(Faulty()), OK)
    assert answer.status == 500
    assert answer.json()["error"]["message"] == "The server had an internal error."
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_shutting_down_in_the_middle_is_an_error_never_a_finished_answer(stream: bool) -> None:
    backend = ScriptedBackend(length=None, pause=0.01)

    async def close_soon() -> None:
        while backend.steps < 2:
            await asyncio.sleep(0.001)
        await backend.close()

    async def both() -> Any:
        answer, _ = await asyncio.gather(acall(app(backend), {"max_tokens": 50, "stream": stream}), close_soon())
        return answer

    answer = asyncio.run(both())
    assert answer.status == (200 if stream else 503)
    assert b'"finish_reason":"' not in answer.body
    assert b"[DONE]" not in answer.body
    assert b'"error":{"message":"The server stopped' in answer.body or b'{"error":{"message":"The engine stopped' in answer.body


def test_the_lifespan_closes_the_backend() -> None:
    backend = ScriptedBackend()
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])
        assert backend.closed == (len(sent) == 2)

    converse(app(backend), {"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_websocket_is_refused() -> None:
    sent: list[str] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    converse(app(), {"type": "websocket", "path": "/v1/completions", "headers": []}, receive, send)
    assert sent == ["websocket.close"]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_body_gets_an_answer_and_the_server_goes_on(body: bytes) -> None:
    served = app()
    answer = call(served, body)
    assert answer.status in (200, 400, 404)
    assert call(served, OK).status == 200
