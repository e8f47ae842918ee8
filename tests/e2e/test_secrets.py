"""What clients send is in their own answers and nowhere else: each secret below is looked for wherever a server leaves anything."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import Served, served
from tests.e2e.test_serve_process import gone, until_ready
from tests.support.processes import command, engines, family

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PLACES = "prompt stop schema grammar suffix user model field cache query path request key wrong other".split()  # noqa: SIM905  # readable
CANARY = {place: f"canary-{place}-{secrets.token_hex(8)}" for place in PLACES}
KEY, OTHER = CANARY["key"], CANARY["other"]


def get(one: Served, path: str, key: str = KEY) -> tuple[int, bytes]:
    return one.send(path, None, {"Authorization": f"Bearer {key}"})


def requests(one: Served) -> list[tuple[int, bytes]]:
    """Answered, refused and broken ones, in several dialects."""
    good = {"prompt": CANARY["prompt"], "stop": [CANARY["stop"]], "user": CANARY["user"], "max_tokens": 3, CANARY["field"]: 1}
    schema = {"type": "object", "properties": {CANARY["schema"]: {"type": "string", "maxLength": 3}}}
    bodies: list[tuple[str, dict[str, object]]] = [
        ("openai", good),
        ("openai", {**good, "stream": True, "n": 3}),
        ("openai", {**good, "echo": True, "logprobs": 5}),
        ("openai", {**good, "suffix": CANARY["suffix"]}),
        ("openai", {**good, "model": CANARY["model"]}),
        ("openai", {**good, "n": CANARY["prompt"]}),
        ("openai", {**good, "max_tokens": 10**6}),
        ("cerebras", {**good, "model": "toy", "prompt_cache_key": CANARY["cache"]}),
        ("fireworks", {**good, "response_format": {"type": "json_object", "schema": schema}}),
        ("fireworks", {**good, "response_format": {"type": "json_schema", "schema": {"$ref": CANARY["schema"]}}}),
        ("fireworks", {**good, "response_format": {"type": "grammar", "grammar": f"root ::= {CANARY['grammar']}"}}),
        ("fireworks", {**good, "prompt_cache_isolation_key": CANARY["cache"]}),
    ]
    headers = {"X-Request-Id": f"{CANARY['request']}/not plain"}
    found = [
        one.post(body, Authorization=f"Bearer {key}", **{"X-Completions-Dialect": dialect}, **headers)
        for dialect, body in bodies
        for key in (KEY, CANARY["wrong"])
    ]
    found += [get(one, f"/{CANARY['path']}"), get(one, f"/health?{CANARY['query']}=1"), get(one, f"/v1/models/{CANARY['model']}")]
    return found


@pytest.mark.fault("G01", "G02", "G04", "G11")
@pytest.mark.parametrize("level", ["debug", "info"])
def test_no_secret_of_a_client_is_anywhere_but_in_its_answer(level: str, tmp_path: Path) -> None:
    """Searched: the log, metrics, every file that was written, the ledger, command lines of all processes, and each answer for any key."""
    (tmp_path / "keys").write_text(f"{KEY}\n{OTHER}\n")
    (tmp_path / "keys").chmod(0o600)
    folders = {name: str(tmp_path / name.lower()) for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
    for folder in folders.values():
        Path(folder).mkdir()
    with served(
        "--toy", "--log-level", level, "--api-key-file", str(tmp_path / "keys"), "--ledger", str(tmp_path / "ledger"), **folders
    ) as one:
        answers = requests(one)
        told = [get(one, path)[1] for path in ("/metrics", "/health", "/health/models", "/version", "/v1/models", "/openapi.json", "/docs")]
        told += map(command, family(one.process.pid))
        (engine,) = engines(one.process.pid)
        os.kill(engine, signal.SIGSEGV)
        assert gone(engine)
        until_ready(one)
        answers += requests(one)
        code, log = one.end(signal.SIGTERM)
    assert code == 0
    assert {status for status, _ in answers} >= {200, 400, 401, 404}
    assert (tmp_path / "ledger").exists()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "keys"]
    everywhere = b"\n".join([log.encode(), *told, *written])
    assert [place for place, canary in CANARY.items() if canary.encode() in everywhere] == []
    assert not any(key.encode() in body for _, body in answers for key in (KEY, OTHER, CANARY["wrong"]))
    assert not any(sign in body for status, body in answers if status != 200 for sign in (b"Traceback", b"object at 0x", b".py", b"/src/"))


@pytest.mark.fault("G05")
def test_nobody_is_told_that_another_keys_prompt_is_cached(tmp_path: Path) -> None:
    """What is computed for a prompt, and so its time, is the same whether another key's equal prompt is in the cache or not."""
    prompt = {"prompt": "the same long prompt " * 20, "max_tokens": 1}
    with served("--toy", "--api-key", KEY, "--api-key", OTHER) as one:
        cached = []
        for key in (KEY, KEY, OTHER, OTHER):
            status, body = one.post(prompt, Authorization=f"Bearer {key}")
            assert status == 200
            cached.append(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0
