"""Novita's page, item by item. Pure.

It writes ranges as ``1 < x < 128``, also that of ``n``, whose default is 1: its bounds are read as within the range.
"""

from __future__ import annotations

from quintet.conformance import answers as a
from quintet.conformance import controls as c
from quintet.conformance import logprobs as lp
from quintet.conformance.client import LONG, PROMPT, Client, need, shown
from quintet.conformance.item import Item, Page

GREEDY = {"top_p": 0.000001}
"""Within the page's range, and less than any token's probability; a temperature of 0 is on its bound."""


def _content_type(client: Client) -> None:
    """JSON it is, whatever the body is: one of another type is refused."""
    reply = client.reply(client.body({"max_tokens": 1}), headers=(("content-type", "text/xml"),))
    need(400 <= reply.status < 500, f"a body of text/xml is answered {reply.status}")


def _prompt(client: Client) -> None:
    a.prompt_forms(client)
    a.prompt_required(client)


def _temperature(client: Client) -> None:
    """Little of it keeps to the likeliest token, much does not. So little that two tokens would have to be equally likely to 1e-5."""
    cold = {client.ask(take, max_tokens=LONG, temperature=1e-6).text for take in (0, 1)}
    need(len(cold) == 1, "two answers at temperature 1e-6 differ")
    hot = {client.ask(take, max_tokens=LONG, temperature=1.9).text for take in range(3)}
    need(len(hot) > 1, "three answers at temperature 1.9 are the same")


def _stop(client: Client) -> None:
    c.stop(4, kept=True)(client)


def _stop_text(client: Client) -> None:
    c.stop(0, kept=True)(client)


def _top_k(client: Client) -> None:
    """Of the two likeliest tokens, one is drawn, and not always the same."""
    answer = client.ask(top_k=2, temperature=1.9, max_tokens=64, logprobs=2)
    found = lp.with_alternatives(answer)
    values = zip(found["token_logprobs"], found["top_logprobs"], strict=True)
    need(all(value >= lp.ranked(top)[:2][-1] - 1e-6 for value, top in values), "a token beyond the two likeliest was drawn")
    need(len({client.ask(take, top_k=2, temperature=1.9, max_tokens=LONG).text for take in range(3)}) > 1, "three draws are the same")
    client.refused(top_k=0)
    client.refused(top_k=129)


def _stream_options(client: Client) -> None:
    a.include_usage(client)
    client.refused(stream_options={"include_usage": True})


def _best_of(client: Client) -> None:
    c.best_of(client)


def _logit_bias(client: Client) -> None:
    c.logit_bias(client)
    client.refused(logit_bias={"65": 101})
    client.refused(logit_bias={"65": -101})


def _some_of(client: Client) -> None:
    """What every answer has, in a stream too."""
    for chunk in client.stream().chunks:
        for name, kind in (("id", "string"), ("object", "string"), ("created", "integer"), ("model", "string"), ("choices", "array")):
            chunk.member(name, kind)


def _choice_required(client: Client) -> None:
    choice = client.greedy().member("choices.0", "object")
    for name in ("finish_reason", "index", "logprobs", "text"):
        need(name in choice, f"a choice has no {name}: {shown(choice)}")


EXAMPLE = {
    "prompt": PROMPT,
    "max_tokens": 12,
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 2,
    "seed": 1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.2,
    "stop": "zzqq",
    "temperature": 1,
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.1,
    "logit_bias": {"65": 1},
    "logprobs": 1,
    "best_of": 2,
}
"""Every field of the page's request at once, with values in place of its ``{}``."""

HEADERS = (
    Item("Content-Type", "Content-Type string required Enum: `application/json`", _content_type),
    Item("Authorization", "Bearer authentication format, for example: Bearer {{API Key}}.", a.unauthorized),
)

REQUEST = (
    Item("model", "The name of the model to use.", a.model_required),
    Item(
        "prompt",
        "The prompt(s) to generate completions for, encoded as a string, array of strings, array of tokens, or array of token arrays.",
        _prompt,
    ),
    Item("max_tokens", "The maximum number of tokens that can be generated in the completion.", c.max_tokens(None)),
    Item(
        "max_tokens.context",
        "The token count of your prompt plus max\\_tokens cannot exceed the model’s context length.",
        c.refuses({"max_tokens": 100_000_000}),
    ),
    Item("stream", "Whether to stream back partial progress.", a.stream),
    Item("stream_options", "Options for streaming response. Only set this when you set stream: true.", _stream_options),
    Item(
        "stream_options.include_usage",
        "If set, an additional chunk will be streamed before the data: \\[DONE\\] message.",
        a.include_usage,
    ),
    Item("n", "How many completions to generate for each prompt.", c.every(c.count(128), c.default("n", 1))),
    Item("seed", "repeated requests with the same seed and parameters should return the same result.", c.seed),
    Item(
        "frequency_penalty",
        "Positive values penalize new tokens based on their existing frequency in the text so far, decreasing the model’s likelihood to "
        "repeat the same line verbatim.",
        c.every(c.frequency_penalty, c.refuses({"frequency_penalty": 2.1}, {"frequency_penalty": -2.1}), c.default("frequency_penalty", 0)),
    ),
    Item(
        "presence_penalty",
        "Positive values penalize new tokens based on whether they appear in the text so far, increasing the model’s likelihood to talk "
        "about new topics.",
        c.every(c.presence_penalty, c.refuses({"presence_penalty": 2.1}, {"presence_penalty": -2.1}), c.default("presence_penalty", 0)),
    ),
    Item(
        "repetition_penalty",
        "Note that the penalty is applied to both the generated output and the prompt in decoder-only models.",
        c.every(c.repetition_penalty, c.repetition_of_prompt, c.refuses({"repetition_penalty": 2.1}, {"repetition_penalty": 0})),
    ),
    Item("stop", "Up to 4 sequences where the API will stop generating further tokens.", _stop),
    Item("stop.text", "The returned text will contain the stop sequence.", _stop_text),
    Item("temperature", "What sampling temperature to use, between 0 and 2.", c.every(_temperature, c.refuses({"temperature": 2.1}))),
    Item(
        "top_p",
        "the model considers the results of the tokens with top\\_p probability mass.",
        c.every(c.keeps_one(top_p=1e-6), c.refuses({"top_p": 1.1}, {"top_p": 0})),
    ),
    Item("top_k", "The value of k controls the number of candidates for the next token at each step during text generation.", _top_k),
    Item(
        "min_p",
        "float that represents the minimum probability for a token to be considered, relative to the probability of the most likely token.",
        c.every(c.keeps_one(min_p=1), c.takes({"min_p": 0}), c.refuses({"min_p": 1.1}, {"min_p": -0.1})),
    ),
    Item(
        "logit_bias",
        "Accepts a JSON object that maps tokens to an associated bias value from -100 to 100.",
        _logit_bias,
    ),
    Item(
        "logprobs",
        "if logprobs is 5, the API will return a list of the 5 most likely tokens.",
        lp.logprobs(5),
    ),
    Item("logprobs.maximum", "The maximum value for logprobs is 5.", c.refuses({"logprobs": 6})),
    Item(
        "best_of",
        "Generates best\\_of completions server-side and returns the “best” (the one with the highest log probability per token).",
        _best_of,
    ),
    Item(
        "best_of.n",
        "best\\_of controls the number of candidate completions and n specifies how many to return",
        c.refuses({"n": 3, "best_of": 2}),
    ),
    Item("best_of.greater", "best\\_of must be greater than n.", c.refuses({"n": 2, "best_of": 2})),
)

ANSWER = (
    Item("choices", "The list of generated completion choices.", a.has("choices", "array")),
    Item("choices.required", "finish\\_reason string required", _choice_required),
    Item(
        "choices.finish_reason",
        "This will be “stop” if the model hit a natural stop point or a provided stop sequence, or “length” if the maximum number of "
        "tokens specified in the request was reached.",
        a.finish_reason("stop", "length"),
    ),
    Item("choices.index", "The index of the completion choice.", c.every(a.first_index, a.indexes)),
    Item("choices.logprobs", "The log probabilities of the most likely tokens.", lp.null_or_lists),
    Item("choices.logprobs.text_offset", "Array of integers representing text offsets.", lp.text_offset(None)),
    Item("choices.logprobs.token_logprobs", "Array of numbers representing token log probabilities.", lp.token_logprobs),
    Item("choices.logprobs.tokens", "Array of strings representing tokens.", lp.tokens_join),
    Item("choices.logprobs.top_logprobs", "Array of objects containing top log probabilities.", lp.top_logprobs),
    Item("choices.logprobs.top_logprobs.key", "Log probability value for the given key.", lp.top_logprobs),
    Item("choices.text", "The completion response.", a.text),
    Item("created", "The Unix time in seconds when the response was generated.", a.created),
    Item("id", "A unique identifier of the response.", a.identifier),
    Item("model.answer", "The model used for the completion.", a.model_named),
    Item("object", "The object type, which is always `text_completion`.", a.is_one_of("object", "text_completion")),
    Item("usage", "For streaming responses, usage field is included in the very last response chunk returned.", a.usage_everywhere),
    Item("usage.completion_tokens", "The number of tokens in the generated completion.", a.usage_completion),
    Item("usage.prompt_tokens", "The number of tokens in the prompt.", a.usage_prompt),
    Item("usage.total_tokens", "The total number of tokens used in the request (prompt + completion).", a.usage),
)

HTTP = (
    Item("stream.chunks", "tokens will be sent as data-only server-sent events (SSE) as they become available", _some_of),
    Item("example", '"best_of": 123', a.example_stream(EXAMPLE, ("id", ("string",)), ("choices.0.text", ("string",)))),
)

PAGE = Page(
    name="novita",
    title="Novita",
    url="https://novita.ai/docs/api-reference/model-apis-llm-create-completion",
    greedy=GREEDY,
    groups={"headers": HEADERS, "request": REQUEST, "answer": ANSWER, "HTTP and examples": HTTP},
)
