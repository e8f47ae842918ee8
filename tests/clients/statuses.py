"""Which exception each SDK raises for each status, how often it tries, and how long it waits between tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cerebras.cloud.sdk
import fireworks
import openai
import pytest
import together

from support import PATHS, SCENARIOS, attempts

CLIENTS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "openai": (openai, openai.OpenAI),
    "novita": (openai, openai.OpenAI),
    "together": (together, together.Together),
    "cerebras": (cerebras.cloud.sdk, cerebras.cloud.sdk.Cerebras),
    "fireworks": (fireworks, fireworks.Fireworks),
}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        scenario: of ``scenarios.py``.
        fields: over those of a sound request.
        headers: to send along.
        tries: with the SDKs' two retries.
        waits: seconds between them; ``None`` = as the SDK likes.
    """

    scenario: str
    status: int
    name: str
    tries: int = 1
    fields: tuple[tuple[str, Any], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    waits: float | None = None


ROWS = {
    "400": Row("sound", 400, "BadRequestError", fields=(("max_tokens", -1),)),
    "401": Row("keyed", 401, "AuthenticationError"),
    "404": Row("sound", 404, "NotFoundError", fields=(("model", "another"),)),
    "408": Row("sluggish", 408, "APIStatusError", 3),
    "413": Row("small", 413, "APIStatusError", fields=(("prompt", "a" * 1000),)),
    "415": Row("sound", 415, "APIStatusError", headers=(("Content-Type", "application/xml"),)),
    "429": Row("limited", 429, "RateLimitError", 3, waits=0.05),
    "500": Row("buggy", 500, "InternalServerError", 3),
    "500 of the engine": Row("breaks-at-once", 500, "InternalServerError", 3),
    "503": Row("full", 503, "InternalServerError", 3, waits=0.05),
    "504": Row("late", 504, "InternalServerError"),
}
"""422 is missing because no dialect here has it: what is wrong with a body is a 400."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the SDKs sleep, which they then need not."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("provider", CLIENTS)
def test_class_tries_and_waits(provider: str, row: str, stream: bool, waits: list[float]) -> None:
    asked = ROWS[row]
    module, client = CLIENTS[provider]
    attempts(asked.scenario)
    with client(base_url=f"{SCENARIOS}/{asked.scenario}{PATHS[provider]}", api_key="sk-wrong") as made:
        waits.clear()  # Cerebras' SDK warms its connection up when it is made
        fields = {"model": "scripted", "prompt": "a", "max_tokens": 3, "stream": stream, **dict(asked.fields)}
        with pytest.raises(getattr(module, asked.name)) as caught:
            made.completions.create(**fields, extra_headers=dict(asked.headers))
    assert type(caught.value).__name__ == asked.name
    assert caught.value.status_code == asked.status
    assert attempts(asked.scenario) == asked.tries
    assert len(waits) == asked.tries - 1
    if asked.waits is not None:
        assert waits == [pytest.approx(asked.waits)] * 2  # retry-after-ms
    assert "secret" not in str(caught.value)
    assert len(message(caught.value)) > 10


def message(error: Any) -> str:
    """The server's own words, as the SDK's users find them."""
    body = error.body
    assert isinstance(body, dict)
    found = body.get("message") or body["error"]["message"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("provider", ["openai", "cerebras", "novita"])
def test_the_error_names_its_field(provider: str) -> None:
    """Fireworks' and Together's SDKs have no attribute for it; their ``body`` does."""
    module, client = CLIENTS[provider]
    with client(base_url=f"{SCENARIOS}/sound{PATHS[provider]}", api_key="x") as made, pytest.raises(module.BadRequestError) as caught:
        made.completions.create(model="scripted", prompt="a", max_tokens=-1)
    assert "'max_tokens'" in message(caught.value)
    assert "-1" in message(caught.value)
    if provider == "openai":
        assert (caught.value.param, caught.value.code) == ("max_tokens", "invalid_value")
        assert caught.value.request_id


@pytest.mark.parametrize("provider", CLIENTS)
def test_a_right_key_is_taken(provider: str) -> None:
    _, client = CLIENTS[provider]
    with client(base_url=f"{SCENARIOS}/keyed{PATHS[provider]}", api_key="sk-right") as made:
        assert made.completions.create(model="scripted", prompt="a", max_tokens=1).choices[0].text == " the"


def test_cerebras_warming_is_answered_without_delay() -> None:
    """Its constructor asks, with a time-out of one second, and tries again on a failure."""
    begun = time.monotonic()
    for _ in range(5):
        cerebras.cloud.sdk.Cerebras(base_url=f"{SCENARIOS}/slow/cerebras", api_key="x").close()
    assert time.monotonic() - begun < 5
