"""What a server tells of itself, and in what form: the options of its log and of its spans."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quintet import logs


@dataclass(frozen=True, slots=True)
class TellOptions:
    """
    Args:
        log_level: its name in any case.
        log_format: one of ``logs.FORMS``; ``None`` = text on a terminal, else JSON.
        otlp_endpoint: base URL of an OpenTelemetry collector; empty = that of the standard variables, if they name one.
    """

    log_level: str
    log_format: str | None = None
    otlp_endpoint: str = ""

    @property
    def level(self) -> str:
        """The level's name in small letters."""
        return self.log_level.lower()

    @property
    def form(self) -> str:
        """The form of the log's lines."""
        return self.log_format or (logs.TEXT if os.isatty(2) else logs.JSON)
