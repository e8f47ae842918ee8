"""Together's rate limits. Page: https://docs.together.ai/docs/rate-limits, quoted as "page" below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from quintet.dialects.base import Fault, Headers
from quintet.dialects.limits import exhausted, over_time
from quintet.quota import MINUTE, Meter, Unit

_TYPES = {Unit.REQUESTS: "dynamic_request_limited", Unit.TOKENS: "dynamic_token_limited"}


def headers(meters: Sequence[Meter]) -> Headers:
    """Page: "Our rate limits are currently measured in requests per second (RPS) and tokens per second (TPS)".

    ``x-ratelimit-limit``, ``-remaining`` and ``-reset`` are of requests, "the time until the rate limit (based on requests per sec) resets
    to its initial state" in seconds; ``x-tokenlimit-limit`` and ``-remaining`` of tokens. A key's limits are per minute: they are shown as
    what that is per second, and a burst of more than a second's worth is let through.
    """
    requests, tokens = (over_time(meters, unit, MINUTE) for unit in Unit)
    found: list[tuple[str, str]] = []
    if requests:
        found += [(f"x-ratelimit-{name}", value) for name, value in _per_second(requests)]
        found.append(("x-ratelimit-reset", str(math.ceil(requests.reset))))
    if tokens:
        found += [(f"x-tokenlimit-{name}", value) for name, value in _per_second(tokens)]
    return tuple(found)


def worded(known: Fault, error: Exception) -> Fault:
    """Page: 429 with the error type ``dynamic_request_limited`` ("request-based") or ``dynamic_token_limited`` ("token-based")."""
    meter = exhausted(error)
    return replace(known, type=_TYPES[meter.unit]) if meter else known


def _per_second(meter: Meter) -> tuple[tuple[str, str], tuple[str, str]]:
    """What is left is never more than the limit, which may be less than one."""
    limit = meter.limit / meter.window
    shown = f"{limit:.4g}" if limit < 1 else str(int(limit))
    return ("limit", shown), ("remaining", str(meter.remaining) if meter.remaining < limit else shown)
