"""``quintet check`` as a command, against a server that is a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import Served, served

PATHS = {
    "openai": "/openai/v1",
    "fireworks": "/fireworks/inference/v1",
    "together": "/together/v1",
    "cerebras": "/cerebras/v1",
    "novita": "/novita/openai/v1",
}
KEY = "key-of-the-check"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--toy", "--api-key", KEY) as found:
        yield found


def check(url: str, *words: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintet", "check", url, *words]
    return subprocess.run(command, env={**os.environ, "QUINTET_CHECK_KEY": key}, capture_output=True, text=True, check=False)


def checked(server: Served, page: str, *words: str) -> dict[str, Any]:
    run = check(server.url + PATHS[page], "--as", page, "--json", *words)
    found: dict[str, Any] = json.loads(run.stdout)
    assert run.returncode == int(found["counts"]["differs"] > 0), run.stderr
    assert KEY not in run.stdout + run.stderr
    return found


def test_an_item_alone_passes_and_the_command_says_so(server: Served) -> None:
    run = check(server.url + "/openai/v1", "--as", "openai", "--only", "stop.text")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[1:] == ["request: 1 pass", "OpenAI: 1 pass"]


@pytest.mark.parametrize("page", PATHS)
def test_a_url_without_a_path_is_this_server_speaking_as_the_page(server: Served, page: str) -> None:
    run = check(server.url, "--as", page, "--only", "object")
    assert (run.returncode, run.stderr) == (0, "")


def test_a_difference_is_told_with_sentence_request_and_answer_and_ends_with_1(server: Served) -> None:
    run = check(server.url + "/v1", "--as", "together", "--only", "object")
    assert run.returncode == 1
    shown = [" ".join(line.split()) for line in run.stdout.splitlines()]
    assert 'differs object object is "text_completion"' in shown
    assert "page: enum: - text.completion" in shown
    assert any(line.startswith('sent: {"model":"toy"') for line in shown)
    assert any(line.startswith('came: 200 {"id":"cmpl-') for line in shown)


def test_json_has_the_request_and_the_answer_of_each_item(server: Served) -> None:
    (item,) = checked(server, "openai", "--only", "suffix")["items"]
    assert (item["verdict"], item["answer"]["status"]) == ("cannot be told", 400)
    assert json.loads(item["request"])["suffix"]


@pytest.mark.parametrize(
    ("url", "words", "said"),
    [
        ("ftp://x", (), "URL must be a server's base URL"),
        ("http://127.0.0.1:0/v1", (), "URL must be a server's base URL"),
        ("http://user:secret@127.0.0.1/v1", (), "URL must be a server's base URL"),
        ("http://127.0.0.1:1/v1", (), "the connection failed"),
        ("http://127.0.0.1:1/v1", ("--only", "stopp"), "--only must be one of model, prompt,"),
    ],
)
def test_what_a_person_can_mend_is_one_line(url: str, words: tuple[str, ...], said: str) -> None:
    run = check(url, "--as", "openai", *words)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: ")
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_wrong_key_is_told_before_anything_is_compared_and_is_not_shown(server: Served) -> None:
    run = check(server.url + "/v1", "--as", "openai", "--model", "toy", key="another-key")
    assert run.returncode == 1
    assert "does not complete a prompt: status 401" in run.stderr
    assert "another-key" not in run.stderr


STATED = tomllib.loads((Path(__file__).parents[2] / "docs" / "conformance.toml").read_text())


def stated(table: str, page: str) -> set[str]:
    return set(STATED.get(table, {}).get(page, ()))


@pytest.mark.parametrize("page", PATHS)
def test_each_item_comes_to_what_is_said_of_it(server: Served, page: str) -> None:
    verdicts = {item["id"]: (item["verdict"], item["seen"]) for item in checked(server, page)["items"]}
    differ = {item: seen for item, (verdict, seen) in verdicts.items() if verdict == "differs"}
    untold = {item: seen for item, (verdict, seen) in verdicts.items() if verdict == "cannot be told"}
    departures = stated("departures", page) | stated("unserved", page)
    assert {item: seen for item, seen in differ.items() if item not in departures} == {}
    assert {item: seen for item, seen in untold.items() if item not in departures | stated("proofs", page)} == {}


TRAINED = {
    "openai": ["seed", "stop.text"],
    "fireworks": [
        "echo_last",
        "repetition_penalty",
        "presence_penalty",
        "response_format.json_schema",
        "logprobs",
        "logit_bias",
        "typical_p",
    ],
    "together": ["echo", "logit_bias", "choices.seed", "logprobs.token_ids", "stop.token", "chunk.token.id"],
    "cerebras": ["grammar_root", "return_raw_tokens", "choices.logprobs.text_offset"],
    "novita": ["stop.text", "top_k", "usage.completion_tokens"],
}
"""Items that say more of a trained model with a vocabulary of words; ``QUINTET_TEST_CONFORMANCE=all`` runs all of them."""


@pytest.fixture(scope="module")
def trained() -> Iterator[Served]:
    with served("smollm2", "--api-key", KEY) as found:
        yield found


@pytest.mark.parametrize("page", PATHS)
def test_no_item_differs_on_the_bundled_model_either(trained: Served, page: str) -> None:
    every = os.environ.get("QUINTET_TEST_CONFORMANCE") == "all"
    chosen = () if every else [word for item in TRAINED[page] for word in ("--only", item)]
    items = checked(trained, page, *chosen)["items"]
    departures = stated("departures", page) | stated("unserved", page)
    assert [(item["id"], item["seen"]) for item in items if item["verdict"] == "differs" and item["id"] not in departures] == []


@contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """A server that sends this, whatever it is asked, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                connection.recv(1 << 16)
                for part in parts:
                    connection.sendall(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for one in kept:
                one.close()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((), "no answer within 0.2 s"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",), "no answer within 0.2 s"),
        ((b"no HTTP at all\r\n\r\n",), "the connection failed"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n\x1b]0;hi\x07",), None),
        ((b"HTTP/1.1 500 Oops\r\ncontent-length: 7\r\n\r\n\x1b]0;hi\x07",), "status 500: \N{REPLACEMENT CHARACTER}]0;hi"),
    ],
)
def test_a_server_that_hangs_or_speaks_nonsense_is_told_of_in_printable_words(parts: tuple[bytes, ...], said: str | None) -> None:
    with answering(*parts) as url:
        run = check(url, "--as", "openai", "--model", "m", "--timeout", "0.2", "--only", "id")
    assert run.returncode == 1
    assert "\x1b" not in run.stdout + run.stderr
    assert (said or "the body is not JSON") in (run.stderr if said else run.stdout)
