"""Signals to a server whose event loop is not there yet, which then takes them over (see ``interrupt``).

By default each would end it with a code of its own, and the first process of a container would not even hear that it is to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """SIGTERM, SIGINT and the terminal's closing end the process, with exit code 0; SIGHUP and SIGUSR2 do nothing: there is nothing yet
    that could be read again or taken over."""
    terminal = os.isatty(0)

    def end(*_: object) -> None:
        raise SystemExit(0)

    def hung_up(*_: object) -> None:
        if terminal and not os.isatty(0):
            end()

    def nothing(*_: object) -> None:
        pass

    handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: hung_up, signal.SIGUSR2: nothing}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    hook, sys.unraisablehook = sys.unraisablehook, _unraised
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _unraised(what: sys.UnraisableHookArgs) -> None:
    """An end that came where nothing can be raised, as in the callback that each import has when it is done: one in a hundred."""
    if what.exc_type is SystemExit:
        os._exit(0)
    sys.__unraisablehook__(what)
