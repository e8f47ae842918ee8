"""Tells others that the event loop turns: a process that watches over it, and the service manager, if that has asked.

Both end a server that stands still. systemd's protocol is a datagram of ``NAME=VALUE`` lines to the socket that the environment names:
https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import socket
import subprocess
import sys
import time
from types import TracebackType

from quintet import children
from quintet.cli import watch

WATCHDOG_S = 30.0

_MODULE = watch.__file__
_log = logging.getLogger(__name__)


def notify(**state: object) -> None:
    """Tell the service manager, if there is one that listens; nobody waits for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    lines = "\n".join(f"{name}={value}" for name, value in state.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(lines.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def reloading() -> None:
    """Settings are read anew; ``notify(READY=1)`` follows when they have been."""
    notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)


def manager_s() -> float:
    """Seconds of silence after which the service manager ends this process; 0 = never."""
    wanted = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if wanted and microseconds.isdecimal() else 0.0


class Heart:
    """Beats inside a ``with``, on the event loop that runs.

    Args:
        seconds: of silence after which the process is ended; 0 = it is not watched.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._managed = manager_s()
        os.environ.pop("WATCHDOG_PID", None)  # a process that takes this one's place is meant as well
        asked = [one for one in (seconds, self._managed) if one]
        self._pause_s = min(asked, default=0.0) / watch.TICKS
        self._watcher: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Heart:
        if self._pause_s:
            faulthandler.enable()  # so that SIGABRT tells where
            self._beat()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._let_go()

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._beat)
        if self._managed:
            notify(WATCHDOG=1)
        if self._seconds:
            try:
                if self._watcher is None:
                    self._start()
                os.write(self._pipe, b".")
            except BlockingIOError:  # it stands still, but has not ended
                pass
            except OSError as error:
                _log.warning("nobody watches over the event loop now: %s", error.strerror)
                self._let_go()  # the next beat starts another

    def _start(self) -> None:
        theirs, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            command = (sys.executable, "-I", "-S", _MODULE, str(theirs), str(os.getpid()), str(self._seconds))
            self._watcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs,),
                env=children.environment(),
                process_group=0,
            )
        finally:
            os.close(theirs)

    def _let_go(self) -> None:
        """Close the pipe, upon which the other ends by itself; it is not waited for on the event loop."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            self._watcher = None
