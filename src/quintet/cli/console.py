"""What commands write for people: notes and progress on stderr, so that stdout stays the answer."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from quintet.errors import QuintetError, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# ``rich`` is imported where something is drawn: a server that writes to a log does not carry it.


def print_line(line: str) -> None:
    """On standard output, without markup, as one line."""
    stdout().print(one_line(line), markup=False)


@cache
def stdout() -> Console:
    """Standard output, with styles where it is a terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def write_error(error: QuintetError) -> None:
    """What a person can mend, on standard error, as one line."""
    sys.stderr.write(f"error: {one_line(str(error))}\n")


class OptionError(QuintetError):
    """An option, an argument or an environment variable breaks a rule."""


class ConsoleReport:
    """A fetch told on stderr, with a bar where that is a terminal. A context manager: leaving it ends the bar."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __enter__(self) -> ConsoleReport:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def note(self, line: str) -> None:
        self._end()
        sys.stderr.write(f"{one_line(line)}\n")

    def progress(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

            columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("", total=total)
        self._bar.update(self._bar.task_ids[0], completed=done)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
