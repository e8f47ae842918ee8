"""Cerebras' rate limits. Page: https://inference-docs.cerebras.ai/support/rate-limits, quoted as "page" below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quintet.dialects.base import Fault, Headers, fault
from quintet.dialects.limits import exhausted, over_time
from quintet.errors import OverLimit
from quintet.quota import DAY, MINUTE, Meter, Unit

# Page: only these two limits are in the headers, whatever others there are.
_SHOWN = ((Unit.REQUESTS, DAY, "requests-day"), (Unit.TOKENS, MINUTE, "tokens-minute"))

# Recorded: {"message": "Requests per minute limit exceeded - too many requests sent.", "type": "too_many_requests_error", "param": "quota",
# "code": "request_quota_exceeded"} and "Tokens per minute limit exceeded - too many tokens processed.", "token_quota_exceeded".
_CODES = {
    Unit.REQUESTS: ("request_quota_exceeded", "too many requests sent"),
    Unit.TOKENS: ("token_quota_exceeded", "too many tokens processed"),
}


def headers(meters: Sequence[Meter]) -> Headers:
    """Page: ``x-ratelimit-limit-requests-day: 1000000000``, ``x-ratelimit-remaining-requests-day: 999997455``,
    ``x-ratelimit-reset-requests-day: 33011.382867097855``, "Time (in seconds)", and the same of ``tokens-minute``.
    """
    shown = [(name, meter) for unit, window, name in _SHOWN if (meter := over_time(meters, unit, window))]
    return (
        *((f"x-ratelimit-limit-{name}", str(meter.limit)) for name, meter in shown),
        *((f"x-ratelimit-remaining-{name}", str(meter.remaining)) for name, meter in shown),
        *((f"x-ratelimit-reset-{name}", str(float(meter.reset))) for name, meter in shown),
    )


def worded(error: Exception) -> Fault:
    """An error in Cerebras' words."""
    known, meter = fault(error), exhausted(error)
    if meter is None:
        return replace(known, param="quota") if known.status == 429 else known
    code, why = _CODES[meter.unit]
    name = f"{meter.unit.value.capitalize()} per {meter.per} limit" if meter.per else f"{meter.unit.value.capitalize()} budget"
    never = f" {known.message}" if isinstance(error, OverLimit) and error.permanent else ""  # nothing need have been processed
    return replace(known, message=f"{name} exceeded - {why}.{never}", param="quota", code=code)
