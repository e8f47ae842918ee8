"""Together's page, item by item. Pure."""

from __future__ import annotations

from typing import Any

from quintet.conformance import answers as a
from quintet.conformance import controls as c
from quintet.conformance import logprobs as lp
from quintet.conformance.client import LONG, PROMPT, Client, member, need, parsed, shown
from quintet.conformance.item import Check, Item, Page, Untold

GREEDY = {"temperature": 0}
FINISH = ("stop", "eos", "length", "tool_calls", "function_call")


def _logprobs(client: Client) -> None:
    """Of the sampled tokens, and of as many more as were asked for."""
    for many in (1, 5, 20):
        answer = client.ask(max_tokens=LONG, logprobs=many, temperature=1)
        found = lp.lists(answer)
        need(
            all(isinstance(one, int | float) and one <= 0 for one in found["token_logprobs"]), f"they are {shown(found['token_logprobs'])}"
        )
    client.refused(logprobs=21)
    client.refused(logprobs=-1)
    need(not client.greedy().has("choices.0.logprobs.tokens"), "there are log-probabilities without being asked for")


def _alternatives(client: Client) -> None:
    """Where the answer has alternatives of a kind, they are more than the sampled tokens."""
    answer = client.greedy(logprobs=5)
    top = answer.member("choices.0.logprobs", "object").get("top_logprobs")
    if top is None:
        raise Untold("the page has no member for them")
    texts = [one for entry in (top if isinstance(top, list) else [top]) for one in (entry or {})]
    need(len(set(texts)) > len(set(lp.lists(answer)["tokens"])), f"they are {shown(top)}")


def _echo(client: Client) -> None:
    """The prompt is in the answer; with ``logprobs``, so are its own."""
    answer = client.greedy(echo=True, logprobs=1)
    given = answer.member("prompt.0.text", "string")
    need(given == PROMPT, f"the prompt is {shown(given)}")
    found = lp.lists(answer, "prompt.0.logprobs")
    need("".join(map(str, found["tokens"])) == PROMPT, f"its tokens are {shown(found['tokens'])}")
    need(not client.greedy().has("prompt.0"), "the prompt is there without being asked for")


def _logit_bias(client: Client) -> None:
    """A ban of the likeliest token, by the id that the answer tells, takes it away; a bias of 100 brings a token about."""
    c.logit_bias(client)
    first = client.greedy(logprobs=1, max_tokens=1)
    if first.has("choices.0.logprobs.token_ids.0"):
        number = first.member("choices.0.logprobs.token_ids.0", "integer")
        need(
            client.greedy(max_tokens=1, logit_bias={str(number): -100}).text != first.text,
            f"a bias of -100 does not keep token {number} away",
        )


def _safety_model(client: Client) -> None:
    """A model of this name that there cannot be is not passed over."""
    client.refused(safety_model="no-such-model/of-this-name")
    raise Untold("no moderation model is named; see the server's list of models")


def _not_found(client: Client) -> None:
    reply = client.refused(model="no-such-model/of-this-name")
    need(reply.status == 404, f"a model that there is not is answered {reply.status}")


def _bad_request(client: Client) -> None:
    for fields in ({"max_tokens": "many"}, {"n": 0}, {"logprobs": 21}):
        reply = client.refused(**fields)
        need(reply.status == 400, f"{shown(fields)} is answered {reply.status}")


def _ids(client: Client) -> None:
    """Whole numbers, one for each token; equal ids stand for equal texts."""
    found = lp.lists(client.greedy(logprobs=1, max_tokens=LONG))
    need("token_ids" in found, "there are no token_ids")
    need(all(isinstance(one, int) and one >= 0 for one in found["token_ids"]), f"they are {shown(found['token_ids'])}")
    texts: dict[int, str] = {}
    for number, text in zip(found["token_ids"], found["tokens"], strict=True):
        need(texts.setdefault(number, text) == text, f"token {number} is both {shown(texts[number])} and {shown(text)}")


def _tokens(client: Client) -> None:
    """Strings, which make up the text."""
    answer = client.greedy(logprobs=1)
    found = lp.lists(answer)["tokens"]
    need(all(isinstance(one, str) for one in found), f"they are {shown(found)}")
    need("".join(found) == answer.text, f"{shown(found)} do not make up the text {shown(answer.text)}")


def _token_logprobs(client: Client) -> None:
    found = lp.lists(client.greedy(logprobs=1))["token_logprobs"]
    need(bool(found) and all(isinstance(one, int | float) and one <= 0 for one in found), f"they are {shown(found)}")


def _seed_of_choice(client: Client) -> None:
    """The seed of a choice gives that choice again."""
    answer = client.ask(n=2, max_tokens=LONG, temperature=1)
    for place, text in enumerate(answer.texts):
        number = answer.member(f"choices.{place}.seed", "integer")
        again = client.ask(max_tokens=LONG, temperature=1, seed=number).text
        need(again == text, f"with its seed {number} choice {place} is {shown(again)}, and was {shown(text)}")


def _prompt_part(client: Client) -> None:
    """A list, with the prompt in it when it is echoed."""
    need(client.greedy(echo=True).member("prompt", "array") != [], "with echo it is empty")
    if client.greedy().has("prompt"):
        client.greedy().member("prompt", "array")


def _prompt_logprobs(client: Client) -> None:
    found = lp.lists(client.greedy(echo=True, logprobs=1), "prompt.0.logprobs")["token_logprobs"]
    need(bool(found) and all(isinstance(one, int | float) for one in found), f"they are {shown(found)}")


def _logprobs_object(client: Client) -> None:
    """An object where they were asked for; where they were not, nothing or an object, as the page has no null there."""
    client.greedy(logprobs=1).member("choices.0.logprobs", "object")
    choice = client.greedy().member("choices.0", "object")
    need("logprobs" not in choice or isinstance(choice["logprobs"], dict), f"not asked for, it is {shown(choice.get('logprobs'))}")


def _chunk(path: str, *kinds: str, last: bool = False) -> Check:
    """Every chunk, or the last one, has the member."""

    def check(client: Client) -> None:
        chunks = client.stream(max_tokens=LONG).chunks
        need(bool(chunks), "there is no chunk")
        for chunk in chunks[-1:] if last else chunks:
            chunk.member(path, *kinds)

    return check


def _chunk_usage(client: Client) -> None:
    streamed = client.stream(max_tokens=LONG)
    a.usage_last(streamed)
    for chunk in streamed.chunks[:-1]:
        chunk.member("usage", "object", "null")


def _chunk_finish(client: Client) -> None:
    streamed = client.stream(max_tokens=LONG)
    for chunk in streamed.chunks:
        need(chunk.member("finish_reason") in (None, *FINISH), f"it is {shown(chunk.body['finish_reason'])}")
    need(streamed.chunks[-1].member("finish_reason") is not None, "in the last chunk it is null")


def _chunk_token(client: Client) -> None:
    """The tokens of the chunks are those of the answer without a stream."""
    streamed = client.stream(max_tokens=LONG)
    texts = "".join(chunk.member("token.text", "string") for chunk in streamed.chunks)
    need(texts == client.greedy(max_tokens=LONG).text, f"they say {shown(texts)}")


def _token_id(client: Client) -> None:
    """The ids are those that the answer's lists have."""
    streamed = client.stream(max_tokens=LONG)
    numbers = [chunk.member("token.id", "integer") for chunk in streamed.chunks]
    listed = lp.lists(client.greedy(max_tokens=LONG, logprobs=1)).get("token_ids", numbers)
    need(numbers[: len(listed)] == listed, f"they are {shown(numbers)}, and in the lists {shown(listed)}")


def _token_logprob(client: Client) -> None:
    for chunk in client.stream(max_tokens=LONG, logprobs=1).chunks:
        value = chunk.member("token.logprob", "number")
        need(value <= 0, f"it is {value}")


def _special(client: Client) -> None:
    """A token with text is none."""
    for chunk in client.stream(max_tokens=LONG).chunks:
        special = chunk.member("token.special", "boolean")
        need(not (special and chunk.body["token"].get("text")), f"token {shown(chunk.body['token'])} is special")


def _delta(path: str, *kinds: str) -> Check:
    def check(client: Client) -> None:
        found = [choice["delta"] for choice in client.stream(max_tokens=LONG).choices() if isinstance(choice.get("delta"), dict)]
        if not found:
            raise Untold("the chunks' choices have no delta, which the page does not require")
        for delta in found:
            if path in delta or path == "role":
                member(delta, path, *kinds)

    return check


def _sentinel(client: Client) -> None:
    need(client.stream().done, "the stream does not end with data: [DONE]")


def _streamed_as_events(client: Client) -> None:
    reply = client.stream().reply
    kind = reply.headers.get("content-type", "")
    need(kind.startswith("text/event-stream"), f"the content type is {kind!r}")


def _json(client: Client) -> None:
    kind = client.greedy().reply.headers.get("content-type", "")
    need(kind.startswith("application/json"), f"the content type is {kind!r}")


def _error(path: str, *kinds: str) -> Check:
    """Refusals of a field, of a model and of a body have the member."""

    def check(client: Client) -> None:
        for reply in (client.refused(max_tokens="many"), client.refused(model="no-such-model/of-this-name")):
            error = parsed(reply.body).get("error")
            need(isinstance(error, dict), f"the body is {shown(parsed(reply.body))}")
            if path in ("message", "type") or path in (error or {}):
                member(error, path, *kinds)

    return check


def _stop(client: Client) -> None:
    c.stop(0, string=False)(client)


def _top_k(client: Client) -> None:
    c.keeps_one(top_k=1)(client)
    answer = client.ask(top_k=2, temperature=1, logprobs=2, max_tokens=LONG, n=2)
    need(len(answer.choices) == 2, "n 2 does not give two choices")


EXAMPLE: dict[str, Any] = {
    "prompt": "<s>[INST] What is the capital of France? [/INST]",
    "max_tokens": 16,
    "seed": 42,
    "logit_bias": {"105": 21.4},
}

REQUEST = (
    Item(
        "prompt", "A string providing context for the model to complete.", c.every(a.prompt_required, c.changed_by("prompt", "The sky is"))
    ),
    Item("model", "The name of the model to query.", a.model_required),
    Item("max_tokens", "The maximum number of tokens to generate.", c.max_tokens(None)),
    Item("stop", "A list of string sequences that will truncate (stop) inference text output.", _stop),
    Item(
        "stop.token",
        'For example, "</s>" will stop generation as soon as the model generates the given token.',
        c.takes({"stop": ["</s>"]}, {"stop": ["</s>", "<|im_end|>"]}),
    ),
    Item(
        "temperature",
        "A decimal number from 0-1 that determines the degree of randomness in the response.",
        c.every(c.temperature(1), c.refuses({"temperature": -0.1}, {"temperature": 1.5})),
    ),
    Item("top_p", "It specifies a probability threshold below which all less likely tokens are filtered out.", c.keeps_one(top_p=1e-6)),
    Item("top_k", "It specifies the maximum number of tokens to consider at each step, based on their probability of occurrence.", _top_k),
    Item(
        "repetition_penalty",
        "A number that controls the diversity of generated text by reducing the likelihood of repeated sequences. Higher values decrease "
        "repetition.",
        c.repetition_penalty,
    ),
    Item("stream", "If true, stream tokens as Server-Sent Events as the model generates them", a.stream),
    Item(
        "stream.false",
        "If false, return a single JSON object containing the results.",
        c.every(_json, c.changes_nothing(stream=False)),
    ),
    Item(
        "logprobs",
        "An integer between 0 and 20 of the top k tokens to return log probabilities for at each generation step, instead of just the "
        "sampled token.",
        c.every(_logprobs, _alternatives),
    ),
    Item("echo", "If true, the response will contain the prompt. Can be used with `logprobs` to return prompt logprobs.", _echo),
    Item("n", "The number of completions to generate for each prompt.", c.count(128)),
    Item("safety_model", "The name of the moderation model used to validate tokens.", _safety_model),
    Item("min_p", "A number between 0 and 1 that can be used as an alternative to top-p and top-k.", c.keeps_one(min_p=1)),
    Item("min_p.range", "A number between 0 and 1", c.refuses({"min_p": 1.1}, {"min_p": -0.1})),
    Item(
        "presence_penalty",
        "A number between -2.0 and 2.0 where a positive value increases the likelihood of a model talking about new topics.",
        c.every(c.presence_penalty, c.refuses({"presence_penalty": 2.1}, {"presence_penalty": -2.1})),
    ),
    Item(
        "frequency_penalty",
        "A number between -2.0 and 2.0 where a positive value decreases the likelihood of repeating tokens that have "
        "already been mentioned.",
        c.every(c.frequency_penalty, c.refuses({"frequency_penalty": 2.1}, {"frequency_penalty": -2.1})),
    ),
    Item("logit_bias", "Adjusts the likelihood of specific tokens appearing in the generated output.", _logit_bias),
    Item("seed", "Seed value for reproducibility.", c.seed),
    Item("example", "<s>[INST] What is the capital of France? [/INST]", a.example(EXAMPLE, ("choices.0.text", ("string",)))),
)

RESPONSES = (
    Item("authorization", "type: http scheme: bearer", a.unauthorized),
    Item("status.200", "$ref: '#/components/schemas/CompletionResponse'", _json),
    Item("status.200.stream", "text/event-stream:", _streamed_as_events),
    Item("status.400", "description: BadRequest", _bad_request),
    Item("status.401", "description: Unauthorized", a.unauthorized),
    Item("status.404", "description: NotFound", _not_found),
    Item("status.429", "description: RateLimit", a.not_provoked("a limit would have to be used up")),
    Item("status.503", "description: Overloaded", a.not_provoked("the server would have to be overloaded")),
    Item("status.504", "description: Timeout", a.not_provoked("an answer would have to take too long")),
    Item("error.message", "required: - type - message", _error("message", "string")),
    Item("error.type", "type: type: string nullable: false", _error("type", "string")),
    Item("error.param", "param: type: string nullable: true default: null", _error("param", "string", "null")),
    Item("error.code", "code: type: string nullable: true default: null", _error("code", "string", "null")),
)

ANSWER = (
    Item("id", "required: - id - choices - usage - created - model - object", a.identifier),
    Item("choices", "choices: $ref: '#/components/schemas/CompletionChoicesData'", a.has("choices", "array")),
    Item("prompt.answer", "prompt: $ref: '#/components/schemas/PromptPart'", _prompt_part),
    Item("usage", "usage: $ref: '#/components/schemas/UsageData'", a.usage),
    Item("created", "created: type: integer", a.created),
    Item("model.answer", "model: type: string", a.model_named),
    Item("object", "enum: - text.completion", a.is_one_of("object", "text.completion")),
    Item("choices.text", "The capital of France is Paris.", a.text),
    Item("choices.seed", "seed: type: integer finish_reason: $ref: '#/components/schemas/FinishReason'", _seed_of_choice),
    Item("choices.finish_reason", "enum: - stop - eos - length - tool_calls - function_call", a.finish_reason(*FINISH, ended="eos")),
    Item("choices.logprobs", "logprobs: $ref: '#/components/schemas/LogprobsPart'", _logprobs_object),
    Item("prompt.text", "example: <s>[INST] What is the capital of France? [/INST]", _echo),
    Item("prompt.logprobs", "logprobs: $ref: '#/components/schemas/LogprobsPart' UsageData:", _prompt_logprobs),
    Item("usage.prompt_tokens", "prompt_tokens: type: integer", a.usage_prompt),
    Item("usage.completion_tokens", "completion_tokens: type: integer", a.usage_completion),
    Item("usage.total_tokens", "total_tokens: type: integer", a.usage),
    Item("logprobs.token_ids", "List of token IDs corresponding to the logprobs", _ids),
    Item("logprobs.tokens", "List of token strings", _tokens),
    Item("logprobs.token_logprobs", "List of token log probabilities", _token_logprobs),
)

STREAM = (
    Item("chunk.data", "data: $ref: '#/components/schemas/CompletionChunk'", a.stream),
    Item("chunk.sentinel", "enum: - '[DONE]'", _sentinel),
    Item("chunk.id", "required: - id - token - choices - usage - finish_reason", _chunk("id", "string")),
    Item("chunk.token", "token: $ref: '#/components/schemas/CompletionToken'", _chunk_token),
    Item("chunk.created", "created: type: integer object: type: string enum: - completion.chunk", _chunk("created", "integer")),
    Item("chunk.object", "enum: - completion.chunk", a.chunks_where("object", "completion.chunk")),
    Item("chunk.choices", "title: CompletionChoices", _chunk("choices", "array")),
    Item("chunk.usage", "usage: allOf: - $ref: '#/components/schemas/UsageData' - nullable: true", _chunk_usage),
    Item("chunk.seed", "seed: type: integer finish_reason: allOf:", _chunk("seed", "integer", last=True)),
    Item("chunk.finish_reason", "finish_reason: allOf: - $ref: '#/components/schemas/FinishReason' - nullable: true", _chunk_finish),
    Item("chunk.token.id", "required: - id - text - logprob - special", _token_id),
    Item("chunk.token.text", "text: type: string logprob: type: number", _chunk("token.text", "string")),
    Item("chunk.token.logprob", "logprob: type: number", _token_logprob),
    Item("chunk.token.special", "special: type: boolean", _special),
    Item("chunk.choices.index", "CompletionChoice: type: object required: - index", a.chunk_indexes),
    Item("chunk.choices.text", "text: type: string index: type: integer delta:", a.chunk_texts),
    Item("chunk.choices.delta.role", "enum: - system - user - assistant - function - tool", _delta("role", "string")),
    Item("chunk.choices.delta.token_id", "token_id: type: integer", _delta("token_id", "integer")),
    Item("chunk.choices.delta.content", "content: type: string nullable: true", _delta("content", "string", "null")),
)

PAGE = Page(
    name="together",
    title="Together",
    url="https://docs.together.ai/reference/completions-1",
    greedy=GREEDY,
    groups={"request": REQUEST, "responses": RESPONSES, "answer": ANSWER, "stream": STREAM},
)
