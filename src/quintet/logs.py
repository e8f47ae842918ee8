"""The log: lines in one form, whoever writes them, to a stream that may not be read: they are written as far as they are taken at once,
kept for a while, then dropped and counted.

A process that writes its log the ordinary way stands still when the pipe to whoever reads it is full, in the middle of an answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

from quintet.errors import counted

MOST_KEPT = 4096
"""Lines that wait for a reader, or for room on a disk. A pipe holds some 400 more."""

_AT_ONCE = select.PIPE_BUF
"""Bytes that a stream which takes any takes whole, without waiting (POSIX, ``write``)."""

JSON, TEXT = "json", "text"
FORMS = (JSON, TEXT)

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that is being answered: of every line that is written meanwhile, whoever writes it."""

Facts = Mapping[str, str | float | None]


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
            with contextlib.suppress(OSError):  # a full disk, which may have taken half a line; or nobody will ever read it
                self._flush()

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
                self._kept.append(f"{counted(self.dropped, 'line')} of the log dropped: there was no room\n".encode())
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


class JsonForm(Discreet):
    """A record as an object of JSON: ``time``, ``level``, ``logger``, ``message``, and whatever facts it has."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging``."""
        told: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        told |= {"message": said} if (said := _said(record)) else {}
        told |= _facts(record)
        told |= {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps(told, separators=(",", ":"))


class TextForm(Discreet):
    """The same for people: a line, its facts as ``name=value``, and after it the lines of an exception."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """See ``logging``."""
        facts = _facts(record)
        parts = [str(facts.pop("time", "")) or _time(record), record.levelname, f"{record.name}:", _said(record)]
        return " ".join([*filter(None, parts), *(f"{name}={value}" for name, value in facts.items())])


def _said(record: logging.LogRecord) -> str:
    """The message. After its first line asyncio's shows the values that were at hand."""
    said = record.getMessage()
    return said.partition("\n")[0] if record.name == "asyncio" else said


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _facts(record: logging.LogRecord) -> dict[str, str | float]:
    """Those that are known, with the request's id where the record is of one."""
    given: Facts = getattr(record, "facts", {})
    known = {name: fact for name, fact in given.items() if fact is not None and fact != ""}
    request = REQUEST.get()
    return known | {"request_id": request} if request and "request_id" not in known else known


def set_up(level: str, form: str) -> None:
    """From here on all that is logged goes to stderr.

    Args:
        level: name of the level.
        form: one of ``FORMS``.
    """
    logging.basicConfig(level=level, handlers=[LinesHandler(Lines(2), form)])


def form_in_use() -> str:
    """That of ``set_up``, for a child."""
    return next((handler.form for handler in logging.getLogger().handlers if isinstance(handler, LinesHandler)), TEXT)


class LinesHandler(logging.Handler):
    """Log records as lines.

    Args:
        form: one of ``FORMS``.
    """

    def __init__(self, lines: Lines, form: str = TEXT) -> None:
        super().__init__()
        self._lines = lines
        self.form = form
        self.setFormatter(JsonForm() if form == JSON else TextForm())

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``."""
        try:
            self._lines.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
