"""Watches over a front from outside: ``python watch.py FD PID SECONDS``, started by ``heart``.

An event loop that is held up by a call which never returns cannot notice it; nor can a thread, where that call holds the interpreter's
lock. So the loop writes to a pipe now and then, and this process reads. Where nothing comes for long it ends the front, and whoever keeps
services running starts it again: with SIGABRT, upon which the front tells on stderr where it stands, and soon after with SIGKILL.

Nothing of Quintet is imported, so that it starts in no time and is small.
"""

import os
import select
import signal
import sys

TICKS = 10
"""Silence is counted in so many parts: one who stood still too, as all processes of a frozen container do, has counted but one of them."""

_LAST_WORDS_S = 2.0


def main() -> None:
    """Until the front ends, by itself or not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal or a service manager may send them to all
        signal.signal(number, signal.SIG_IGN)
    pipe, front, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    missed = 0
    while missed < TICKS:
        if _heard(pipe, seconds / TICKS):
            if not os.read(pipe, 1 << 12):
                return
            missed = 0
        else:
            missed += 1
    if os.getppid() != front:
        return
    _say(f"the event loop has stood still for {seconds:g} s; the server is ended, to be started again\n")
    os.kill(front, signal.SIGABRT)
    _heard(pipe, _LAST_WORDS_S, end=True)
    if os.getppid() == front:
        os.kill(front, signal.SIGKILL)


def _heard(pipe: int, seconds: float, *, end: bool = False) -> bool:
    """Something can be read of the pipe, or (``end``) it is closed."""
    poll = select.poll()
    poll.register(pipe, 0 if end else select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _say(line: str) -> None:
    """On stderr, if it takes anything at once."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in poll.poll(0)):
        os.write(2, line.encode())


if __name__ == "__main__":
    main()
