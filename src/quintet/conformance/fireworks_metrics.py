"""The performance metrics of Fireworks' page, item by item. Pure."""

from __future__ import annotations

from typing import Any

from quintet.conformance.client import LONG, Answer, Client, is_of, need, shown
from quintet.conformance.item import Check, Item, Untold

_ON = {"perf_metrics_in_response": True, "max_tokens": LONG}


def _metrics(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = answer.member("perf_metrics", "object")
    return found


def _number(value: object) -> float | None:
    """A metric's number, also where it is written as a text."""
    if is_of(value, "number"):
        return float(str(value))
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def perf_metrics(client: Client) -> None:
    """In the body when asked for, in JSON and in the chunk with the reason to end; otherwise not."""
    need(bool(_metrics(client.greedy(**_ON))), "they are empty")
    need(not client.greedy().has("perf_metrics"), "they are in the body without being asked for")
    with_them = [chunk for chunk in client.stream(**_ON).chunks if chunk.has("perf_metrics")]
    need(len(with_them) == 1, f"{len(with_them)} chunks have them")
    need(with_them[0].has("choices.0.finish_reason"), "the chunk with them has no finish_reason")


def _in_headers(client: Client) -> None:
    """JSON answers have in their headers what the body would have."""
    answer = client.greedy(**_ON)
    headers = answer.reply.headers
    for name in _metrics(answer):
        need(f"fireworks-{name}" in headers, f"there is no header fireworks-{name}")
    for name in ("prompt-tokens", "server-time-to-first-token"):
        need(f"fireworks-{name}" in client.greedy().reply.headers, f"without asking there is no header fireworks-{name}")


def _dedicated(client: Client, name: str) -> object:
    """A metric of dedicated deployments, which others need not tell.

    Raises:
        Untold: it is not there.
    """
    found = _metrics(client.greedy(**_ON))
    if name not in found:
        raise Untold("it is not told, and the page promises it for dedicated deployments only")
    return found[name]


def _metric(name: str, *, whole: bool = False) -> Check:
    """A dedicated deployment's metric is a number, at least 0."""

    def check(client: Client) -> None:
        found = _dedicated(client, name)
        value = _number(found)
        need(value is not None and value >= 0, f"it is {shown(found)}")
        need(not whole or value == int(value or 0), f"it is {shown(found)}")

    return check


def _prompt_tokens(client: Client) -> None:
    """What the usage says."""
    answer = client.greedy(**_ON)
    need(_number(_metrics(answer).get("prompt-tokens")) == answer.member("usage.prompt_tokens", "integer"), "it is not the usage's")


def _time_order(client: Client) -> None:
    """The first token is there before all are."""
    found = _metrics(client.greedy(**_ON))
    first, last = (_number(found.get(name)) for name in ("server-time-to-first-token", "server-processing-time"))
    need(first is not None and last is not None and 0 <= first <= last, f"the times are {first} and {last}")


def _text(name: str) -> Check:
    def check(client: Client) -> None:
        found = _dedicated(client, name)
        need(isinstance(found, str) and bool(found), f"it is {shown(found)}")

    return check


def _predicted(name: str) -> Check:
    """With a text predicted, which the SDK has a field for, the count is there."""

    def check(client: Client) -> None:
        whole = client.greedy(max_tokens=LONG).text
        found = _metrics(client.greedy(**_ON, prediction={"type": "content", "content": whole}))
        if name not in found:
            raise Untold("it is not told of a request with a prediction, for which the page has no field")
        value = _number(found[name])
        need(value is not None and value >= 0, f"it is {shown(found[name])}")

    return check


def _acceptance(client: Client) -> None:
    _dedicated(client, "speculation-acceptance")


METRICS = (
    Item(
        "perf_metrics.headers",
        "Performance metrics are always included in response headers (e.g., `fireworks-prompt-tokens`, "
        "`fireworks-server-time-to-first-token`).",
        _in_headers,
    ),
    Item("perf_metrics.prompt-tokens", "`prompt-tokens`: Number of tokens in the prompt", _prompt_tokens),
    Item(
        "perf_metrics.server-time-to-first-token",
        "`server-time-to-first-token`: Time from request start to first token (in seconds)",
        _time_order,
    ),
    Item("perf_metrics.server-processing-time", "`server-processing-time`: Total processing time (in seconds", _time_order),
    Item(
        "perf_metrics.speculation-prompt-tokens",
        "`speculation-prompt-tokens`: Number of speculative prompt tokens",
        _predicted("speculation-prompt-tokens"),
    ),
    Item(
        "perf_metrics.speculation-prompt-matched-tokens",
        "`speculation-prompt-matched-tokens`: Number of matched speculative prompt tokens",
        _predicted("speculation-prompt-matched-tokens"),
    ),
    Item(
        "perf_metrics.speculation-generated-tokens",
        "`speculation-generated-tokens`: Number of speculative generated tokens",
        _metric("speculation-generated-tokens", whole=True),
    ),
    Item("perf_metrics.speculation-acceptance", "`speculation-acceptance`: Speculation acceptance rates by position", _acceptance),
    Item(
        "perf_metrics.cached-prompt-tokens",
        "`cached-prompt-tokens`: Number of cached prompt tokens",
        _metric("cached-prompt-tokens", whole=True),
    ),
    Item("perf_metrics.backend-host", "`backend-host`: Hostname of the backend server", _text("backend-host")),
    Item(
        "perf_metrics.num-concurrent-requests",
        "`num-concurrent-requests`: Number of concurrent requests",
        _metric("num-concurrent-requests", whole=True),
    ),
    Item("perf_metrics.deployment", "`deployment`: Deployment name", _text("deployment")),
    Item(
        "perf_metrics.tokenizer-queue-duration",
        "`tokenizer-queue-duration`: Time spent in tokenizer queue",
        _metric("tokenizer-queue-duration"),
    ),
    Item(
        "perf_metrics.tokenizer-duration",
        "`tokenizer-duration`: Time spent in tokenizer",
        _metric("tokenizer-duration"),
    ),
    Item(
        "perf_metrics.prefill-queue-duration",
        "`prefill-queue-duration`: Time spent in prefill queue",
        _metric("prefill-queue-duration"),
    ),
    Item("perf_metrics.prefill-duration", "`prefill-duration`: Time spent in prefill", _metric("prefill-duration")),
    Item(
        "perf_metrics.generation-queue-duration",
        "`generation-queue-duration`: Time spent in generation queue",
        _metric("generation-queue-duration"),
    ),
)
