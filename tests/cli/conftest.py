"""For the tests that call commands in the process that runs them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quintet import cli
from quintet.cli import serve


@pytest.fixture(autouse=True, scope="session")
def openness() -> Iterator[None]:
    """What a server does to keep its own process private cannot be undone: not to the one that runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serve, "keep_private", lambda: None)
        yield


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A command leaves its process deaf to Ctrl-C but for its end; the one that runs the tests does not end with it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quintet", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        return (code if isinstance(code, int) else 0, *capfd.readouterr())

    return call
