"""Workers' processes, and our ends of the sockets to them. One can be started before it is known what for: it imports while others read."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from quintet import children, logs

MODULE = ("-P", "-m", "quintet.backends.native.worker.child")
"""What Python runs; ``-P``: nothing in the current folder can stand in for a module."""

VLLM_MODULE = ("-P", "-m", "quintet.backends.vllm.child")


class Child(NamedTuple):
    """A worker's process.

    Args:
        sock: our end.
    """

    process: subprocess.Popen[bytes]
    sock: socket.socket

    def drop(self) -> None:
        """End one that nobody needs."""
        self.sock.close()
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """End it with what it has started: it leads a group of its own. ``process`` is to be polled until that is done."""
        kill(self.process)


def spawn(module: Sequence[str], level: str, form: str) -> Child:
    """A fresh interpreter, and no fork of this one: threads, locks and memory stay behind.

    Args:
        module: what Python runs in the child.
        level: name of the level at which it logs.
        form: of the log, see ``logs``.

    Raises:
        OSError: no process, no memory or no descriptor to be had now.
    """
    with contextlib.ExitStack() as undo:
        ours, theirs = map(undo.enter_context, socket.socketpair())
        process = launch(module, theirs, level, form)
        undo.pop_all()
    theirs.close()
    return Child(process, ours)


def launch(module: Sequence[str], sock: socket.socket, level: str, form: str) -> subprocess.Popen[bytes]:
    """A worker's process with its end of a connection, which stays open here too. It ends when the calling thread does.

    Args:
        module, level, form: see ``spawn``.

    Raises:
        OSError: see ``spawn``.
    """
    return subprocess.Popen(
        [sys.executable, *module, str(sock.fileno()), str(os.getpid()), level, form],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(sock.fileno(),),
        env=children.environment(**({} if tuple(module) == VLLM_MODULE else children.WITHOUT_BLAS)),
        process_group=0,  # Ctrl-C in a terminal is for the parent, which decides
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker's process and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it runs, as Linux and macOS say it
        os.killpg(process.pid, signal.SIGKILL)


class Ahead:
    """Processes of workers, the first of which has started before anybody asks for it; inside a ``with``, at whose end one that nobody
    asked for is ended.

    Args:
        level, form: see ``spawn``.
        first: start it now. Where it cannot be, that is said to whoever asks for one.
    """

    def __init__(self, level: str, *, first: bool, form: str = logs.TEXT) -> None:
        self._level, self._form = level, form
        self._waits: Child | None = None
        if first:
            with contextlib.suppress(OSError):
                self._waits = spawn(MODULE, self._level, self._form)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        if self._waits is not None:
            self._waits.drop()

    def take(self, module: Sequence[str]) -> Child:
        """The one that waits, if it is of the module, or another.

        Raises:
            OSError: see ``spawn``.
        """
        if self._waits is None or tuple(module) != MODULE:
            return spawn(module, self._level, self._form)
        child, self._waits = self._waits, None
        return child
