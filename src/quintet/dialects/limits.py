"""What providers' rate-limit headers have in common. Each one's names, units and bodies are in its own folder."""

from __future__ import annotations

from collections.abc import Sequence

from quintet.errors import OverLimit
from quintet.quota import Meter, Unit


def over_time(meters: Sequence[Meter], unit: Unit, window: float | None = None) -> Meter | None:
    """The limit on ``unit`` per ``window`` seconds; without a window, the one that least is left of. No budget: it never resets."""
    fitting = [meter for meter in meters if meter.unit is unit and meter.window and window in (None, meter.window)]
    return min(fitting, key=lambda meter: meter.remaining, default=None)


def exhausted(error: Exception) -> Meter | None:
    """The limit that an error is about, if it is about one."""
    return error.meter if isinstance(error, OverLimit) else None


def duration(seconds: float) -> str:
    """As OpenAI's page has it: ``1s``, ``6m0s``; below a second as the API does: ``12ms``; to the millisecond."""
    millis = round(seconds * 1000)
    if millis < 1000:
        return f"{millis}ms" if millis else "0s"
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    shown = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    if hours:
        return f"{hours}h{minutes}m{shown}s"
    return f"{minutes}m{shown}s" if minutes else f"{shown}s"
