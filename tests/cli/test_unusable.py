"""What the system refuses, whatever it is, is one line and an exit code too, never a traceback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny

Command = Callable[..., tuple[int, str, str]]

LONG = "n" * 300
"""A name that every file system refuses: a look at such a path fails as one without permission does, but for root too."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny")))


@pytest.mark.parametrize(
    "words",
    [
        *(["show", f"./{LONG}{end}"] for end in ("", "/", "/m.gguf", "/x/", "/x")),
        ["pull", f"./{LONG}/m.gguf"],
        ["run", f"./{LONG}/m.gguf", "hi"],
        ["serve", f"./{LONG}/m.gguf", "--port", "0"],
        ["serve", "TINY", "--mmproj", f"./{LONG}/m.gguf", "--port", "0"],
        ["serve", "TINY", "--draft", f"./{LONG}/m.gguf", "--port", "0"],
    ],
)
def test_a_model_that_cannot_be_reached_is_one_line(words: list[str], tiny: str, command: Command) -> None:
    code, out, err = command(*(tiny if word == "TINY" else word for word in words))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot use {LONG}")
    assert err.endswith(": File name too long.\n") and err.count("\n") == 1


@pytest.mark.parametrize("words", [["list"], ["show"], ["pull"], ["run", "hi"], ["serve", "--port", "0"], ["pull", "--offline"]])
def test_a_cache_that_cannot_be_reached_is_one_line(words: list[str], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", f"/{LONG}")
    code, out, err = command(*words)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot use /{LONG}/")
    assert err.endswith(": File name too long.\n") and err.count("\n") == 1


def test_the_doctor_tells_of_a_cache_that_cannot_be_reached_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", f"/{LONG}")
    code, out, err = command("doctor", "--port", "1")
    levels = {line.split()[1]: line.split()[0] for line in out.splitlines()}
    assert (code, err) == (1, "")
    assert levels["cache"] == levels["model"] == "fail"
    assert "port" in levels


def test_a_ledger_that_cannot_be_reached_is_one_line(command: Command) -> None:
    assert command("usage", "--ledger", f"{LONG}/k") == (1, "", f"error: ledger {LONG}/k: File name too long.\n")
