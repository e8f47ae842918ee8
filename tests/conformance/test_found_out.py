"""A server that takes a field and ignores it is found out, whichever field of whichever page it is; so is one that miscounts or lies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quintet.cli.asking import Server
from quintet.conformance.client import Client
from quintet.conformance.item import Call, Item, Page, Reply, Send, Verdict
from quintet.conformance.pages import PAGES
from quintet.conformance.run import run

PATHS = {
    "openai": "/openai/v1/completions",
    "fireworks": "/fireworks/inference/v1/completions",
    "together": "/together/v1/completions",
    "cerebras": "/cerebras/v1/completions",
    "novita": "/novita/openai/v1/completions",
}
UNSEEN = {
    "user": "by its meaning it changes nothing",
    "prompt.default": "it is about a request without the field",
    "max_tokens.context": "of Fireworks' page: more than fits is lowered",
    "stop.token": "the toy's vocabulary has no such token",
    "example": "it asks for many fields at once",
    "stream.false": "without the field there is no stream either",
    "model.names": "without the field some model answers",
}
"""Items of requests that pass whether or not the field is there: id -> why."""


FIELDS = [(page, item) for page in PAGES.values() for item in page.groups["request"] if item.id not in UNSEEN]


REFUSED = frozenset(
    {"best_of.greater", "best_of.n", "echo.raw", "logprobs.maximum", "max_tokens.context", "min_p.range", "response_format.type"}
    | {"context_length_exceeded_behavior", "min_tokens.zero", "safety_model", "images", "suffix", "reasoning_effort"}
)
"""Items that are about what is refused, and no more than that with the toy."""


def without(send: Send, field: str, checked: bool) -> Send:
    """A server that takes the field and makes nothing of it; ``checked``: it refuses what a server that knew it would refuse."""

    def forgetful(call: Call) -> Reply:
        body = json.loads(call.body)
        if checked and (reply := send(call)).status != 200:
            return reply
        body.pop(field, None)
        return send(replace(call, body=json.dumps(body).encode()))

    return forgetful


def verdict(send: Send, page: Page, item: str) -> Verdict:
    (result,) = run(Client(send, page, PATHS[page.name], "toy"), page, (item,))
    return result.verdict


@pytest.mark.parametrize(("page", "item"), FIELDS, ids=lambda one: one.name if isinstance(one, Page) else one.id)
def test_a_field_that_is_taken_and_ignored_is_found_out(server: Server, page: Page, item: Item) -> None:
    assert verdict(without(server.send, item.id.partition(".")[0], checked=False), page, item.id) is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("page", "item"),
    [(page, item) for page, item in FIELDS if item.id not in REFUSED],
    ids=lambda one: one.name if isinstance(one, Page) else one.id,
)
def test_so_is_one_whose_range_is_kept_and_whose_meaning_is_not(server: Server, page: Page, item: Item) -> None:
    assert verdict(without(server.send, item.id.partition(".")[0], checked=True), page, item.id) is Verdict.DIFFERS


@pytest.mark.parametrize("name", ["together", "cerebras", "novita"])
def test_a_server_with_one_seed_for_all_is_found_out(server: Server, name: str) -> None:
    def seeded(call: Call) -> Reply:
        return server.send(replace(call, body=json.dumps({**json.loads(call.body), "seed": 7}).encode()))

    assert verdict(seeded, PAGES[name], "seed") is Verdict.DIFFERS


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_log_probabilities_that_are_never_there_are_found_out(server: Server, page: Page) -> None:
    assert verdict(without(server.send, "logprobs", checked=False), page, "choices.logprobs") is Verdict.DIFFERS


def damaged(send: Send, damage: Callable[[dict[str, Any]], object]) -> Send:
    """A server whose JSON answers are changed."""

    def wrong(call: Call) -> Reply:
        reply = send(call)
        if reply.status != 200 or not reply.headers["content-type"].startswith("application/json"):
            return reply
        body = json.loads(reply.body)
        damage(body)
        return replace(reply, body=json.dumps(body).encode())

    return wrong


def details(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["usage"].setdefault("completion_tokens_details", {})
    return found


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "usage": lambda body: body["usage"].update(total_tokens=body["usage"]["total_tokens"] + 1),
    "usage.completion_tokens": lambda body: body["usage"].update(completion_tokens=7),
    "usage.prompt_tokens": lambda body: body["usage"].update(prompt_tokens=7),
    "usage.completion_tokens_details.accepted_prediction_tokens": lambda body: details(body).update(accepted_prediction_tokens=3),
    "usage.completion_tokens_details.rejected_prediction_tokens": lambda body: details(body).update(rejected_prediction_tokens=3),
    "returns": lambda body: body.update(object="chat.completion"),
    "object": lambda body: body.update(object="chat.completion"),
    "created": lambda body: body.update(created=body["created"] * 1000),
    "id": lambda body: body.update(id="the same"),
    "model.answer": lambda body: body.update(model="another"),
    "choices": lambda body: body.update(choices={}),
    "choices.text": lambda body: body["choices"][0].update(text=None),
    "choices.finish_reason": lambda body: body["choices"][0].update(finish_reason="ended"),
    "choices.index": lambda body: [choice.update(index="0") for choice in body["choices"]],
    "choices.logprobs": lambda body: [choice.update(logprobs=[]) for choice in body["choices"]],
}


@pytest.mark.parametrize(
    ("page", "item"),
    [(page, item.id) for page in PAGES.values() for _, item in page.each() if item.id in DAMAGES],
    ids=lambda one: one.name if isinstance(one, Page) else one,
)
def test_an_answer_that_is_wrong_in_one_member_is_found_out(server: Server, page: Page, item: str) -> None:
    assert verdict(damaged(server.send, DAMAGES[item]), page, item) is Verdict.DIFFERS


LISTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "choices.logprobs.tokens": lambda found: found["tokens"].reverse(),
    "choices.logprobs.token_logprobs": lambda found: found.update(token_logprobs=[one + 9 for one in found["token_logprobs"]]),
    "choices.logprobs.top_logprobs": lambda found: found.update(top_logprobs=[None for _ in found["tokens"]]),
    "choices.logprobs.text_offset": lambda found: found.update(text_offset=[-1 for _ in found["tokens"]]),
}


@pytest.mark.parametrize("item", LISTS)
@pytest.mark.parametrize("name", ["openai", "fireworks", "cerebras", "novita"])
def test_lists_of_log_probabilities_that_do_not_fit_the_text_are_found_out(server: Server, name: str, item: str) -> None:
    def damage(body: dict[str, Any]) -> None:
        for choice in body["choices"]:
            if choice.get("logprobs"):
                LISTS[item](choice["logprobs"])

    assert verdict(damaged(server.send, damage), PAGES[name], item) is Verdict.DIFFERS


def cut(send: Send, old: bytes, new: bytes) -> Send:
    """A server whose streams are changed."""

    def wrong(call: Call) -> Reply:
        reply = send(call)
        stream = reply.headers["content-type"].startswith("text/event-stream")
        return replace(reply, body=reply.body.replace(old, new)) if stream else reply

    return wrong


@pytest.mark.parametrize(("old", "new"), [(b"data: [DONE]", b""), (b"data: {", b"event: x\ndata: {"), (b"data: {", b"data: x{")])
@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_a_stream_that_has_no_end_or_named_events_or_no_json_is_found_out(server: Server, page: Page, old: bytes, new: bytes) -> None:
    item = "chunk.data" if page.name == "together" else "stream"
    assert verdict(cut(server.send, old, new), page, item) is Verdict.DIFFERS
