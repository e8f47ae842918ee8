"""Without a key only the probes are open; every other path is closed, whether it exists or not."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.server.asgi import JSON, Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.errors import NotAuthorized, TooManyRequests
from quintet.keys.file import KeyFile
from quintet.keys.key import Key
from quintet.keys.lockout import FAILURE_S, MOST_FAILURES
from quintet.server.app import App
from quintet.server.auth import Auth, Caller

KEYS = ("sk-one", "sk-two")
BODY = {"prompt": "a", "max_tokens": 1}


def ask(*headers: tuple[str, str], path: str = "/v1/completions", method: str = "POST", raw_path: bytes | None = None) -> Answer:
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=KEYS))
    return call(app, BODY, path=path, method=method, headers=[*JSON, *headers], raw_path=raw_path)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(key: str) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert ask(("authorization", f"{scheme} {key}")).status == 200


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens_in_the_header_that_llama_servers_clients_send_too(key: str) -> None:
    assert ask(("x-api-key", key)).status == 200
    assert ask(("x-api-key", "wrong"), ("authorization", f"Bearer {key}")).status == 200, "Continue sends both"


@pytest.mark.fault("F01", "F04")
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
        [("authorization", "bearersk-one")],
        [("authorization", "Basic c2stb25lOg==")],
        [("authorization", "sk-one")],
        [("authorization", "Bearer sk-one"), ("authorization", "Bearer sk-one")],
        [("x-api-key", "sk-on")],
        [("x-api-key", "Bearer sk-one")],
        [("x-api-key", "sk-one"), ("x-api-key", "sk-one")],
        [("authorization", "Bearer wrong"), ("x-api-key", "sk-one")],
        [("api-key", "sk-one")],
        [("host", "evil/?"), ("x-forwarded-for", "127.0.0.1"), ("x-original-url", "/health")],
    ],
)
def test_anything_else_gets_the_same_401(headers: list[tuple[str, str]]) -> None:
    answer = ask(*headers)
    assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
    assert answer.body == ask().body


COMPLETIONS = ["/v1/completions", "/completions", "/openai/v1/completions"]
PATHS = [*COMPLETIONS, "/v1/models", "/models/x", "/playground/", "", "/nope", "/metrics", "/version"]
NEARLY_HEALTH = ["//health", "/health/", "/HEALTH", "/v1/../health", "/health\0", "/health;x", "/v1/v1/health", "/%68ealth"]
PROBES = ["/health", "/livez", "/ping", "/readyz", "/v1/health"]
PUBLIC = [*PROBES, "/docs", "/openapi.json", "/"]


@pytest.mark.fault("A28", "F05")
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("path", [*PATHS, *NEARLY_HEALTH])
def test_every_path_but_the_public_ones_is_closed(path: str, method: str) -> None:
    assert ask(path=path, method=method).status == 401


@pytest.mark.fault("F05")
@pytest.mark.parametrize("path", PROBES)
def test_probes_are_open_and_tell_a_state_only(path: str) -> None:
    answer = ask(path=path, method="GET")
    assert answer.status == 200
    assert list(answer.json()) == ["status"]


@pytest.mark.fault("F05")
def test_nothing_else_is_open_of_all_that_is_routed() -> None:
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=KEYS))
    assert isinstance(app, App)
    routed = {base + path for base, path in app._routers["public"]._table}
    assert {"/openai/v1/completions", "/v1/models/", "/metrics"} < routed
    opened = {path for path in routed if call(app, BODY, method="GET", path=path).status != 401}
    assert opened == set(PUBLIC)


@pytest.mark.fault("F04")
def test_an_encoded_spelling_of_a_public_path_is_not_public() -> None:
    """The server decodes ``/%68ealth`` to ``/health`` before it calls the application."""
    assert ask(path="/health", method="GET", raw_path=b"/%68ealth").status == 401


@pytest.mark.fault("F01")
def test_nothing_is_computed_without_a_key() -> None:
    backend = ScriptedBackend()
    call(create_app(backend, ServerConfig(api_keys=KEYS)), BODY)
    assert (backend.prepared, backend.submitted) == (0, 0)


# Wrong keys


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def auth(*keys: str, admin: str = "", clock: Clock | None = None) -> Auth:
    return Auth(keys, admin, (), clock or Clock(), lambda: 0.0)


def headers(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


def fail(keys: Auth, address: str, times: int) -> list[type]:
    kinds: list[type] = []
    for number in range(times):
        with pytest.raises((NotAuthorized, TooManyRequests)) as caught:
            keys.require(headers(f"guess-{number}"), address)
        kinds.append(caught.type)
    return kinds


@pytest.mark.fault("F07")
def test_after_too_many_wrong_keys_an_address_waits_even_with_a_right_guess_and_others_do_not() -> None:
    clock = Clock()
    keys = auth(*KEYS, clock=clock)
    assert fail(keys, "a", MOST_FAILURES + 2) == [NotAuthorized] * MOST_FAILURES + [TooManyRequests] * 2
    with pytest.raises(TooManyRequests):
        keys.require(headers(KEYS[0]), "a")
    assert keys.require(headers(KEYS[0]), "b").id
    clock.now += FAILURE_S
    assert keys.require(headers(KEYS[0]), "a").id


@pytest.mark.fault("F07")
def test_a_key_in_use_is_not_locked_out_by_a_neighbour_behind_the_same_address() -> None:
    keys = auth(*KEYS)
    keys.require(headers(KEYS[1]), "proxy")
    assert fail(keys, "proxy", 100)[-1] is TooManyRequests
    assert keys.require(headers(KEYS[1]), "proxy").id


def test_a_request_without_a_key_is_no_guess() -> None:
    keys = auth(*KEYS)
    for _ in range(1000):
        with pytest.raises(NotAuthorized):
            keys.require([], "a")
    assert keys.require(headers(KEYS[0]), "a").id


def test_a_locked_out_client_is_told_when_to_come_back() -> None:
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=KEYS))
    answers = [call(app, BODY, headers=[*JSON, ("authorization", "Bearer x")]) for _ in range(MOST_FAILURES + 1)]
    assert [answer.status for answer in answers] == [401] * MOST_FAILURES + [429]
    assert answers[-1].header("retry-after") == "3"


# Who is who


@pytest.mark.fault("G02")
def test_each_key_has_its_own_salt_and_an_id_that_does_not_give_it_away() -> None:
    keys = auth(*KEYS)
    one, two = (keys.require(headers(key), "") for key in KEYS)
    assert one.id == hashlib.sha256(KEYS[0].encode()).hexdigest()[:8]
    assert len({one.salt, two.salt, one.id, two.id}) == 4
    assert auth(*KEYS).require(headers(KEYS[0]), "").salt != one.salt  # another process
    assert auth().require([], "") == Caller()


def test_a_servers_keys_are_read_once_counted_and_put_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, reads, read = tmp_path / "keys", Counter[str](), KeyFile.read
    file.write_text("one\ntwo\n")
    file.chmod(0o600)

    def counted(self: KeyFile) -> list[Key]:
        reads["read"] += 1
        return read(self)

    monkeypatch.setattr(KeyFile, "read", counted)
    config = ServerConfig(api_keys=("three",), api_key_file=file, admin_key="admin")
    auth = Auth.of(config, time.monotonic, time.time)
    app = create_app(ScriptedBackend(), config, auth=auth)
    assert (auth.keys, reads.total()) == (3, 1), "the admin's is none to ask for completions with"
    for key, status in (("two", 200), ("three", 200), ("admin", 200), ("four", 401)):
        assert call(app, {"prompt": "a"}, headers=[*JSON, ("authorization", f"Bearer {key}")]).status == status
    assert Auth.of(ServerConfig(), time.monotonic, time.time).keys is None
    assert Auth.of(ServerConfig(api_keys=("a",), admin_key="a"), time.monotonic, time.time).keys == 1
