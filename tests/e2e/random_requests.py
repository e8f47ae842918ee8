"""Random requests in all five dialects that ask for whatever may change a byte, and their answers without what may differ between runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

from quintet.dialects.catalog import PROVIDERS

PATHS = {name: f"{provider.bases[0]}/completions" for name, provider in PROVIDERS.items()}

TEXTS = (
    "The history of the city",
    "def fib(n):\n    ",
    "Once upon a time, there was a",
    "1, 2, 3, 4,",
    "Q: What is the capital of France?\nA:",
    '{"name": "',
    "日本の首都は",
    "Hello 🙂 world",
    "a b c a b c a b c a b",
    " ",
    "\n\n",
    "x" * 40,
    "import os\nimport sys\n\nclass A:\n    def __init__(self",
    "The quick brown fox jumps over the lazy dog. " * 9,
)
LONG = " ".join(f"Item {i} is worth {i * 7 % 13} coins." for i in range(60))

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

SOMETIMES: tuple[tuple[float, dict[str, tuple[object, ...]]], ...] = (
    (0.3, {"top_p": (0.5, 0.9, 0.95)}),
    (0.2, {"top_k": (1, 5, 40)}),
    (0.15, {"min_p": (0.05,)}),
    (0.15, {"typical_p": (0.9,)}),
    (0.15, {"repetition_penalty": (1.2,)}),
    (0.15, {"frequency_penalty": (0.5,), "presence_penalty": (-0.5, 0.5)}),
    (0.1, {"xtc_probability": (0.5,), "xtc_threshold": (0.1,)}),
    (0.1, {"dry_multiplier": (0.8,)}),
    (0.3, {"stop": (["."], ["\n"], ["e "], ["the", " a "], ["zzz"])}),
    (0.25, {"n": (2, 3)}),
    (0.3, {"ignore_eos": (True,)}),
    (0.3, {"return_token_ids": (True,)}),
    (0.3, {"stream": (True,)}),
)
"""How often, and the values of fields that every dialect takes."""

GUIDES: tuple[dict[str, object], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": r"[0-9]{3}-[a-z]{2,8}\."}},
    {"structured_outputs": {"choice": ["yes", "no", "maybe so"]}},
    {"prediction": {"type": "content", "content": TEXTS[0]}},
)

VARIES = frozenset({"id", "created", "system_fingerprint", "time_info", "perf_metrics", "prompt_tokens_details"})
"""What two runs, or two configurations, may differ by: names, times, and what came out of a cache."""


def random_request(rng: Random, most_tokens: int) -> tuple[str, dict[str, object]]:
    """Dialect and body."""
    dialect = rng.choice([*PATHS])
    body: dict[str, object] = {"prompt": _prompt(rng, lists=dialect != "together"), "seed": rng.randrange(1 << 31)}
    body |= {"max_tokens": rng.choice((1, 2, 5, 16, most_tokens)), "temperature": rng.choice((0, 0, 0.3, 0.8, 1.0, 1.0, 1.5))}
    for share, fields in SOMETIMES:
        if rng.random() < share:
            body |= {name: rng.choice(values) for name, values in fields.items()}
    if rng.random() < 0.4:
        body["logprobs"] = 1 if dialect == "together" else rng.choice((0, 1, 3, 5))
    if rng.random() < 0.25 and dialect != "novita":  # whose page has none
        body["echo"] = True
    if rng.random() < 0.1:
        body["logit_bias"] = {str(rng.randrange(3, 40_000)): rng.choice((-100, 5, -5)) for _ in range(3)}
    if rng.random() < 0.1 and dialect == "fireworks":
        body |= {"mirostat_target": 4.0, "mirostat_lr": 0.1}
    if rng.random() < 0.3 and dialect in ("openai", "novita") and "stream" not in body:
        body["best_of"] = 4
    if rng.random() < 0.17:
        body |= rng.choice(GUIDES)
    return dialect, body


def _prompt(rng: Random, *, lists: bool) -> object:
    def text() -> str:
        return rng.choice(TEXTS) if rng.random() < 0.8 else LONG[: rng.randrange(10, len(LONG))]

    kind = rng.random() if lists else 0
    if kind < 0.6:
        return text()
    if kind < 0.85:
        return [text() for _ in range(rng.randrange(1, 4))]
    return [rng.randrange(3, 40_000) for _ in range(rng.randrange(1, 60))]


def without_what_varies(answer: Any) -> Any:
    """Of a body."""
    if isinstance(answer, dict):
        return {name: without_what_varies(value) for name, value in answer.items() if name not in VARIES}
    return [without_what_varies(one) for one in answer] if isinstance(answer, list) else answer


def joined(stream: str) -> dict[str, object]:
    """Of a stream what each choice is in the end: where a chunk ends depends on when tokens came."""
    found: dict[str, object] = {}
    for line in stream.splitlines():
        if line.startswith("data: {"):
            event = without_what_varies(json.loads(line[6:]))
            for choice in event.pop("choices", []):
                _join(found, f"choice {choice.pop('index', 0)}", choice)
            if "error" in event:
                found["error"] = event["error"]
    return found


def _join(found: dict[str, object], path: str, value: object) -> None:
    before = found.get(path)
    if isinstance(value, dict):
        for name, part in value.items():
            _join(found, f"{path}.{name}", part)
    elif isinstance(value, list):
        found[path] = [*(before if isinstance(before, list) else ()), *value]
    elif isinstance(before, str) and path.endswith("text"):
        found[path] = f"{before}{value or ''}"
    elif value is not None:
        found[path] = value


def in_short(requests: Iterable[tuple[str, dict[str, object]]]) -> str:
    """For a test that failed, to be sent again by hand."""
    return "\n".join(f"POST {PATHS[dialect]} {json.dumps(body)}" for dialect, body in requests)
