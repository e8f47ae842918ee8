"""The ``quintet`` command, and the only place where the parts of the program are put together."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from quintet.cli import early

# All else is imported where Ctrl-C in the middle of it is no traceback.


def main() -> None:
    """Run the command line; what a person can mend is one line on stderr and exit code 1, never a traceback, and Ctrl-C is exit code 130.

    The process is to end with it: Ctrl-C stays what it is here while Python ends.
    """
    early.quiet()
    _have_streams()
    # No option may stand before the command; and what knows them all takes its time to be imported.
    if sys.argv[1:2] == ["serve"]:
        with early.heeded():
            _run(contextlib.nullcontext)
    else:
        _run(early.interruptible)


def _run(signals: Callable[[], AbstractContextManager[None]]) -> None:
    """
    Args:
        signals: how the command hears them.
    """
    import click

    from quintet.cli.app import app
    from quintet.cli.console import write_error
    from quintet.errors import QuintetError

    try:
        with signals():
            code = app(prog_name="quintet", standalone_mode=False)
            sys.stdout.flush()  # while it can still be told that this fails
        sys.exit(code)
    except click.ClickException as error:  # of the command line itself: usage and what is wrong with it
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(early.INTERRUPTED)
    except QuintetError as error:
        write_error(error)
        sys.exit(1)
    except OSError as error:
        sys.exit(_told(error))


def _told(error: OSError) -> int:
    """The exit code, when the system's error is told. Most of them are some module's own to tell, in better words."""
    place = f"{error.filename}: " if error.filename else ""
    try:
        sys.stdout.close()  # what could not be written would be tried again, and fail, when Python ends
    except OSError as failed:
        error, place = failed, "standard output: "
    if not isinstance(error, BrokenPipeError):  # `quintet list | head`
        sys.stderr.write(f"error: {place}{error.strerror or error}.\n")
    return 1


def _have_streams() -> None:
    """Standard streams that were closed lead nowhere; else what is opened next would have their numbers, and be written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a text may be of any characters, and an encoding have few
        sys.stdout.reconfigure(errors="backslashreplace")
