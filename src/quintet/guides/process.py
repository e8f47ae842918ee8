"""Where guides are tried: a process that forks another for each, which may crash or run out of time or memory.

As a program it says ``READY`` on the socket that is its standard input, and waits there for sockets. On each of these comes a guide,
``KIND`` and its text in two lines; what goes back begins with ``STARTED``, and ends with ``TAKEN`` or ``REFUSED`` and a text, unless
the guide ended its process.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading

from quintet import children
from quintet.guides.protocol import READY, REFUSED, STARTED, TAKEN, TOO_COMPLEX, WALL_S, GuideError
from quintet.guides.translate import translate, verify
from quintet.request import GuideKind

CPU_S = 0.5
"""Processor time for one guide, so that a busy machine refuses nothing that an idle one accepts."""

MEMORY_BYTES = 1 << 30
IDLE_S = 60.0
"""The program ends after so long without a guide: it holds some 35 MB."""

_STACK = 1 << 20  # an eighth of what the engine's threads have: what fits here does not overflow there


def main() -> None:
    """Serve until the other end is closed, or is silent for ``IDLE_S``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the server
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    children.keep_private()
    verify(GuideKind.REGEX, translate(GuideKind.REGEX, "a"))  # loads what each of them needs
    with socket.socket(fileno=0) as control:
        control.sendall(READY)
        control.settimeout(IDLE_S)
        while True:
            try:
                _, received, *_ = socket.recv_fds(control, 1, 1)
            except TimeoutError:
                return
            if not received:
                return
            if not os.fork():
                _serve(socket.socket(fileno=received[0]))
            os.close(received[0])


def _serve(client: socket.socket) -> None:
    """The forked process; does not return."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # counts the time of all threads; SIGPROF and SIGALRM end the process
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        client.settimeout(None)
        client.sendall(STARTED)
        with client.makefile("rb") as file:
            kind, _, text = file.read().partition(b"\n")
        client.sendall(_with_small_stack(GuideKind[kind.decode()], text).encode())
        status = 0
    finally:
        os._exit(status)


def _with_small_stack(kind: GuideKind, text: bytes) -> str:
    results: list[str] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: results.append(_tried(kind, text)))
    thread.start()
    thread.join()
    return results[0]


def _tried(kind: GuideKind, text: bytes) -> str:
    try:
        grammar = translate(kind, text.decode())
        verify(kind, grammar)
    except UnicodeDecodeError:
        return f"{REFUSED}must be Unicode text, without lone surrogates"
    except GuideError as error:
        return f"{REFUSED}{error}"
    except MemoryError:
        return f"{REFUSED}{TOO_COMPLEX}"
    return f"{TAKEN}{grammar}"


if __name__ == "__main__":
    main()
