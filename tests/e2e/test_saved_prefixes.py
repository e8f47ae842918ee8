"""Prefixes that outlive a server: killed or ended, the next one finds them, says so in its usage, and answers with the same bytes."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served

from quintet.backends.native.core.loader import PAGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TEXT = "The keeper of the lighthouse wrote down each evening what the sea had brought. " * 20
ASKED = {"prompt": TEXT, "max_tokens": 12, "temperature": 0.8, "seed": 3, "logprobs": 2}


def ask(one: Served, key: str = "", **more: Any) -> tuple[Any, int]:
    """The choices, and how many of the prompt's tokens were cached."""
    until, headers = time.monotonic() + PATIENCE_S, {"Authorization": f"Bearer {key}"} if key else {}
    while (answer := one.post({**ASKED, **more}, **headers))[0] == 503 and time.monotonic() < until:
        time.sleep(0.05)
    status, body = answer
    assert status == 200, body
    whole = json.loads(body)
    return whole["choices"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]


def written(folder: Path, pages: int) -> None:
    """Wait until so many pages are on the disk."""
    until = time.monotonic() + PATIENCE_S
    while sum(path.is_file() and len(path.name) == 32 for path in folder.rglob("*")) < pages:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(("end", "kv_type"), [(signal.SIGTERM, "q8"), (signal.SIGKILL, "f16")])
def test_the_next_server_finds_them_and_answers_with_the_same_bytes(tmp_path: Path, end: signal.Signals, kv_type: str) -> None:
    of_pages = "--kv-cache", "64MiB", "--kv-type", kv_type
    words = "--prefix-cache-dir", str(tmp_path / "prefixes"), *of_pages
    with served(*words) as one:
        first, cached = ask(one)
        assert cached == 0
        again, pages = ask(one)
        assert again == first
        assert pages % PAGE == 0
        assert pages > 256
        written(tmp_path, pages // PAGE)
        one.end(end)
    with served(*words) as one:
        assert ask(one) == (first, pages)
        longer, cached = ask(one, prompt=TEXT + "And then")
        assert cached == pages
    with served(*of_pages) as one:
        assert ask(one, prompt=TEXT + "And then") == (longer, 0)
    for path in tmp_path.rglob("*"):
        if path.is_file() and len(path.name) == 32:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    with served(*words) as one:
        assert ask(one) == (first, 0), "what is damaged is computed"


def test_another_key_finds_nothing_of_them_and_the_same_key_does(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    words = "--prefix-cache-dir", str(folder), "--kv-cache", "64MiB", "--api-key", "one" * 8, "--api-key", "two" * 8
    found = []
    for key in ("one", "two", "one"):
        with served(*words) as one:
            found.append(ask(one, key * 8)[1])
            one.end(signal.SIGTERM)
    assert found[:2] == [0, 0]
    assert found[2] > 256


def test_a_folder_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, why in ((tmp_path / "file", "file is not a folder"), (tmp_path / "loose", "others may read it")):
        if folder.name == "loose":
            folder.mkdir()
            (folder / "secret").write_bytes(bytes(32))
            (folder / "secret").chmod(0o644)
        with served("--prefix-cache-dir", str(folder)) as one:
            _, err = one.process.communicate(timeout=PATIENCE_S)
        assert one.process.returncode != 0
        assert "--prefix-cache-dir" in err and why in err


def test_the_size_is_bounded(tmp_path: Path) -> None:
    with served("--prefix-cache-dir", str(tmp_path), "--prefix-cache-size", "2MB") as one:
        ask(one)
        one.end(signal.SIGTERM)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert 1_000_000 < sum(sizes) <= 2_000_000 + 32
