"""What a server opens, fetches and tells of itself, seen from outside."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.support.processes import family

from quintet import __version__

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def one() -> Iterator[Served]:
    with served("--toy", "--log-level", "warning", QUINTET_DUMPABLE="1") as one:  # else only root sees descriptors
        yield one


def ask(one: Served, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    host, port = one.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **given})
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def listening(process: int) -> set[tuple[str, int]]:
    """What a process and all that it started listen on: kind of socket, and port or 0."""
    inodes = set()
    for pid in family(process):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(fd.readlink())))
            except OSError:
                continue
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or kind.startswith("udp")):
                found.add((kind, int(fields[1].rpartition(":")[2], 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & 0x10000:
            found.add(("unix", 0))
    return found


@linux
@pytest.mark.fault("F12")
def test_nothing_listens_but_the_port_of_the_banner(one: Served) -> None:
    """With an engine, and a process that compiles guides: they speak over socket pairs that have no address."""
    guided = {"prompt": "x", "max_tokens": 2, "response_format": {"type": "json_object"}}
    assert ask(one, "POST", "/fireworks/v1/completions", guided)[0] == 200
    assert len(family(one.process.pid)) >= 3
    assert listening(one.process.pid) == {("tcp", int(one.url.rpartition(":")[2]))}


@pytest.mark.fault("F12")
def test_no_code_is_read_from_what_is_received_or_loaded() -> None:
    """What would run what it reads is imported nowhere; messages are msgspec's, of declared types, and models are GGUF files."""
    forbidden = re.compile(r"\b(pickle|dill|marshal|shelve|trust_remote_code|yaml\.load)\b|(?<![\w.\"'])(eval|exec)\(")
    sources = (Path(__file__).parents[2] / "src").rglob("*.py")
    assert [f"{path.name}: {found[0]}" for path in sources if (found := forbidden.search(path.read_text()))] == []


PLAIN = {
    *("date", "content-type", "content-length", "transfer-encoding", "connection", "cache-control", "allow", "warning", "retry-after"),
    *("x-completions-dialect", "x-request-id", "x-accel-buffering", "content-security-policy", "keep-alive", "x-content-type-options"),
    *("referrer-policy", "vary"),
}
"""Headers that say nothing of the program behind them."""


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/docs", None, 200),
        ("GET", "/openapi.json", None, 200),
        ("GET", "/nope", None, 404),
        ("DELETE", "/v1/completions", None, 405),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2}, 200),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True}, 200),
        ("POST", "/v1/completions", {"prompt": 5}, 400),
        ("POST", "/v1/completions", {"model": "nope"}, 404),
    ],
)
def test_no_answer_tells_what_program_it_is_from(one: Served, method: str, path: str, body: object, status: int) -> None:
    """`/docs` and `/openapi.json` are open: they hold the dialects' public fields, which are the same on every server."""
    got, headers, content = ask(one, method, path, body)
    assert got == status
    assert headers.keys() <= PLAIN
    told, words = content.decode().lower(), ("uvicorn", "python/", "traceback", "/src/", "site-packages", str(Path.home()), __version__)
    assert [word for word in words if word in told] == []


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70_000, 431),
    ],
)
def test_what_is_no_request_is_told_so_and_nothing_else(one: Served, sent: bytes, status: int) -> None:
    host, port = one.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(sent)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert re.fullmatch(rb"HTTP/1\.1 %d [A-Za-z ]+\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status, answer)


@pytest.fixture
def trap() -> Iterator[tuple[str, list[object]]]:
    """An address, and who came to it."""
    seen: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def watch() -> None:
            try:
                while True:
                    seen.append(listener.accept()[1])
            except OSError:
                return

        threading.Thread(target=watch, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", seen
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.fault("F10", "A25")
def test_no_field_makes_the_server_fetch_an_address(one: Served, trap: tuple[str, list[object]]) -> None:
    at, seen = trap
    forms = (
        f"http://{at}/x",
        f"//{at}/x",
        f"http://a@{at}/",
        "file:///etc/passwd",
        f"gopher://{at}/",
        f"data:text/html,<img src=http://{at}>",
    )
    for url in forms:
        schema = {"type": "json_schema", "schema": {"$schema": url, "$id": url, "$ref": url}}
        fields: dict[str, Any] = dict.fromkeys(
            ("api_base", "base_url", "chat_template", "user_config", "lora", "prompt_embeds", "user"), url
        )
        for dialect, more in (
            ("openai", {"suffix": url, "stop": url}),
            ("fireworks", {"images": [url]}),
            ("fireworks", {"response_format": schema}),
            ("together", {"safety_model": url}),
            ("cerebras", {"grammar_root": url, "prompt_cache_key": url}),
            ("novita", {"model": url}),
        ):
            status, _, content = ask(one, "POST", f"/{dialect}/v1/completions", {"prompt": url, "max_tokens": 1, **fields, **more})
            assert status in (200, 400, 404), content
            assert b"root:" not in content
    assert seen == []


HOSTILE = ("'; DROP TABLE keys; --", '" OR 1=1 --', "{0.__class__}", "%s%n%x", "${jndi:ldap://x/a}", "{{7*7}}", "$(id)", "../../etc/passwd")


@pytest.mark.fault("F06")
def test_what_would_be_code_elsewhere_is_a_word_here() -> None:
    right = {"Authorization": "Bearer sk-one"}
    with served("--toy", "--api-key", "sk-one", "--log-level", "warning") as one:
        for text in HOSTILE:
            assert ask(one, "POST", "/v1/completions", {"prompt": "x"}, Authorization=f"Bearer {text}")[0] == 401
            assert ask(one, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "user": text}, **right)[0] == 200
            status, _, content = ask(one, "POST", "/v1/completions", {"prompt": "x", "model": text}, **right)
            told = json.loads(content)["error"]["message"].replace(text, "")
            assert status == 404 and not any(sign in told for sign in ("49", "class", "uid=", "root:"))
            assert ask(one, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, X_Request_Id=text, **right)[0] == 200


@pytest.mark.fault("F09")
def test_a_request_has_no_address_that_anybody_could_ask_for(one: Served) -> None:
    """An answer's id is 128 random bits, and there is no path to read, cancel or continue by one."""
    _, _, content = ask(one, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
    name = json.loads(content)["id"]
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", name)
    for method in ("GET", "DELETE", "POST"):
        for path in (
            "/v1/completions/{}",
            "/v1/completions/{}/cancel",
            "/abort_request/{}",
            "/v1/responses/{}",
            "/requests/{}",
            "/slots/{}",
        ):
            assert ask(one, method, path.format(name), {})[0] == 404


@pytest.mark.fault("E09")
def test_two_clients_with_one_request_id_are_two_requests(one: Served) -> None:
    """One leaves in the middle; the other, of the same id, and a third, of its beginning, get all of theirs."""
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def client(name: str, sent: str) -> None:
        answers[name] = ask(one, "POST", "/v1/completions", {"prompt": name, "max_tokens": 60, "ignore_eos": True}, X_Request_Id=sent)

    host, port = one.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as leaver:
        body = b'{"prompt":"x","max_tokens":4000,"stream":true,"ignore_eos":true}'
        leaver.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: the-same\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        assert leaver.recv(10)
        clients = [threading.Thread(target=client, args=pair) for pair in (("a", "the-same"), ("b", "the-same"), ("c", "the"))]
        for each in clients:
            each.start()
    for each in clients:
        each.join(PATIENCE_S)
    assert {name: status for name, (status, _, _) in answers.items()} == dict.fromkeys("abc", 200)
    told = [json.loads(content) for _, _, content in answers.values()]
    assert [one["usage"]["completion_tokens"] for one in told] == [60] * 3
    assert len({one["id"] for one in told}) == 3
    assert [headers["x-request-id"] for _, headers, _ in (answers[name] for name in "abc")] == ["the-same", "the-same", "the"]
