"""``quintet keys`` beside a running ``quintet serve --keys``, and what an unmodified SDK makes of a limit."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from openai import OpenAI, RateLimitError
from tests.e2e.test_serve_command import PATIENCE_S, Served, served

BODY = b'{"prompt": "abcd", "max_tokens": 3, "logit_bias": {"256": -100}}'


def keys(store: Path, *words: str) -> str:
    command = [sys.executable, "-m", "quintet", "keys", words[0], "--keys", str(store), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.strip()


@contextmanager
def limited(folder: Path, *limits: str) -> Iterator[tuple[Served, Path, str]]:
    """A server with one key, its store, and the key."""
    folder.mkdir(exist_ok=True)
    store = folder / "keys.db"
    secret = keys(store, "add", "alice", *limits)
    with served("--toy", "--keys", str(store)) as one:
        yield one, store, secret


def status(url: str, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    try:
        with urlopen(Request(f"{url}/v1/completions", BODY, headers), timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.fault("F02")
def test_keys_are_added_limited_and_revoked_beside_a_running_server(tmp_path: Path) -> None:
    """A change counts a second after its command has ended, and mostly sooner."""
    with limited(tmp_path) as (one, store, alice):
        assert "1 API key" in one.banner
        bob = keys(store, "add", "bob", "--requests-per-day", "1")
        time.sleep(1)
        assert [status(one.url, key) for key in (alice, bob, bob)] == [200, 200, 429]
        keys(store, "revoke", "alice")
        keys(store, "set", "bob", "--requests-per-day", "3")
        time.sleep(1)
        assert [status(one.url, key) for key in (alice, bob)] == [401, 200]
        assert alice not in keys(store, "list") and "revoked" in keys(store, "list")


@pytest.mark.fault("F08")
def test_of_200_requests_at_once_over_as_many_connections_10_are_answered(tmp_path: Path) -> None:
    with limited(tmp_path, "--tokens-per-day", "70") as (one, _, alice):
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(status(one.url, alice))) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(found) == {200: 10, 429: 190}


def test_the_sdk_knows_a_limit_reads_its_headers_and_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    """30 a minute, of which all are used: the next is there in two seconds, and the SDK's own first pause would be half a second."""
    with limited(tmp_path, "--requests-per-minute", "30", "--tokens-per-minute", "5000") as (one, _, alice):
        with OpenAI(base_url=f"{one.url}/v1", api_key=alice, max_retries=0) as impatient:
            first = impatient.completions.with_raw_response.create(model="toy", prompt="a", max_tokens=1)
            assert first.headers["x-ratelimit-limit-requests"] == "30"
            assert first.headers["x-ratelimit-remaining-tokens"] == "4998"
            assert first.headers["x-ratelimit-reset-requests"].endswith("s")
            with pytest.raises(RateLimitError) as caught:
                for _ in range(100):
                    impatient.completions.create(model="toy", prompt="a", max_tokens=1)
            assert (caught.value.code, caught.value.type, caught.value.status_code) == ("rate_limit_exceeded", "requests", 429)
            assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
            assert caught.value.response.headers["retry-after"] in ("1", "2")
        with OpenAI(base_url=f"{one.url}/v1", api_key=alice, max_retries=1) as patient:
            assert patient.completions.create(model="toy", prompt="a", max_tokens=1).choices


def test_the_sdk_does_not_try_again_what_no_waiting_helps(tmp_path: Path) -> None:
    with limited(tmp_path, "--budget", "10") as (one, _, alice), OpenAI(base_url=f"{one.url}/v1", api_key=alice, max_retries=5) as client:
        with pytest.raises(RateLimitError) as caught:
            client.completions.create(model="toy", prompt="a", max_tokens=10)
        assert caught.value.code == "insufficient_quota"
        assert caught.value.request.headers["x-stainless-retry-count"] == "0"
        assert client.completions.create(model="toy", prompt="a", max_tokens=9)


@pytest.mark.fault("F08")
def test_with_a_ledger_a_restart_forgets_neither_the_day_nor_the_budget(tmp_path: Path) -> None:
    """Seven tokens a request: three of them are all that a budget of 25 and a day of 24 allow."""
    store = tmp_path / "keys.db"
    alice, bob = keys(store, "add", "alice", "--budget", "25"), keys(store, "add", "bob", "--tokens-per-day", "24")
    words = ("--toy", "--keys", str(store), "--ledger", str(tmp_path / "ledger.db"))
    with served(*words) as one:
        assert [status(one.url, key) for key in (alice, bob) * 2] == [200] * 4
        one.end(signal.SIGTERM)
    with served(*words) as one:
        assert [status(one.url, key) for key in (alice, bob) * 2] == [200, 200, 429, 429]
        assert "anew" not in one.end(signal.SIGTERM)[1]


def test_without_a_ledger_the_start_tells_that_budgets_begin_anew(tmp_path: Path) -> None:
    with limited(tmp_path, "--budget", "25", "--requests-per-day", "9") as (one, store, alice):
        assert [status(one.url, alice) for _ in range(4)] == [200, 200, 200, 429]
        told = "keys with a budget or tokens per day: 1; without --ledger these begin anew at each start"
        assert one.end(signal.SIGTERM)[1].splitlines()[0] == told
    with served("--toy", "--keys", str(store)) as one:
        assert status(one.url, alice) == 200
    with limited(tmp_path / "other", "--requests-per-day", "9") as (one, _, _):
        assert "anew" not in one.end(signal.SIGTERM)[1]


@pytest.mark.fault("F07")
def test_over_a_unix_socket_a_trusted_proxy_says_who_guesses(tmp_path: Path) -> None:
    path = tmp_path / "q.sock"

    def ask(key: str, address: str) -> int:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            head = f"GET /v1/models HTTP/1.0\r\nhost: localhost\r\nx-forwarded-for: {address}\r\nauthorization: Bearer {key}\r\n\r\n"
            client.sendall(head.encode())
            return int(client.recv(100).split()[1])

    words = ["serve", "--toy", "--uds", str(path), "--trusted-proxy", "unix", "--api-key", "sk-chosen"]
    with subprocess.Popen([sys.executable, "-m", "quintet", *words], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and "1 API key" in server.stdout.readline()
            assert [ask(f"guess-{number}", "192.0.2.1") for number in range(40)][-1] == 429
            assert [ask("guess", "192.0.2.2"), ask("sk-chosen", "192.0.2.2")] == [401, 200]
        finally:
            server.terminate()
