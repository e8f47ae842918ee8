"""The program's side: one that waits for work and forks itself for each piece.

It says ``READY`` on the socket that is its standard input, and waits there for sockets, two for each piece of work. On the first comes the
piece, up to the end of what is sent; what goes back begins with ``STARTED``. How it ends is the work's own: an answer that is cut short has
no end. Nothing comes on the second: once its other end is closed nobody waits for the answer, and the work is ended.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from quintet import children

READY = b"ready"
"""The program has loaded what it needs."""

STARTED = b"started "
IDLE_S = 60.0
"""The program ends after so long without work: it holds some 35 MB."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one piece of work; what goes beyond them is ended.

    Args:
        cpu_s: processor time, so that a busy machine refuses nothing that an idle one accepts.
        wall_s: time on a machine that does not give it that much; asking again may help.
        memory: bytes of address space.
    """

    cpu_s: float
    wall_s: float
    memory: int


def serve(work: Callable[[socket.socket], None], bounds: Bounds) -> None:
    """Serve until the other end is closed, which ends what is being done, or is silent for ``IDLE_S``.

    Args:
        work: reads its piece from a socket, which blocks, and writes its answer there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the server
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were they ignored, a process's number could be another's by the time it is ended
    children.keep_private()
    with socket.socket(fileno=0) as control:
        control.sendall(READY)
        processes: dict[int, int] = {}  # by the descriptor that is closed when nobody waits any more for what the process does
        poll = select.poll()
        poll.register(control, select.POLLIN)  # looked at first, so that who left before new work came is seen with it
        while ready := dict(poll.poll(1000 * IDLE_S)):
            for wanted in processes.keys() & ready.keys():
                poll.unregister(wanted)
                os.close(wanted)
                _end(processes.pop(wanted))
            if control.fileno() not in ready:
                continue
            _, received, *_ = socket.recv_fds(control, 1, 2)
            if not received:
                for process in processes.values():
                    _end(process)
                return
            client, wanted = received
            process = os.fork()
            if not process:
                for other in (control.detach(), wanted, *processes):  # what concerns others comes over them
                    os.close(other)
                _run(work, bounds, socket.socket(fileno=client))
            os.close(client)
            processes[wanted] = process
            poll.register(wanted, select.POLLIN)


def _end(process: int) -> None:
    """End a process, which may have ended by itself; its memory is free afterwards."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _run(work: Callable[[socket.socket], None], bounds: Bounds, client: socket.socket) -> None:
    """The forked process; does not return."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (bounds.memory, bounds.memory))
        signal.setitimer(signal.ITIMER_PROF, bounds.cpu_s)  # counts the time of all threads; SIGPROF and SIGALRM end the process
        signal.setitimer(signal.ITIMER_REAL, bounds.wall_s)
        client.settimeout(None)
        client.sendall(STARTED)
        work(client)
        status = 0
    finally:
        os._exit(status)
