"""Fireworks' rate limits. Page: https://docs.fireworks.ai/guides/quotas_usage/rate-limits, quoted as "page" below."""

from __future__ import annotations

from collections.abc import Sequence

from quintet.dialects.base import Headers
from quintet.dialects.limits import over_time
from quintet.quota import MINUTE, Meter, Unit

_TOKENS = ("tokens-prompt", "tokens-generated")
"""Here one limit holds for both: prompts and what is generated draw on the same tokens."""


def headers(meters: Sequence[Meter], over: bool) -> Headers:
    """Page: ``x-ratelimit-limit-requests``, ``x-ratelimit-limit-tokens-prompt`` and ``-tokens-generated``, "the maximum number of requests
    or tokens that are permitted per minute"; ``x-ratelimit-remaining-`` likewise; no resets. "x-ratelimit-over-limit: yes".
    """
    requests, tokens = (over_time(meters, unit, MINUTE) for unit in Unit)
    shown = [("requests", requests), *((name, tokens) for name in _TOKENS)]
    limits = [(f"x-ratelimit-limit-{name}", str(meter.limit)) for name, meter in shown if meter]
    remaining = [(f"x-ratelimit-remaining-{name}", str(meter.remaining)) for name, meter in shown if meter]
    exceeded = [("x-ratelimit-over-limit", "yes")] if over else []
    return (*limits, *remaining, *exceeded)
