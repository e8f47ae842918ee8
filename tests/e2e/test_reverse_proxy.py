"""The snippet of docs/operations.md for nginx, as it stands there, before a server.

Skipped where nginx is not installed (Debian: ``apt-get install nginx-light``).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.keys.lockout import MOST_FAILURES
from quintet.listen.sockets import listen_unix

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PATIENCE_S = 60
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin")


def snippet(language: str, holds: str) -> str:
    (found,) = (block for block in re.finditer(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if holds in block[1])
    return found[1]


@contextmanager
def nginx(folder: Path, upstream: Path) -> Iterator[int]:
    """It runs with the page's configuration; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = (
        snippet("nginx", "proxy_pass")
        .replace("/run/quintet/quintet.sock", str(upstream))
        .replace("listen 80;", f"listen 127.0.0.1:{port};")
    )
    kept = "".join(f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # the socket is its owner's alone
    file.write_text(f"{user} daemon off; pid {folder / 'pid'}; error_log stderr; events {{}} http {{ access_log off; {kept}\n{site} }}")
    assert NGINX
    with subprocess.Popen([NGINX, "-e", "stderr", "-c", str(file)], stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionError:
                    assert process.poll() is None and time.monotonic() < end, process.stderr and process.stderr.read()
                    time.sleep(0.01)
            yield port
        finally:
            process.terminate()


@contextmanager
def behind(folder: Path, backend: ScriptedBackend, **config: object) -> Iterator[int]:
    """A server on a Unix socket, and nginx before it; nginx's port."""
    path = folder / "quintet.sock"
    made = ServerConfig(trusted_proxy=("unix",), **config)  # type: ignore[arg-type]
    with serving(lambda: create_app(backend, made), on=listen_unix(path, 0o600)), nginx(folder, path) as port:
        yield port


def post(port: int, body: bytes, source: str = "127.0.0.1", **headers: str) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(source, 0))
    try:
        client.request("POST", "/v1/completions", body, {"content-type": "application/json", **headers})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


needs_nginx = pytest.mark.skipif(not NGINX, reason="nginx is not installed")


@needs_nginx
@pytest.mark.fault("E06", "E12")
def test_a_stream_passes_nginx_frame_by_frame_and_its_work_ends_with_its_client(tmp_path: Path) -> None:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.2)
    with behind(tmp_path, backend) as port:
        body = json.dumps({"prompt": "a", "max_tokens": 9_000_000, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: example.org\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(head.encode() + body)
            got = b""
            while b"data: " not in got:
                part = client.recv(65536)
                assert part and b"502 Bad Gateway" not in got
                got += part
            assert got.count(b"data: ") < 8, "a buffer of nginx's holds more of them"
        end = time.monotonic() + PATIENCE_S
        while not backend.aborted:
            assert time.monotonic() < end
            time.sleep(0.01)
        status, whole = post(port, json.dumps({"prompt": "a", "max_tokens": 3}).encode())
        assert (status, json.loads(whole)["usage"]["completion_tokens"]) == (200, 3)


@needs_nginx
@pytest.mark.fault("B13")
def test_a_body_passes_nginx_up_to_the_servers_own_limit_and_beyond_it_the_refusal_is_the_servers(tmp_path: Path) -> None:
    body, most = json.dumps({"prompt": "a", "max_tokens": 1}).encode(), ServerConfig().max_body_bytes
    with behind(tmp_path, ScriptedBackend()) as port:
        for size, expected in ((most, 200), (most + 1, 413)):
            status, answer = post(port, body.ljust(size))
            assert status == expected
            assert json.loads(answer).keys() & {"choices", "error"}, "the dialect's own words"


@needs_nginx
@pytest.mark.fault("F04", "F07")
def test_the_server_knows_clients_behind_nginx_apart_whatever_they_write_into_headers(tmp_path: Path) -> None:
    """One who guesses keys is held up, and neither escapes by headers of its own nor has others held up."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    with behind(tmp_path, ScriptedBackend(), api_keys=("right",)) as port:

        def guess(number: int, source: str) -> int:
            spoofed = {"x-forwarded-for": f"10.0.0.{number}", "forwarded": f"for=10.0.1.{number}", "x-real-ip": f"10.0.2.{number}"}
            return post(port, body, source, authorization=f"Bearer wrong-{number}", **spoofed)[0]

        assert {guess(number, "127.0.0.1") for number in range(MOST_FAILURES)} == {401}
        assert guess(99, "127.0.0.1") == 429
        assert guess(99, "127.0.0.2") == 401
        assert post(port, body, "127.0.0.2", authorization="Bearer right")[0] == 200
