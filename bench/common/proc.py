"""Child processes with a time limit that never outlive the benchmark, and its progress lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BEGIN = time.monotonic()

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"


class PeerError(Exception):
    """A peer that cannot be had or did not finish; the message is the reason shown in its row."""


def say(text: str) -> None:
    """One progress line on stderr."""
    print(f"[{time.monotonic() - BEGIN:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextmanager
def child(command: Sequence[str | Path], log: Path, *, read: bool, feed: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which is ended on exit.

    Args:
        log: stderr is appended to it, and stdout too unless ``read``.
        read: stdout is a pipe for the caller.
        feed: stdin is one too; else it is empty.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stderr:
        print("$", *command, file=stderr, flush=True)
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
            stdout=subprocess.PIPE if read else stderr,
            stderr=stderr,
            text=True,
            env={**os.environ, "QUINTET_DUMPABLE": "1"},  # so that our own server's memory can be measured, not by root alone
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def worker(python: str | Path, module: str) -> list[str | Path]:
    """Command that runs a module of ours in a peer's environment, where the load generator is to be found among the sources alone."""
    return ["env", f"PYTHONPATH={SOURCES}", python, "-m", module]


def end(process: subprocess.Popen[str]) -> None:
    """Ask the whole group to stop, then make it. The group is asked even if its leader is gone."""
    for how, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def lines(command: Sequence[str | Path], log: Path, limit: float) -> Iterator[str]:
    """Lines of a command's stdout as they come.

    Raises:
        PeerError: it failed, or took more than ``limit`` seconds.
    """
    late = threading.Event()
    with child(command, log, read=True) as process:

        def stop() -> None:
            late.set()
            end(process)

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            assert process.stdout
            yield from process.stdout
            code = process.wait()
        finally:
            timer.cancel()
    if late.is_set():
        raise PeerError(f"stopped after its limit of {limit:g} s")
    if code:
        raise PeerError(f"{Path(command[0]).name} failed ({code}): {last_words(log)}")


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    text = log.read_text(errors="replace") if log.exists() else ""
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("$")]
    return said[-1][-200:] if said else f"see {log}"


def output(command: Sequence[str | Path], log: Path, limit: float) -> str:
    """All stdout of a command; it is kept in ``log`` too. Raises as ``lines`` does."""
    text = ""
    for line in lines(command, log, limit):
        text += line
        with log.open("a") as file:
            file.write(line)
    return text
