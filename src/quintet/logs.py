"""Lines to a stream that may not be read: they are written as far as they are taken at once, kept for a while, then dropped and counted.

A process that writes its log the ordinary way stands still when the pipe to whoever reads it is full, in the middle of an answer.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import traceback
from collections import deque
from types import TracebackType

MOST_KEPT = 4096
"""Lines that wait for a reader. A pipe holds some 400 more."""

_AT_ONCE = select.PIPE_BUF
"""Bytes that a stream which takes any takes whole, without waiting (POSIX, ``write``)."""

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Lines:
    """Writes to a file descriptor and never waits for it. For any thread.

    Args:
        fd: 1 or 2; one that is closed takes nothing, and that is no error.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._ready = select.poll()
        self._ready.register(fd, select.POLLOUT)
        self.dropped = 0
        """Lines that were, since the last one that was taken."""

    def write(self, text: str) -> None:
        """Write a text that ends with a line break, now or when a later one is."""
        with self._lock:
            if len(self._kept) < MOST_KEPT:
                self._kept.append(text.encode("utf-8", "backslashreplace"))
            else:
                self.dropped += 1
            try:
                self._flush()
            except OSError:  # closed, or a full disk
                self._kept.clear()

    def _flush(self) -> None:
        while self._kept:
            if not self._takes():
                return
            line = self._kept[0]
            taken = os.write(self._fd, line[:_AT_ONCE])
            self._kept[0] = line[taken:]
            if taken == len(line):
                self._kept.popleft()
            if not self._kept and self.dropped:
                self._kept.append(b"%d lines of the log were dropped: nobody read them\n" % self.dropped)
                self.dropped = 0

    def _takes(self) -> bool:
        return any(event & select.POLLOUT for _, event in self._ready.poll(0))


Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
"""``sys.exc_info``."""


class Discreet(logging.Formatter):
    """Tells of an exception what it is and where it came from, and not what it says or has at hand: that may be a prompt."""

    def formatException(self, ei: Raised) -> str:  # noqa: N802  # logging's name
        """See ``logging``."""
        told, error, seen = [], ei[1], set[int]()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            told.append("".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__)
            error = error.__cause__ or error.__context__
        return "\nraised while handling:\n".join(told)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """See ``logging``."""
        if record.name == "asyncio":  # after its first line it shows the values that were at hand
            record.message = record.message.partition("\n")[0]
        return super().formatMessage(record)


class LinesHandler(logging.Handler):
    """Log records as lines."""

    def __init__(self, lines: Lines, form: str = "%(message)s") -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(Discreet(form))

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``."""
        try:
            self._lines.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
