"""OpenAI's rate limits. Page: https://platform.openai.com/docs/guides/rate-limits, quoted as "page" below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quintet.dialects.base import Fault, Headers, fault
from quintet.dialects.limits import duration, exhausted, over_time
from quintet.quota import Meter, Unit


def headers(meters: Sequence[Meter]) -> Headers:
    """Page, "Rate limits in headers": ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``; a reset is such as ``1s`` or ``6m0s``.

    There is one of each unit: of limits per minute and per day the one that least is left of, as the API does.
    """
    told: list[tuple[str, str]] = []
    for unit in Unit:
        if meter := over_time(meters, unit):
            told.append((f"x-ratelimit-limit-{unit.value}", str(meter.limit)))
            told.append((f"x-ratelimit-remaining-{unit.value}", str(meter.remaining)))
            told.append((f"x-ratelimit-reset-{unit.value}", duration(meter.reset)))
    return tuple(told)


def worded(error: Exception) -> Fault:
    """An error in OpenAI's words.

    Recorded: {"message": "Rate limit reached for ... on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.",
    "type": "requests", "param": null, "code": "rate_limit_exceeded"}; "tokens" likewise. Where money is used up, "type" and "code" are
    "insufficient_quota".
    """
    known, meter = fault(error), exhausted(error)
    if meter is None:
        return known
    return replace(known, type=meter.unit.value) if meter.window else replace(known, type="insufficient_quota", code="insufficient_quota")
