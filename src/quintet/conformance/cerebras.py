"""Cerebras' page, item by item. Pure."""

from __future__ import annotations

import json
from typing import Any

from quintet.conformance import answers as a
from quintet.conformance import controls as c
from quintet.conformance import logprobs as lp
from quintet.conformance.client import Client, member, need, shown
from quintet.conformance.item import Check, Item, Page, Untold
from quintet.errors import counted

GREEDY = {"temperature": 0}
MODELS = (
    "llama3.1-8b",
    "llama-3.3-70b",
    "qwen-3-32b",
    "qwen-3-235b-a22b-instruct-2507",
    "qwen-3-235b-a22b-thinking-2507",
    "qwen-3-coder-480b",
)
ROOTS = ("root", "fcall", "nofcall", "insidevalue", "value", "object", "array", "string", "number", "funcarray", "func", "ws")


def _names(client: Client) -> None:
    """One at least of the page's names is served."""
    replies = [client.reply(client.body({**GREEDY, "model": name, "max_tokens": 1})) for name in MODELS]
    need(any(reply.status == 200 for reply in replies), "none of the page's names is served")


def _raw_tokens(client: Client) -> None:
    """Ids in place of a text: those of the text, and the same each time."""
    answer = client.greedy(return_raw_tokens=True)
    choice = answer.member("choices.0", "object")
    ids = choice.get("tokens")
    need(isinstance(ids, list) and bool(ids) and all(isinstance(one, int) for one in ids), f"tokens is {shown(ids)}")
    need(not choice.get("text"), f"there is the text {shown(choice.get('text'))} too")
    need(len(ids or []) == answer.completion_tokens, f"{counted(len(ids or []), 'id')} for {counted(answer.completion_tokens, 'token')}")
    again = client.greedy(prompt=ids, echo=True, max_tokens=1).text
    need(again.startswith(client.greedy().text), f"as a prompt the ids are {shown(again)}")


def _max_tokens(client: Client) -> None:
    c.max_tokens(None)(client)
    client.refused(max_tokens=100_000_000)


def _min_tokens(client: Client) -> None:
    """What ends early without it does not end before that many tokens."""
    for number in range(20):
        hot: dict[str, Any] = {"prompt": "Yes.", "temperature": 1, "seed": number, "max_tokens": 64}
        ended = client.ask(**hot)
        if ended.finish == "stop":
            least = ended.completion_tokens + 8
            longer = client.ask(**{**hot, "max_tokens": least + 32, "min_tokens": least})
            need(longer.completion_tokens >= least, f"{counted(longer.completion_tokens, 'token')} with min_tokens {least}")
            whole = client.ask(**{**hot, "max_tokens": least, "min_tokens": -1})
            need(whole.completion_tokens >= least, f"with min_tokens -1 it ends after {whole.completion_tokens} of {least} tokens")
            return
    raise Untold("no text of this model ended by itself within 64 tokens")


def _min_tokens_none(client: Client) -> None:
    c.changes_nothing(min_tokens=0)(client)
    client.refused(min_tokens=-2)


def _grammar_root(client: Client) -> None:
    """Each root is taken; what is generated under those that JSON has is that; what the page does not list is refused."""
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float)}
    for root in ROOTS:
        answer = client.greedy(grammar_root=root, max_tokens=96)
        if root in kinds and answer.finish == "stop":
            try:
                value = json.loads(answer.text)
            except ValueError:
                value = None
            need(isinstance(value, kinds[root]), f"with the root {root} the text is {shown(answer.text)}")
        if root == "ws":
            need(not answer.text.strip(), f"with the root ws the text is {shown(answer.text)}")
        if root in ("object", "func"):
            need(answer.text.lstrip().startswith("{"), f"with the root {root} the text is {shown(answer.text)}")
        if root in ("array", "funcarray"):
            need(answer.text.lstrip().startswith("["), f"with the root {root} the text is {shown(answer.text)}")
    client.refused(grammar_root="no-such-root")


def _echo_and_raw(client: Client) -> None:
    client.refused(echo=True, return_raw_tokens=True)


def _logprobs_null(client: Client) -> None:
    """Null is off, and 0 is on without alternatives."""
    need(not client.greedy(logprobs=None).has("choices.0.logprobs"), "with null there are log-probabilities")
    answer = client.greedy(logprobs=0)
    found = lp.lists(answer)
    need(bool(found["token_logprobs"]), "with 0 there are none")
    need(not found.get("top_logprobs"), f"with 0 there are top_logprobs: {shown(found.get('top_logprobs'))}")


def _time_info(name: str) -> Check:
    def check(client: Client) -> None:
        value = client.greedy().member(f"time_info.{name}", "integer" if name == "created" else "number")
        need(value >= 0, f"it is {value}")

    return check


def _total_time(client: Client) -> None:
    found = client.greedy().member("time_info", "object")
    parts = [float(member(found, name, "number")) for name in ("queue_time", "prompt_time", "completion_time")]
    need(member(found, "total_time", "number") >= max(parts), f"the times are {shown(found)}")


_NIGHT = {"prompt": "It was a dark and stormy night", "max_tokens": 100, "logprobs": 5}
_MEMBERS = (
    *((name, ("string",)) for name in ("id", "model", "system_fingerprint", "object", "choices.0.text", "choices.0.finish_reason")),
    ("created", ("integer",)),
    ("choices.0.index", ("integer",)),
    *((f"choices.0.logprobs.{name}", ("array",)) for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs")),
    *((f"usage.{name}", ("integer",)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")),
)

REQUEST = (
    Item(
        "prompt",
        "The prompt(s) to generate completions for, encoded as a string, array of strings, array of tokens, or array of token arrays.",
        a.prompt_forms,
    ),
    Item("prompt.default", 'Default: `""`', a.no_prompt),
    Item("model", '<ParamField path="model" type="string" required="true">', a.model_required),
    Item("model.names", "Available options: * `llama3.1-8b` * `llama-3.3-70b`", _names),
    Item("stream", "If set, partial message deltas will be sent.", a.stream),
    Item("return_raw_tokens", "Return raw tokens instead of text.", _raw_tokens),
    Item("max_tokens", "The total length of input tokens and generated tokens is limited by the model's context length.", _max_tokens),
    Item("min_tokens", "The minimum number of tokens to generate for a completion.", _min_tokens),
    Item(
        "min_tokens.zero",
        "If not specified or set to 0, the model will generate as many tokens as it deems necessary.",
        _min_tokens_none,
    ),
    Item("grammar_root", "The grammar root used for structured output generation.", _grammar_root),
    Item("seed", "repeated requests with the same `seed` and parameters should return the same result.", c.seed),
    Item(
        "stop",
        "Up to 4 sequences where the API will stop generating further tokens. The returned text will not contain the stop sequence.",
        c.stop(4),
    ),
    Item(
        "temperature",
        "What sampling temperature to use, between 0 and 1.5.",
        c.every(c.temperature(1.5), c.refuses({"temperature": 1.6}, {"temperature": -0.1})),
    ),
    Item(
        "top_p",
        "the model considers the tokens with top\\_p probability mass.",
        c.every(c.keeps_one(top_p=1e-6), c.refuses({"top_p": 1.1}, {"top_p": -0.1})),
    ),
    Item("echo", "Echo back the prompt in addition to the completion.", a.echo),
    Item("echo.raw", "Incompatible with `return_raw_tokens=True`.", _echo_and_raw),
    Item("user", "A unique identifier representing your end-user", c.changes_nothing(user="someone")),
    Item("logprobs", "Return log probabilities of the output tokens.", lp.logprobs(20, zero_has_top=False)),
    Item("logprobs.maximum", "The max value is 20.", c.every(c.takes({"logprobs": 20}), c.refuses({"logprobs": 21}))),
    Item("logprobs.null", "Setting `logprobs` to 0 is different than `null`.", _logprobs_null),
)

ANSWER = (
    Item("choices", "The list of completion choices the model generated for the input prompt.", a.has("choices", "array")),
    Item(
        "choices.finish_reason",
        "This will be `stop` if the model hit a natural stop point or a provided stop sequence",
        a.finish_reason("stop", "length", "content_filter"),
    ),
    Item("choices.index", '<ParamField path="index" type="integer" />', c.every(a.first_index, a.indexes)),
    Item("choices.logprobs", '<ParamField path="logprobs" type="object | null" />', lp.off_or_lists),
    Item("choices.logprobs.text_offset", "Number of characters since the prompt.", lp.text_offset(0)),
    Item("choices.logprobs.token_logprobs", "Logprob value for each token.", lp.token_logprobs),
    Item("choices.logprobs.tokens", "The tokens.", lp.tokens_join),
    Item(
        "choices.logprobs.top_logprobs",
        "List of the most likely tokens and their log probability, at this token position.",
        lp.top_logprobs,
    ),
    Item("choices.text", '<ParamField path="text" type="string" />', a.text),
    Item("created", "The Unix timestamp (in seconds) of when the completion was created.", a.created),
    Item("id", "A unique identifier for the completion.", a.identifier),
    Item("model.answer", "The model used for completion.", a.model_named),
    Item("object", 'The object type, which is always "text\\_completion"', a.is_one_of("object", "text_completion")),
    Item(
        "system_fingerprint",
        "This fingerprint represents the backend configuration that the model runs with.",
        a.same_twice("system_fingerprint", "string"),
    ),
    Item("usage", "Usage statistics for the completion request.", a.usage),
    Item("usage.prompt_tokens", '"prompt_tokens": 10,', a.usage_prompt),
    Item("usage.completion_tokens", '"completion_tokens": 100,', a.usage_completion),
    Item("time_info.queue_time", '"queue_time": 4.673e-05,', _time_info("queue_time")),
    Item("time_info.prompt_time", '"prompt_time": 0.0004940576161616161,', _time_info("prompt_time")),
    Item("time_info.completion_time", '"completion_time": 0.045957338383838385,', _time_info("completion_time")),
    Item("time_info.total_time", '"total_time": 0.058876991271972656,', _total_time),
    Item("time_info.created", '"created": 1731597024', _time_info("created")),
)

HTTP = (
    Item("authorization", '-H "Authorization: Bearer $CEREBRAS_API_KEY" \\', a.unauthorized),
    Item("example", '"prompt": "It was a dark and stormy night",', a.example(_NIGHT, *_MEMBERS)),
    Item("stream.done", "with the stream terminated by a `data: [DONE]` message.", a.stream),
)

PAGE = Page(
    name="cerebras",
    title="Cerebras",
    url="https://inference-docs.cerebras.ai/api-reference/completions",
    greedy=GREEDY,
    groups={"request": REQUEST, "answer": ANSWER, "HTTP and examples": HTTP},
)
