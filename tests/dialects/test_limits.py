"""Each provider's rate-limit headers and 429, name by name and unit by unit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.dialects.base import Dialect
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.limits import duration
from quintet.errors import OverLimit, Overloaded, TooManyRequests
from quintet.quota import DAY, MINUTE, Meter, Unit

RPM, RPD = Meter(Unit.REQUESTS, MINUTE, 60, 59, 1.0), Meter(Unit.REQUESTS, DAY, 14_400, 14_000, 2400.0)
TPM, TPD = Meter(Unit.TOKENS, MINUTE, 150_000, 149_984, 0.0064), Meter(Unit.TOKENS, DAY, 1_000_000, 900, 86_312.25)
BUDGET = Meter(Unit.TOKENS, 0.0, 500, 7, 0.0)
METERS = (RPM, RPD, TPM, TPD, BUDGET)


def dialect(name: str) -> Dialect:
    return PROVIDERS[name].dialect


HEADERS: dict[str, dict[str, str]] = {
    "openai": {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000000",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "23h58m32.25s",
    },
    "fireworks": {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens-prompt": "150000",
        "x-ratelimit-limit-tokens-generated": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens-prompt": "149984",
        "x-ratelimit-remaining-tokens-generated": "149984",
    },
    "together": {
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "1",
        "x-ratelimit-reset": "1",
        "x-tokenlimit-limit": "2500",
        "x-tokenlimit-remaining": "2500",
    },
    "cerebras": {
        "x-ratelimit-limit-requests-day": "14400",
        "x-ratelimit-limit-tokens-minute": "150000",
        "x-ratelimit-remaining-requests-day": "14000",
        "x-ratelimit-remaining-tokens-minute": "149984",
        "x-ratelimit-reset-requests-day": "2400.0",
        "x-ratelimit-reset-tokens-minute": "0.0064",
    },
    "novita": {},
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_headers_have_the_providers_names_and_units_and_nothing_else(name: str) -> None:
    assert dict(dialect(name).limits(METERS, False)) == HEADERS[name]
    extra = {"x-ratelimit-over-limit": "yes"} if name == "fireworks" else {}
    assert dict(dialect(name).limits(METERS, True)) == HEADERS[name] | extra


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_limit_that_a_key_does_not_have_is_in_no_header(name: str) -> None:
    assert dialect(name).limits((), False) == ()
    assert dialect(name).limits((BUDGET,), False) == ()
    told = {one[0] for one in dialect(name).limits((RPM, RPD), False)}
    assert not any("token" in header for header in told)


@pytest.mark.parametrize(
    ("limit", "left", "shown"),
    [
        (6000, 6000, ("100", "100")),
        (6000, 7, ("100", "7")),
        (30, 30, ("0.5", "0.5")),
        (40, 1, ("0.6667", "0.6667")),
        (30, 0, ("0.5", "0")),
        (90, 2, ("1", "1")),
        (90, 0, ("1", "0")),
    ],
)
def test_together_shows_a_minutes_limit_as_what_it_is_per_second(limit: int, left: int, shown: tuple[str, str]) -> None:
    told = dict(dialect("together").limits((Meter(Unit.REQUESTS, MINUTE, limit, left, 0.2),), False))
    assert (told["x-ratelimit-limit"], told["x-ratelimit-remaining"], told["x-ratelimit-reset"]) == (*shown, "1")


DURATIONS = {
    **{0: "0s", 0.0004: "0s", 0.012: "12ms", 1: "1s", 8.64: "8.64s", 59.709: "59.709s", 59.9996: "1m0s"},
    **{360: "6m0s", 432: "7m12s", 3600: "1h0m0s", 86_399.5: "23h59m59.5s"},
}


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_openais_resets_are_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e6))
def test_a_duration_says_what_it_was_made_of_to_the_millisecond(seconds: float) -> None:
    text = duration(seconds)
    if text.endswith("ms"):
        found = int(text[:-2]) / 1000
    else:
        hours, _, rest = text.rpartition("h")
        minutes, _, last = rest.rpartition("m")
        found = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(last[:-1])
    assert found == pytest.approx(seconds, abs=0.00051)


WORDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # over requests, tokens, a budget
    "openai": (
        {"type": "requests", "param": None, "code": "rate_limit_exceeded"},
        {"type": "tokens", "param": None, "code": "rate_limit_exceeded"},
        {"type": "insufficient_quota", "param": None, "code": "insufficient_quota"},
    ),
    "fireworks": ({"object": "error", "type": "rate_limit_error", "code": "rate_limit_exceeded"},) * 3,
    "together": ({"type": "dynamic_request_limited"}, {"type": "dynamic_token_limited"}, {"type": "dynamic_token_limited"}),
    "cerebras": (
        {
            "message": "Requests per minute limit exceeded - too many requests sent.",
            "type": "too_many_requests_error",
            "param": "quota",
            "code": "request_quota_exceeded",
        },
        {
            "message": "Tokens per day limit exceeded - too many tokens processed.",
            "type": "too_many_requests_error",
            "param": "quota",
            "code": "token_quota_exceeded",
        },
        {"type": "too_many_requests_error", "param": "quota", "code": "token_quota_exceeded"},
    ),
    "novita": ({"code": 429, "reason": "RATE_LIMIT_EXCEEDED"},) * 3,
}


@pytest.mark.fault("B18")
@pytest.mark.parametrize("which", [0, 1, 2], ids=["requests", "tokens", "budget"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_a_refusal_has_the_providers_words_and_says_when_to_come_back(name: str, which: int) -> None:
    error = (OverLimit(RPM, 1, 1.25), OverLimit(TPD, 2000, 94.6), OverLimit(BUDGET, 8, None))[which]
    reply = dialect(name).error(error)
    body = json.loads(reply.body)
    found = body if name in ("cerebras", "novita") else body["error"]
    assert reply.status == 429
    assert WORDS[name][which].items() <= found.items()
    assert found["message"]
    headers = dict(reply.headers)
    if which == 2:
        assert headers == {"x-should-retry": "false"}, "no waiting helps"
    else:
        assert (headers["retry-after"], headers["retry-after-ms"]) == (("2", "1250"), ("95", "94600"))[which]


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_refusal_that_is_about_no_such_limit_is_worded_as_before(name: str) -> None:
    reply = dialect(name).error(TooManyRequests("At most 2 completions at once."))
    assert (reply.status, dict(reply.headers)["retry-after"]) == (429, "1")
    assert b"At most 2 completions at once." in reply.body


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("error", [TooManyRequests("Later.", 0.0), Overloaded("Later.", 0.0)], ids=["429", "503"])
def test_no_refusal_says_to_come_back_in_no_time(name: str, error: Exception) -> None:
    """The SDKs ignore a zero, and wait for as long as they please."""
    headers = dict(dialect(name).error(error).headers)
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "1")


def test_cerebras_says_why_a_request_never_fits() -> None:
    """One without ``max_tokens`` needs the rest of the context; nothing need have been processed."""
    told = json.loads(dialect("cerebras").error(OverLimit(replace(TPD, remaining=TPD.limit), 8190, None)).body)["message"]
    assert told.startswith("Tokens per day limit exceeded - too many tokens processed. Rate limit reached on tokens per day: Limit")
    assert "Requested 8190." in told
