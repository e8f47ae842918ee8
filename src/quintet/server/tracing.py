"""What is told to a tracing system of each completion, whichever it is; ``otel`` is one."""

from __future__ import annotations

from typing import Protocol

from quintet.server.call import Call


class Tracing(Protocol):
    """Hears of completions. Nothing here waits for anybody."""

    def ended(self, call: Call, status: int, seconds: float) -> None:
        """A completion was answered, or refused, so many seconds after it came; ``status``: see ``App``."""
        ...

    def close(self, seconds: float) -> None:
        """Hand over what was kept, for no longer than so many seconds; for a thread that may wait."""
        ...
