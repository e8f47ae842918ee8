"""Signals to a process whose event loop is not there yet, which then takes them over (see ``interrupt``), or never will be.

By default each would end a server with a code of its own, and the first process of a container would not even hear that it is to end; and
Ctrl-C would be a traceback while modules are imported, and while Python ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator

INTERRUPTED = 130
"""The exit code that a shell reports for a program that Ctrl-C ended."""


def quiet() -> None:
    """Ctrl-C ends the process at once: nothing is begun that would have to be cleaned up, or all of it is done.

    Whoever started the process may have it not heard at all. Python gives handlers back before it is gone, but no signal that is ignored:
    so Ctrl-C in its last moment leaves the exit code as it is.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


class Interrupted(KeyboardInterrupt):
    """Where Python's own one comes while it runs a text, as each dataclass does that is made, it remembers, and has its own exit code."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Between two times of ``quiet`` Ctrl-C is ``KeyboardInterrupt`` again, which a command cleans up after."""
    before = signal.getsignal(signal.SIGINT)
    hook, sys.unraisablehook = sys.unraisablehook, _unraised
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _interrupt)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """SIGTERM, SIGINT and the terminal's closing end the process, with exit code 0; SIGHUP and SIGUSR2 do nothing: there is nothing yet
    that could be read again or taken over.

    There is nothing to be cleaned up either, and an exception might not end it: ``compile`` drops ``SystemExit``, so that a server whose
    modules had no bytecode yet went on, and where a class gives names to its members it becomes a ``RuntimeError``.
    """
    terminal = os.isatty(0)

    def end(*_: object) -> None:
        os._exit(0)

    def hung_up(*_: object) -> None:
        if terminal and not os.isatty(0):
            end()

    def nothing(*_: object) -> None:
        pass

    handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: hung_up, signal.SIGUSR2: nothing}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unraised(what: sys.UnraisableHookArgs) -> None:
    """An end that came where nothing can be raised, as in the callback that each import has when it is done: one in a hundred."""
    if what.exc_type is Interrupted:
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(what)
