"""Every example of the five pages and every field that shapes an answer, through the provider's own SDK in strict mode.

JSON and stream, sync and async. ``_strict_response_validation`` makes the SDKs check each answer and chunk against their types. Two
things they refuse are right all the same, and nothing else is let through:

- OpenAI's SDK types ``finish_reason`` as a string, also in the chunks of a choice that goes on, where OpenAI sends null;
- the SDKs of OpenAI, Cerebras and Together type the first log-probability of an echoed prompt as a number; there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cerebras.cloud.sdk
import fireworks
import openai
import pydantic
import pytest
import together

from support import PATHS, SEEING, TOY, places, served, split_extra


@dataclass(frozen=True)
class Sdk:
    """A provider's SDK: its clients, and how it says that an answer is not of its types."""

    sync: Callable[..., Any]
    asynchronous: Callable[..., Any]
    invalid: type[Exception]


_OPENAI = Sdk(openai.OpenAI, openai.AsyncOpenAI, openai.APIResponseValidationError)
SDKS = {
    "openai": _OPENAI,
    "novita": _OPENAI,
    "together": Sdk(together.Together, together.AsyncTogether, together.APIResponseValidationError),
    "cerebras": Sdk(cerebras.cloud.sdk.Cerebras, cerebras.cloud.sdk.AsyncCerebras, cerebras.cloud.sdk.APIResponseValidationError),
    "fireworks": Sdk(fireworks.Fireworks, fireworks.AsyncFireworks, fireworks.APIResponseValidationError),
}

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

FINISH = {"choices.finish_reason"}
FIRST = {"choices.logprobs.token_logprobs", "choices.logprobs.top_logprobs"}


@dataclass(frozen=True)
class Ask:
    """A request.

    Args:
        count: choices.
        json, stream: the places where the SDK's types refuse what is right.
        modes: in which it makes sense.
        host: who is asked.
    """

    fields: dict[str, Any]
    count: int = 1
    json: set[str] = field(default_factory=set)
    stream: set[str] = field(default_factory=set)
    modes: tuple[str, ...] = ("json", "stream")
    host: str = TOY


def _common(dialect: str, finish: set[str], json: set[str], stream: set[str]) -> dict[str, Ask]:
    """What all five have, but for the kinds of prompt.

    Args:
        finish: where an SDK refuses the chunks of a choice that goes on.
        json, stream: where it refuses the first log-probability of an echo.
    """
    arrays = {} if dialect == "together" else {
        "token ids": Ask({"prompt": [72, 105], "max_tokens": 4}, stream=finish),
        "arrays": Ask({"prompt": ["Hi", "Ho"], "max_tokens": 4, "n": 2}, 4, stream=finish),
        "arrays of ids": Ask({"prompt": [[72, 105], [72]], "max_tokens": 4, "logprobs": 1}, 2, stream=finish),
    }  # fmt: skip
    echo = {} if dialect == "novita" else {
        "echo": Ask({"prompt": "Hi ", "max_tokens": 3, "echo": True}, stream=finish),
        "echo with logprobs": Ask({"prompt": "Hi", "max_tokens": 3, "echo": True, "logprobs": 2}, json=json, stream=finish | stream),
        "scoring": Ask({"prompt": "Hi", "max_tokens": 0, "echo": True, "logprobs": 1}, json=json, stream=finish | stream),
    }  # fmt: skip
    return {
        "plain": Ask({"prompt": "Once upon a time", "max_tokens": 6}, stream=finish),
        "n": Ask({"prompt": "Once", "max_tokens": 5, "n": 3}, 3, stream=finish),
        "logprobs": Ask({"prompt": "Once", "max_tokens": 5, "logprobs": 5}, stream=finish),
        "logprobs 0": Ask({"prompt": "Once", "max_tokens": 5, "logprobs": 0}, stream=finish),
        "stop": Ask({"prompt": "Once", "max_tokens": 60, "stop": ["e", " "]}, stream=finish),
        "all at once": Ask({"prompt": "Once", "max_tokens": 30, "n": 2, "stop": ["th"], "logprobs": 3}, 2, stream=finish),
        "greedy": Ask({"prompt": "Once", "max_tokens": 5, "temperature": 0}, stream=finish),
        "penalties": Ask(
            {"prompt": "Once", "max_tokens": 5, "frequency_penalty": 0.5, "presence_penalty": -0.5, "logit_bias": {"101": 5}}, stream=finish
        ),
        **arrays,
        **echo,
    }


FIREWORKS_PAGE: dict[str, Any] = {
    "prompt": "The sky is", "max_tokens": 16, "echo_last": 1, "temperature": 1, "top_p": 1, "top_k": 50, "frequency_penalty": 0,
    "perf_metrics_in_response": False, "presence_penalty": 0, "repetition_penalty": 1, "reasoning_effort": "none",
    "mirostat_lr": 0.1, "mirostat_target": 123, "n": 1, "ignore_eos": False, "stop": "<string>", "response_format": None,
    "context_length_exceeded_behavior": "truncate", "logprobs": True, "top_logprobs": None, "echo": False, "min_p": 0,
    "typical_p": 1, "logit_bias": {}, "user": "<string>",
}  # fmt: skip

ASKS: dict[str, dict[str, Ask]] = {
    "openai": {
        "the page": Ask({"prompt": "Say this is a test", "max_tokens": 7, "temperature": 0}, stream=FINISH),
        **_common("openai", FINISH, FIRST, FIRST),
        "best_of": Ask({"prompt": "Once", "max_tokens": 5, "best_of": 3, "n": 2}, 2, modes=("json",)),
        "usage": Ask({"prompt": "Once", "max_tokens": 5, "stream_options": {"include_usage": True}}, stream=FINISH, modes=("stream",)),
        "obfuscation": Ask(
            {"prompt": "Once", "max_tokens": 5, "stream_options": {"include_obfuscation": True}}, stream=FINISH, modes=("stream",)
        ),
    },
    "fireworks": {
        "the page": Ask(FIREWORKS_PAGE),
        "the page, with images": Ask({**FIREWORKS_PAGE, "prompt": "<image>The sky is", "images": [PNG]}, host=SEEING),
        **_common("fireworks", set(), set(), set()),
        "new logprobs": Ask({"prompt": "Hi", "max_tokens": 5, "logprobs": True, "top_logprobs": 3}),
        "new logprobs with echo": Ask({"prompt": "Hi", "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "echo": True}),
        "metrics": Ask({"prompt": "Hi", "max_tokens": 5, "perf_metrics_in_response": True}),
        "token ids and raw output": Ask({"prompt": "Hi", "max_tokens": 5, "return_token_ids": True, "raw_output": True, "logprobs": 1}),
        "an image": Ask({"prompt": "<image>What is it?", "images": [PNG], "max_tokens": 9, "echo": True, "logprobs": 1}, host=SEEING),
        "images for each prompt": Ask({"prompt": ["<image>", "<image>!"], "images": [[PNG], [PNG]], "max_tokens": 9}, 2, host=SEEING),
        "a long max_tokens": Ask({"prompt": "Hi", "max_tokens": 10**6, "stop": ["e"]}),
    },
    "together": {
        "the page": Ask({"prompt": "<s>[INST] What is the capital of France? [/INST]", "stop": ["</s>"], "seed": 42}),
        **_common("together", set(), {"prompt.logprobs.token_logprobs"}, set()),
        "sampling": Ask({"prompt": "Once", "max_tokens": 5, "top_k": 50, "min_p": 0.1, "repetition_penalty": 1.1, "top_p": 0.7}),
    },
    "cerebras": {
        "the page": Ask({"prompt": "It was a dark and stormy night", "max_tokens": 100, "logprobs": 5}),
        "the page's second": Ask({"prompt": "It was a dark and stormy night", "logprobs": 5, "stop": ["."]}),
        **_common("cerebras", set(), FIRST, FIRST),
        "raw tokens": Ask({"prompt": [1, 2, 3], "max_tokens": 8, "logprobs": 0, "return_raw_tokens": True}),
        "min_tokens": Ask({"prompt": "Once", "max_tokens": 8, "min_tokens": 8}),
        "grammar": Ask({"prompt": "Once", "max_tokens": 8, "grammar_root": "number"}),
    },
    "novita": {
        "the page": Ask({
            "prompt": "The sky is", "max_tokens": 5, "n": 1, "seed": 1, "frequency_penalty": 0, "presence_penalty": 0,
            "repetition_penalty": 1, "stop": None, "temperature": 1, "top_p": 1, "top_k": 50, "min_p": 0, "logit_bias": {}, "logprobs": 1,
            "best_of": 1,
        }, stream=FINISH),
        **_common("novita", FINISH, set(), set()),
        "usage": Ask({"prompt": "Once", "max_tokens": 5, "stream_options": {"include_usage": True}}, stream=FINISH, modes=("stream",)),
    },
}  # fmt: skip

CASES = [(dialect, ask) for dialect, asks in ASKS.items() for ask in asks]


def arguments(dialect: str, ask: Ask, create: Callable[..., Any], stream: bool) -> dict[str, Any]:
    fields = {"model": "seeing" if "images" in ask.fields else "toy", "seed": 5, **served(dialect, ask.fields)}
    if stream:
        fields["stream"] = True
    if dialect == "cerebras" and ask.fields.get("stop") is None:
        fields.setdefault("max_tokens", 20)
    if dialect in ("fireworks", "together"):  # their pages have no such options
        fields.pop("stream_options", None)
    split: dict[str, Any] = split_extra(create, fields)
    return split


def text_of(choice: Any) -> Any:
    return choice.text if getattr(choice, "text", None) is not None else choice.tokens


def folded(chunks: list[Any], count: int) -> list[Any]:
    """The chunks' texts, or token ids, joined per choice."""
    parts: list[list[Any]] = [[] for _ in range(count)]
    for chunk in chunks:
        for choice in chunk.choices:
            parts[choice.index].append(text_of(choice))
    return ["".join(part) if part and isinstance(part[0], str) else [token for piece in part for token in piece] for part in parts]


def refusals(answers: list[Any]) -> set[str]:
    """Where the SDK's own types refuse answers that it parsed leniently."""
    found: set[str] = set()
    for answer in answers:
        try:
            type(answer).model_validate(answer.to_dict(mode="json"))
        except pydantic.ValidationError as error:
            found |= places(error.errors())
    return found


def ask_sync(dialect: str, ask: Ask, stream: bool, strict: bool) -> list[Any]:
    sdk = SDKS[dialect]
    options = {"base_url": ask.host + PATHS[dialect], "api_key": "local", "max_retries": 0, "_strict_response_validation": strict}
    with sdk.sync(**options) as client:
        answer = client.completions.create(**arguments(dialect, ask, client.completions.create, stream))
        return list(answer) if stream else [answer]


def ask_async(dialect: str, ask: Ask, stream: bool, strict: bool) -> list[Any]:
    async def go() -> list[Any]:
        options = {"base_url": ask.host + PATHS[dialect], "api_key": "local", "max_retries": 0, "_strict_response_validation": strict}
        async with SDKS[dialect].asynchronous(**options) as client:
            answer = await client.completions.create(**arguments(dialect, ask, client.completions.create, stream))
            return [chunk async for chunk in answer] if stream else [answer]

    return asyncio.run(go())


ASKERS = {"sync": ask_sync, "async": ask_async}


@pytest.mark.parametrize("how", ASKERS)
@pytest.mark.parametrize(("dialect", "name"), CASES)
def test_the_sdk_takes_the_answer_and_every_chunk(dialect: str, name: str, how: str) -> None:
    ask = ASKS[dialect][name]
    texts: dict[str, list[Any]] = {}
    for mode in ask.modes:
        stream, expected = mode == "stream", ask.stream if mode == "stream" else ask.json
        if expected:
            with pytest.raises(SDKS[dialect].invalid):
                ASKERS[how](dialect, ask, stream, True)
        answers = ASKERS[how](dialect, ask, stream, not expected)
        assert refusals(answers) == expected
        texts[mode] = folded(answers, ask.count) if stream else [text_of(choice) for choice in answers[0].choices]
        check_answers(dialect, ask, answers, stream)
    assert len({repr(value) for value in texts.values()}) == 1, texts


def check_answers(dialect: str, ask: Ask, answers: list[Any], stream: bool) -> None:
    """What any client counts on."""
    choices = [choice for answer in answers for choice in answer.choices]
    if stream:
        assert {choice.index for choice in choices} == set(range(ask.count))
    else:
        assert len(choices) == ask.count
    assert len({answer.id for answer in answers}) == 1
    reasons = [getattr(choice, "finish_reason", None) for choice in choices]
    if dialect == "together" and stream:
        reasons = [answer.finish_reason for answer in answers]
    assert len([reason for reason in reasons if reason]) == ask.count
    options = ask.fields.get("stream_options", {})
    silent = stream and dialect == "openai" and not options.get("include_usage")  # unless it is asked for
    usages = [usage for answer in answers if (usage := answer.usage)]
    assert len(usages) == (0 if silent else 1)
    for usage in usages:
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
