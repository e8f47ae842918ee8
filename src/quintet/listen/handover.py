"""A new process takes the place of this one on the same sockets, without a request lost.

::

    old                                      new
    SIGUSR2: starts new with its sockets ──► loads its models; meanwhile old serves on
    takes no more connections            ◄── ready: takes connections
    answers what it has, ends

The sockets are one and the same, so whoever connects in between waits in their backlog for one of the two. The new process gets them as
systemd would give them (``sockets.inherited``), and with them, under the name ``ready``, a pipe on which it says that it is; the pipe's
end without a word says that it failed, and the old one serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Sequence

from quintet.listen.sockets import FIRST, READY, Listener

GIVE_UP_S = 1.0
"""A process that serves nobody yet, and is not needed, may take so long to end by itself."""

_POLL_S = 0.02
_SHELL = ("/bin/sh", "-c", 'export LISTEN_PID=$$; exec "$0" "$@"')
"""Tells the new process its own number, which is that of the shell before it."""


class Successor:
    """A process that was started to take over, with this process's command line and environment.

    Args:
        listeners: that it gets; when it is ready they are its own, and closed here by ``Listener.give``.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, listeners: Sequence[Listener], command: Sequence[str] | None = None) -> None:
        names = [*(listener.name for listener in listeners), READY]
        environment = {**os.environ, "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}
        words = command or (sys.executable, *sys.orig_argv[1:])
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as handed_over:
            self._ready, told = os.pipe()
            failed.callback(os.close, self._ready)
            handed_over.callback(os.close, told)
            actions = []
            for place, descriptor in enumerate((*(listener.sock.fileno() for listener in listeners), told), FIRST):
                # By way of a number above all places, lest one be overwritten before it has been put in its own.
                copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST + len(names))
                handed_over.callback(os.close, copy)
                actions.append((os.POSIX_SPAWN_DUP2, copy, place))
            self.pid = os.posix_spawn(_SHELL[0], [*_SHELL, *words], environment, file_actions=actions)
            failed.pop_all()

    async def ready(self) -> bool:
        """Whether it came up; waits for as long as it loads."""
        loop = asyncio.get_running_loop()
        came_up: asyncio.Future[bool] = loop.create_future()

        def read() -> None:
            loop.remove_reader(self._ready)
            came_up.set_result(bool(os.read(self._ready, 1)))

        loop.add_reader(self._ready, read)
        try:
            return await came_up
        finally:
            loop.remove_reader(self._ready)
            os.close(self._ready)

    async def give_up(self) -> None:
        """End it, if it is there, and wait until it is gone; by force where it stands still, for whoever ends this process waits too."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if await self._is_gone():
                break

    async def _is_gone(self) -> bool:
        """Whether the process has ended within ``GIVE_UP_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                with contextlib.suppress(ChildProcessError):
                    while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                        await asyncio.sleep(_POLL_S)
            return True
        return False


def announce(ready: int) -> None:
    """Tell the process before this one that this one serves."""
    with contextlib.suppress(OSError):  # it is gone
        os.write(ready, b"1")
    os.close(ready)
