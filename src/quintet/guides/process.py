"""Where guides are tried: a program of ``forks``, which may crash or run out of time or memory in a process of its own.

A piece of work is ``KIND`` and the guide's text in two lines; what goes back is ``TAKEN`` or ``REFUSED``, a text and ``END``, unless the
guide ended its process.
"""

from __future__ import annotations

import socket
import threading

from quintet.forks import child
from quintet.guides.protocol import END, REFUSED, TAKEN, TOO_COMPLEX, WALL_S, GuideError
from quintet.guides.translate import translate, verify
from quintet.request import GuideKind

BOUNDS = child.Bounds(cpu_s=0.5, wall_s=WALL_S, memory=1 << 30)

_STACK = 1 << 20  # an eighth of what the engine's threads have: what fits here does not overflow there


def main() -> None:
    """See ``child.serve``."""
    verify(GuideKind.REGEX, translate(GuideKind.REGEX, "a"))  # loads what each of them needs
    child.serve(_work, BOUNDS)


def _work(client: socket.socket) -> None:
    with client.makefile("rb") as file:
        kind, _, text = file.read().partition(b"\n")
    client.sendall(_with_small_stack(GuideKind[kind.decode()], text).encode() + END)


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
