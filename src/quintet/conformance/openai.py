"""OpenAI's page, item by item. Pure."""

from __future__ import annotations

from quintet.conformance import answers as a
from quintet.conformance import controls as c
from quintet.conformance import logprobs as lp
from quintet.conformance.client import Client, need, shown
from quintet.conformance.item import Check, Item, Page, Untold

GREEDY = {"temperature": 0}


def _context(client: Client) -> None:
    client.refused(max_tokens=100_000_000)


def _obfuscation(client: Client) -> None:
    """By default chunks with text have the member, filled with something that changes; switched off it is not there."""
    found = [chunk.body.get("obfuscation") for chunk in client.stream(take=1).chunks if chunk.body.get("choices")]
    need(any(isinstance(one, str) and one for one in found), f"by default the chunks' obfuscation is {shown(found[:3])}")
    off = client.stream(stream_options={"include_obfuscation": False})
    need(not any("obfuscation" in chunk.body for chunk in off.chunks), "switched off, chunks have it still")


def _predicted(path: str) -> Check:
    """0 where the request had no prediction, which the page has no field for."""

    def check(client: Client) -> None:
        answer = client.greedy(max_tokens=24)
        if not answer.has(path):
            raise Untold("it is left out, which stands for its default of 0")
        found = answer.member(path, "integer")
        need(found == 0, f"without a prediction it is {found}")

    return check


def _returns(client: Client) -> None:
    """One object, or a sequence of them that say the same."""
    a.stream(client)
    need(client.greedy().member("object") == "text_completion", "the answer is no completion")
    for chunk in client.stream().chunks:
        need(chunk.member("object") == "text_completion", "a chunk is no completion")


REQUEST = (
    Item("model", "`model` (string, required): ID of the model to use.", a.model_required),
    Item(
        "prompt",
        "The prompt(s) to generate completions for, encoded as a string, array of strings, array of tokens, or array of token arrays.",
        a.prompt_forms,
    ),
    Item(
        "prompt.default",
        "if a prompt is not specified the model will generate as if from the beginning of a new document.",
        a.no_prompt,
    ),
    Item(
        "best_of",
        'Generates `best_of` completions server-side and returns the "best" (the one with the highest log probability per token). '
        "Results cannot be streamed.",
        c.best_of,
    ),
    Item(
        "best_of.n",
        "`best_of` controls the number of candidate completions and `n` specifies how many to return",
        c.refuses({"n": 3, "best_of": 2}),
    ),
    Item("best_of.greater", "`best_of` must be greater than `n`.", c.refuses({"n": 2, "best_of": 2})),
    Item("echo", "Echo back the prompt in addition to the completion", a.echo),
    Item(
        "frequency_penalty",
        "Number between -2.0 and 2.0. Positive values penalize new tokens based on their existing frequency in the text so far, decreasing "
        "the model's likelihood to repeat the same line verbatim.",
        c.every(c.frequency_penalty, c.refuses({"frequency_penalty": 2.1}, {"frequency_penalty": -2.1}), c.default("frequency_penalty", 0)),
    ),
    Item(
        "logit_bias",
        "Accepts a JSON object that maps tokens (specified by their token ID in the GPT tokenizer) to an associated bias value from "
        "-100 to 100.",
        c.every(c.logit_bias, c.refuses({"logit_bias": {"65": 101}}, {"logit_bias": {"65": -101}})),
    ),
    Item(
        "logprobs",
        "if `logprobs` is 5, the API will return a list of the 5 most likely tokens. The API will always return the `logprob` of the "
        "sampled token, so there may be up to `logprobs+1` elements in the response.",
        lp.logprobs(5),
    ),
    Item("logprobs.maximum", "The maximum value for `logprobs` is 5.", c.refuses({"logprobs": 6})),
    Item(
        "max_tokens",
        "The maximum number of [tokens](https://platform.openai.com/tokenizer) that can be generated in the completion.",
        c.max_tokens(16),
    ),
    Item("max_tokens.context", "The token count of your prompt plus `max_tokens` cannot exceed the model's context length.", _context),
    Item("n", "How many completions to generate for each prompt.", c.every(c.count(None), c.default("n", 1))),
    Item(
        "presence_penalty",
        "Number between -2.0 and 2.0. Positive values penalize new tokens based on whether they appear in the text so far, increasing the "
        "model's likelihood to talk about new topics.",
        c.every(c.presence_penalty, c.refuses({"presence_penalty": 2.1}, {"presence_penalty": -2.1}), c.default("presence_penalty", 0)),
    ),
    Item(
        "seed",
        "repeated requests with the same `seed` and parameters should return the same result.",
        c.seed,
    ),
    Item(
        "stop",
        "Up to 4 sequences where the API will stop generating further tokens.",
        c.stop(4),
    ),
    Item(
        "stop.text",
        "returned text will not contain the stop sequence.",
        c.stop(0),
    ),
    Item(
        "stream",
        "tokens will be sent as data-only [server-sent events]"
        "(https://developer.mozilla.org/en-US/docs/Web/API/Server-sent_events/Using_server-sent_events#Event_stream_format) as they become "
        "available, with the stream terminated by a `data: [DONE]` message.",
        a.stream,
    ),
    Item("stream_options", "`stream_options` (object | null, optional)", c.every(a.include_usage, c.changes_nothing(stream_options=None))),
    Item(
        "stream_options.include_usage",
        "The `usage` field on this chunk shows the token usage statistics",
        a.include_usage,
    ),
    Item(
        "stream_options.include_obfuscation",
        "When true, stream obfuscation will be enabled.",
        _obfuscation,
    ),
    Item("suffix", "The suffix that comes after a completion of inserted text.", c.suffix),
    Item(
        "temperature",
        "What sampling temperature to use, between 0 and 2.",
        c.every(c.temperature(2), c.refuses({"temperature": 2.1}, {"temperature": -0.1})),
    ),
    Item(
        "top_p",
        "the model considers the results of the tokens with top_p probability mass.",
        c.every(c.keeps_one(top_p=1e-6), c.refuses({"top_p": 1.1}, {"top_p": -0.1})),
    ),
    Item("user", "A unique identifier representing your end-user", c.changes_nothing(user="someone")),
)

ANSWER = (
    Item("id", "`id` (string, required): A unique identifier for the completion.", a.identifier),
    Item("choices", "The list of completion choices the model generated for the input prompt.", a.has("choices", "array")),
    Item(
        "choices.finish_reason",
        "This will be `stop` if the model hit a natural stop point or a provided stop sequence,",
        a.finish_reason("stop", "length", "content_filter"),
    ),
    Item("choices.index", "`index` (integer, required)", c.every(a.first_index, a.indexes)),
    Item("choices.logprobs", "`logprobs` (object | null, required)", lp.null_or_lists),
    Item("choices.logprobs.text_offset", "`text_offset` (array<integer>, optional)", lp.text_offset(None)),
    Item("choices.logprobs.token_logprobs", "`token_logprobs` (array<number>, optional)", lp.token_logprobs),
    Item("choices.logprobs.tokens", "`tokens` (array<string>, optional)", lp.tokens_join),
    Item("choices.logprobs.top_logprobs", "`top_logprobs` (array<object>, optional)", lp.top_logprobs),
    Item("choices.text", "`text` (string, required)", a.text),
    Item("created", "The Unix timestamp (in seconds) of when the completion was created.", a.created),
    Item("model.answer", "`model` (string, required): The model used for completion.", a.model_named),
    Item(
        "system_fingerprint",
        "This fingerprint represents the backend configuration that the model runs with.",
        a.same_twice("system_fingerprint", "string"),
    ),
    Item("object", 'The object type, which is always "text_completion"', a.is_one_of("object", "text_completion")),
    Item("usage", "Usage statistics for the completion request.", a.usage),
    Item("usage.completion_tokens", "Number of tokens in the generated completion.", a.usage_completion),
    Item("usage.prompt_tokens", "Number of tokens in the prompt.", a.usage_prompt),
    Item("usage.total_tokens", "Total number of tokens used in the request (prompt + completion).", a.usage),
    Item(
        "usage.completion_tokens_details",
        "Breakdown of tokens used in a completion.",
        a.optional("usage.completion_tokens_details", "object"),
    ),
    Item(
        "usage.completion_tokens_details.accepted_prediction_tokens",
        "When using Predicted Outputs, the number of tokens in the",
        _predicted("usage.completion_tokens_details.accepted_prediction_tokens"),
    ),
    Item(
        "usage.completion_tokens_details.audio_tokens",
        "Audio input tokens generated by the model.",
        a.count("usage.completion_tokens_details.audio_tokens"),
    ),
    Item(
        "usage.completion_tokens_details.reasoning_tokens",
        "Tokens generated by the model for reasoning.",
        a.count("usage.completion_tokens_details.reasoning_tokens"),
    ),
    Item(
        "usage.completion_tokens_details.rejected_prediction_tokens",
        "prediction that did not appear in the completion.",
        _predicted("usage.completion_tokens_details.rejected_prediction_tokens"),
    ),
    Item("usage.prompt_tokens_details", "Breakdown of tokens used in the prompt.", a.optional("usage.prompt_tokens_details", "object")),
    Item(
        "usage.prompt_tokens_details.audio_tokens",
        "Audio input tokens present in the prompt.",
        a.count("usage.prompt_tokens_details.audio_tokens"),
    ),
    Item(
        "usage.prompt_tokens_details.cached_tokens",
        "Cached tokens present in the prompt.",
        a.cached("usage.prompt_tokens_details.cached_tokens"),
    ),
)

_SAID = {"prompt": "Say this is a test", "max_tokens": 7, "temperature": 0}
_STRING, _INTEGER = ("string",), ("integer",)
_CHOICE = (
    ("id", _STRING),
    ("object", _STRING),
    ("created", _INTEGER),
    ("model", _STRING),
    ("system_fingerprint", _STRING),
    ("choices.0.text", _STRING),
    ("choices.0.index", _INTEGER),
    ("choices.0.logprobs", ("null",)),
)
_USAGE = (("usage.prompt_tokens", _INTEGER), ("usage.completion_tokens", _INTEGER), ("usage.total_tokens", _INTEGER))

HTTP = (
    Item("returns", "Returns a [completion](object.md) object, or a sequence of completion objects if the request is streamed.", _returns),
    Item("authorization", '-H "Authorization: Bearer $OPENAI_API_KEY" \\', a.unauthorized),
    Item("example", '"prompt": "Say this is a test",', a.example(_SAID, *_CHOICE, ("choices.0.finish_reason", _STRING), *_USAGE)),
    Item("example.stream", '"stream": true', a.example_stream(_SAID, *_CHOICE)),
)

PAGE = Page(
    name="openai",
    title="OpenAI",
    url="https://platform.openai.com/docs/api-reference/completions/create",
    greedy=GREEDY,
    groups={"request": REQUEST, "answer": ANSWER, "HTTP and examples": HTTP},
)
