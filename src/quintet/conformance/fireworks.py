"""Fireworks' page, item by item. Pure."""

from __future__ import annotations

import json
from typing import Any

from quintet.conformance import answers as a
from quintet.conformance import controls as c
from quintet.conformance import logprobs as lp
from quintet.conformance.client import LONG, PROMPT, Client, need, shown
from quintet.conformance.fireworks_metrics import METRICS, perf_metrics
from quintet.conformance.item import Item, Page, Untold
from quintet.errors import counted

GREEDY = {"temperature": 0}
WORD = {"type": "object", "properties": {"foo": {"enum": ["x", "y"]}}, "required": ["foo"], "additionalProperties": False}


def _prompt(client: Client) -> None:
    """Each form, its order, and that empty lists are refused."""
    a.prompt_forms(client)
    a.indexes(client)
    client.refused(prompt=[])
    client.refused(prompt=[[]])


def _images(client: Client) -> None:
    """As many images as places: one too many is refused, by a model that sees or by one that does not."""
    dot = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    client.refused(images=[dot, dot], prompt="<image> What is it?")
    reply = client.reply(client.body({**GREEDY, "images": [dot], "prompt": "<image> What is it?"}))
    if 400 <= reply.status < 500:
        raise Untold("the model sees no images, and the server says so")
    client.accepted(reply)


def _max_tokens(client: Client) -> None:
    """The page's minimum is 0."""
    c.max_tokens(16)(client)
    client.refused(max_tokens=-1)
    need(client.greedy(max_tokens=0).text == "", "with max_tokens 0 there is text")


def _truncate(client: Client) -> None:
    """More than any context is lowered, which a stop string shows at little cost; ``error`` refuses it."""
    whole = client.greedy(max_tokens=LONG).text
    need(len(whole) > 2, f"the text is {shown(whole)}")
    for given in (None, "truncate"):
        answer = client.greedy(max_tokens=10_000_000, stop=[whole[1:3]], context_length_exceeded_behavior=given)
        need(whole.startswith(answer.text), f"the text is {shown(answer.text)}")
    client.refused(max_tokens=10_000_000, context_length_exceeded_behavior="error")
    client.refused(context_length_exceeded_behavior="perhaps")


def _echo_last(client: Client) -> None:
    """The last tokens of the prompt, whichever these are, stand before what is generated."""
    ids = [65, 66, 67, 68]
    plain = client.greedy(prompt=ids).text
    whole = client.greedy(prompt=ids, echo=True).text
    lengths = [len(client.greedy(prompt=ids, echo_last=number).text) for number in range(5)]
    need(lengths == sorted(lengths) and lengths[0] == len(plain) < lengths[4], f"with 0 to 4 the text's lengths are {shown(lengths)}")
    need(client.greedy(prompt=ids, echo_last=4).text == whole, "echo_last of the whole prompt is not echo")
    need(whole.endswith(plain), "what follows the prompt is another text than without echo")
    client.refused(echo_last=-1)


def _top_k(client: Client) -> None:
    c.keeps_one(top_k=1)(client)
    c.takes({"top_k": 100, "temperature": 1})(client)
    client.refused(top_k=101)
    client.refused(top_k=-1)


def _min_p(client: Client) -> None:
    """A token under the threshold is drawn only where no token reaches it, and then it is the likeliest."""
    c.keeps_one(min_p=1)(client)
    least = 0.25
    answer = client.ask(max_tokens=64, temperature=1, min_p=least, logprobs=2)
    found = lp.with_alternatives(answer)
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        chance = 2.718281828**value
        need(
            chance >= least - 1e-6 or value >= lp.ranked(top)[0] - 1e-6,
            f"{shown(token)} has the probability {chance:.3f} with min_p {least}",
        )
    client.refused(min_p=1.1)


def _repetition_penalty(client: Client) -> None:
    c.repetition_penalty(client)
    c.repetition_of_prompt(client)


def _reasoning_effort(client: Client) -> None:
    """``none`` is taken; what the page does not list is refused; a model that does not reason may refuse the others."""
    client.greedy(reasoning_effort="none")
    client.refused(reasoning_effort="enormous")
    reply = client.reply(client.body({**GREEDY, "reasoning_effort": "low"}))
    if 400 <= reply.status < 500:
        raise Untold("the model does not reason, and the server says so")
    client.accepted(reply)


def _mirostat_target(client: Client) -> None:
    """A perplexity of 1 leaves nothing to chance, and a large one does."""
    low, high = (set(client.ask(n=4, max_tokens=LONG, temperature=1, mirostat_target=target).texts) for target in (1, 100_000))
    need(len(low) == 1, f"four choices with a target of 1 are {counted(len(low), 'text')}")
    need(len(high) > 1, "four choices with a target of 100,000 are the same")


def _mirostat_lr(client: Client) -> None:
    """With a seed, a rate of 0 gives another text than a rate of 1: the one stays where it begins."""
    texts = []
    for rate in (0, 1):
        fields: dict[str, Any] = {"temperature": 1, "seed": 5, "mirostat_target": 3.0, "max_tokens": 64}
        first, again = (client.ask(take, mirostat_lr=rate, **fields).text for take in (0, 1))
        if first != again:
            raise Untold("the page has no seed, and this server takes none: two draws differ anyway")
        texts.append(first)
    need(texts[0] != texts[1], "the text is the same with rates of 0 and 1")


def _response_format(client: Client) -> None:
    """Whatever the prompt, what is generated to its end is JSON."""
    c.changes_nothing(response_format={"type": "text"})(client)
    for prompt in ("A person as JSON:", PROMPT):
        answer = client.greedy(prompt=prompt, max_tokens=200, response_format={"type": "json_object"})
        text = answer.text.lstrip()
        need(text.startswith("{"), f"with json_object the text begins {shown(answer.text)}")
        if answer.finish == "stop":
            _value(answer.text)


def _schema(client: Client) -> None:
    """The schema is kept, in its values and in what it does not allow."""
    for prompt in ("A person as JSON:", PROMPT):
        given = {"type": "json_schema", "json_schema": WORD}
        answer = client.greedy(prompt=prompt, max_tokens=200, response_format=given)
        if answer.finish == "stop":
            value = _value(answer.text)
            need(value in ({"foo": "x"}, {"foo": "y"}), f"the text is {shown(answer.text)}")
        else:
            need(answer.text.lstrip().startswith("{"), f"the text is {shown(answer.text)}")
    client.refused(response_format={"type": "json_schema", "json_schema": {"type": "no such type"}})


def _type(client: Client) -> None:
    for kind in ("text", "json_object"):
        client.greedy(response_format={"type": kind}, prompt="JSON:")
    client.refused(response_format={"type": "xml"})
    client.refused(response_format={})


def _value(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    need(isinstance(found, dict), f"the whole text is no JSON object: {shown(text)}")
    return found


def _logprobs(client: Client) -> None:
    """A number gives parallel lists; ``true`` gives log-probabilities too; more than 5 is refused."""
    lp.logprobs(5)(client)
    answer = client.greedy(logprobs=True, top_logprobs=3)
    choice = answer.member("choices.0", "object")
    need(isinstance(choice.get("logprobs"), dict), f"with true, logprobs is {shown(choice.get('logprobs'))}")
    entries = choice["logprobs"].get("content")
    if isinstance(entries, list):  # the newer shape, of OpenAI's chats
        need(
            len(entries) == answer.completion_tokens or answer.finish == "stop",
            f"{len(entries)} entries for {counted(answer.completion_tokens, 'token')}",
        )
        for entry in entries:
            need(isinstance(entry, dict) and entry.get("logprob", 1) <= 0, f"an entry is {shown(entry)}")
    else:
        lp.lists(answer)


def _top_logprobs(client: Client) -> None:
    """It overrides how many alternatives there are."""
    for many in (1, 4):
        tops = lp.with_alternatives(client.greedy(logprobs=2, top_logprobs=many))["top_logprobs"]
        most = max((len(lp.ranked(top)) for top in tops), default=0)
        need(most in (many, many + 1), f"with top_logprobs {many} the alternatives are {shown(tops)}")
    client.refused(logprobs=1, top_logprobs=6)
    client.refused(logprobs=1, top_logprobs=-1)


def _finish(client: Client) -> None:
    a.finish_reason("stop", "length")(client)


EXAMPLE: dict[str, Any] = {
    "prompt": "The sky is",
    "max_tokens": 16,
    "echo_last": 1,
    "temperature": 1,
    "top_p": 1,
    "top_k": 50,
    "frequency_penalty": 0,
    "perf_metrics_in_response": False,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "reasoning_effort": "none",
    "mirostat_lr": 0.1,
    "mirostat_target": 123,
    "n": 1,
    "ignore_eos": False,
    "stop": "<string>",
    "response_format": None,
    "stream": False,
    "context_length_exceeded_behavior": "truncate",
    "logprobs": True,
    "top_logprobs": None,
    "echo": False,
    "min_p": 0,
    "typical_p": 1,
    "logit_bias": {},
    "user": "<string>",
}
"""The page's, without ``images``, which only a model that sees can take."""

_MEMBERS = (
    *((name, ("string",)) for name in ("id", "object", "model", "choices.0.text", "choices.0.finish_reason")),
    *((f"usage.{name}", ("integer",)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")),
    ("created", ("integer",)),
    ("choices.0.index", ("integer",)),
    ("choices.0.logprobs", ("object",)),
)

REQUEST = (
    Item("model", "The name of the model to use.", a.model_required),
    Item(
        "prompt",
        "It can be a single string or an array of strings. It can also be an array of integers or an array of integer arrays, which allows "
        "to pass already tokenized prompt.",
        _prompt,
    ),
    Item("images", "The list of base64 encoded images for visual language completition generation.", _images),
    Item("max_tokens", "The maximum number of tokens to generate in the completion.", _max_tokens),
    Item(
        "max_tokens.context",
        "By default, `max_tokens` will be lowered to fit in the context window instead of returning an error.",
        _truncate,
    ),
    Item("echo_last", "Echo back the last N tokens of the prompt in addition to the completion.", _echo_last),
    Item(
        "temperature",
        "What sampling temperature to use, between 0 and 2.",
        c.every(c.temperature(2), c.refuses({"temperature": 2.1}, {"temperature": -0.1})),
    ),
    Item(
        "top_p",
        "the model considers the results of the tokens with top_p probability mass.",
        c.every(c.keeps_one(top_p=1e-6), c.takes({"top_p": 0}), c.refuses({"top_p": 1.1}, {"top_p": -0.1})),
    ),
    Item("top_k", "Must be between 0 and 100.", _top_k),
    Item(
        "frequency_penalty",
        "Positive values penalize new tokens based on their existing frequency in the text so far, decreasing the model's likelihood to "
        "repeat the same line verbatim.",
        c.every(c.frequency_penalty, c.refuses({"frequency_penalty": 2.1}, {"frequency_penalty": -2.1}), c.default("frequency_penalty", 0)),
    ),
    Item(
        "presence_penalty",
        "Positive values penalize new tokens based on whether they appear in the text so far, increasing the model's likelihood to talk "
        "about new topics.",
        c.every(c.presence_penalty, c.refuses({"presence_penalty": 2.1}, {"presence_penalty": -2.1}), c.default("presence_penalty", 0)),
    ),
    Item(
        "repetition_penalty",
        "Note that the penalty is applied to both the generated output and the prompt in decoder-only models.",
        c.every(_repetition_penalty, c.refuses({"repetition_penalty": 2.1}, {"repetition_penalty": -0.1})),
    ),
    Item("reasoning_effort", "can be set to either 'none', 'low', 'medium', 'high' or an integer.", _reasoning_effort),
    Item("mirostat_lr", "Specifies the learning rate for the Mirostat sampling algorithm", _mirostat_lr),
    Item("mirostat_target", "Defines the target perplexity for the Mirostat algorithm.", _mirostat_target),
    Item("n", "How many completions to generate for each prompt.", c.every(c.count(128), c.default("n", 1))),
    Item(
        "ignore_eos",
        "When set to `True`, the model will continue generating tokens even after the EOS token is produced.",
        c.ignore_eos,
    ),
    Item(
        "stop",
        "Up to 4 sequences where the API will stop generating further tokens. The returned text will NOT contain the stop sequence.",
        c.every(c.stop(4), c.default("stop", None), c.refuses({"stop": []})),
    ),
    Item("response_format", "Allows to force the model to produce specific output format.", _response_format),
    Item("response_format.type", "Must be one of `text`, `json_object` or `json_schema`.", _type),
    Item(
        "response_format.json_schema",
        'JSON schema according to https://json-schema.org/specification that can be provided if `"type": "json_schema"`.',
        _schema,
    ),
    Item("stream", "Whether to stream back partial progress.", a.stream),
    Item(
        "context_length_exceeded_behavior",
        "Passing `truncate` limits the `max_tokens` to at most `context_window_length - prompt_length`. This is the default. Passing "
        "`error` would trigger a request error.",
        _truncate,
    ),
    Item("logprobs", "Include log probabilities in the response. This accepts either a boolean or an integer:", _logprobs),
    Item(
        "top_logprobs",
        "When `logprobs` is set, `top_logprobs` can be used to modify how many top log probabilities are returned.",
        _top_logprobs,
    ),
    Item("echo", "Echo back the prompt in addition to the completion.", a.echo),
    Item("min_p", "Only tokens with probability >= min_p are considered for selection.", _min_p),
    Item(
        "typical_p",
        "It considers the most typical tokens whose cumulative probability is at most typical_p.",
        c.every(c.same_each_time(typical_p=1e-6), c.changes_nothing(typical_p=1), c.refuses({"typical_p": 1.1}, {"typical_p": -0.1})),
    ),
    Item(
        "logit_bias",
        "Accepts a json object that maps tokens (specified by their token ID in the tokenizer) to an associated bias value from -100 to "
        "100.",
        c.every(c.logit_bias, c.refuses({"logit_bias": {"65": 101}}, {"logit_bias": {"65": -101}})),
    ),
    Item(
        "user", "A unique identifier representing your end-user, which can help monitor and detect abuse", c.changes_nothing(user="someone")
    ),
    Item("perf_metrics_in_response", "Whether to include performance metrics in the response body.", perf_metrics),
)

ANSWER = (
    Item("id", "A unique identifier of the response.", a.identifier),
    Item("object", 'The object type, which is always "text_completion".', a.is_one_of("object", "text_completion")),
    Item("created", "The Unix time in seconds when the response was generated.", a.created),
    Item("model.answer", "The model used for the completion.", a.model_named),
    Item("choices", "The list of generated completion choices.", a.has("choices", "array")),
    Item("choices.text", "The completion response.", a.text),
    Item("choices.index", "The index of the completion choice.", c.every(a.first_index, a.indexes)),
    Item("choices.logprobs", "The log probabilities of the most likely tokens.", lp.null_or_lists),
    Item("choices.logprobs.tokens", "tokens: type: array items: type: string", lp.tokens_join),
    Item("choices.logprobs.token_logprobs", "token_logprobs: type: array items: type: number", lp.token_logprobs),
    Item("choices.logprobs.top_logprobs", "top_logprobs: type: array items: type: object", lp.top_logprobs),
    Item("choices.logprobs.text_offset", "text_offset: type: array items: type: integer", lp.text_offset(None)),
    Item(
        "choices.finish_reason",
        'This will be "stop" if the model hit a natural stop point or a provided stop sequence, or "length"',
        _finish,
    ),
    Item("usage", "For streaming responses, `usage` field is included in the very last response chunk returned.", a.usage_everywhere),
    Item("usage.prompt_tokens", "The number of tokens in the prompt.", a.usage_prompt),
    Item("usage.completion_tokens", "The number of tokens in the generated completion.", a.usage_completion),
    Item("usage.total_tokens", "The total number of tokens used in the request (prompt + completion).", a.usage),
)

HTTP = (
    Item("authorization", "Authorization: type: http scheme: bearer", a.unauthorized),
    Item("example", "prompt: The sky is", a.example(EXAMPLE, *_MEMBERS)),
)

PAGE = Page(
    name="fireworks",
    title="Fireworks",
    url="https://docs.fireworks.ai/api-reference/post-completions",
    greedy=GREEDY,
    groups={"request": REQUEST, "metrics": METRICS, "answer": ANSWER, "HTTP and examples": HTTP},
)
