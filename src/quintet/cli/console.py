"""What commands write for people: notes and progress on stderr, so that stdout stays the answer."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from quintet.errors import QuintetError

stdout = Console(highlight=False, soft_wrap=True)


class OptionError(QuintetError):
    """An option, an argument or an environment variable breaks a rule."""


class ConsoleReport:
    """A fetch told on stderr, with a bar where that is a terminal. A context manager: leaving it ends the bar."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> ConsoleReport:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def note(self, line: str) -> None:
        self._end()
        sys.stderr.write(f"{line}\n")

    def progress(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=done)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
