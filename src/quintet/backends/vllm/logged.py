"""vLLM's log in all its processes: lines in the form of ours, which do not tell what was in a prompt; and, for who has to tell it in one
line, why vLLM does not start. Its processes read the settings from a file that ``settle`` writes and the environment names."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

from quintet import logs
from quintet.backends.vllm.values import in_one_line

_SETTINGS, _REASON = "log.json", "reason"
MOST = 600
"""Characters of a reason."""


class StartHandler(logging.Handler):
    """Lines as ``logs`` writes them; and the first error while ``folder`` is there goes into it: with the start, it goes away.

    Args:
        folder: that only this user can enter.
        form: see ``logs``.
    """

    def __init__(self, folder: str, form: str) -> None:
        super().__init__()
        self._reason = Path(folder) / _REASON
        self._lines = logs.LinesHandler(logs.Lines(2), form)

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``."""
        if record.exc_info and (error := record.exc_info[1]) is not None:
            with contextlib.suppress(OSError), self._reason.open("x", encoding="utf-8", errors="replace") as file:
                file.write(f"{type(error).__name__}: {in_one_line(error, MOST)}")
        self._lines.emit(record)


def settle(folder: Path, level: str) -> None:
    """Before vLLM is imported: its processes log so."""
    handler = {"()": f"{__name__}.{StartHandler.__name__}", "folder": str(folder), "form": logs.form_in_use()}
    logger = {"handlers": ["quintet"], "level": level, "propagate": False}
    settings = {"version": 1, "disable_existing_loggers": False, "handlers": {"quintet": handler}, "loggers": {"vllm": logger}}
    (folder / _SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(folder / _SETTINGS))


def reason(folder: Path) -> str:
    """What went wrong first in one of its processes; empty = nothing was told."""
    with contextlib.suppress(OSError):
        return (folder / _REASON).read_text(encoding="utf-8")
    return ""
