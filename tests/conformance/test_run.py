"""A run comes to its end, whatever a server answers, and nothing that passed by in the meantime is held against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quintet.cli import clients
from quintet.conformance.client import Client
from quintet.conformance.item import Call, Page, Reply, Result, Send, Verdict
from quintet.conformance.pages import PAGES
from quintet.conformance.run import run

LISTS = {
    "tokens": ["a", "b"],
    "token_logprobs": [-0.5, -1],
    "top_logprobs": [{"a": -0.5}, {"b": -1}],
    "text_offset": [0, 1],
    "token_ids": [1, 2],
}
CHOICE = {"text": "ab", "index": 0, "finish_reason": "stop", "seed": 1, "tokens": [1, 2], "logprobs": LISTS}
USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
BODY = {
    **{"id": "x", "object": "text_completion", "created": 1_700_000_000, "model": "m", "system_fingerprint": "f"},
    **{"choices": [CHOICE], "usage": USAGE, "time_info": {"queue_time": 0.1}, "perf_metrics": {"prompt-tokens": 4}},
    **{"prompt": [{"text": "Once upon a time", "logprobs": LISTS}], "error": {"message": "m", "type": "t"}, "finish_reason": None},
    **{"token": {"id": 1, "text": "ab", "logprob": -1, "special": False}},
}


def results(send: Send, page: Page, *only: str) -> list[Result]:
    return list(run(Client(send, page, "/v1/completions", "m"), page, only))


def replying(body: object) -> Send:
    """A server that answers everything with this, in a stream too."""
    whole = json.dumps(body).encode()

    def send(call: Call) -> Reply:
        if json.loads(call.body).get("stream"):
            return Reply(200, {"content-type": "text/event-stream"}, b"data: " + whole + b"\n\ndata: [DONE]\n\n")
        return Reply(200, {"content-type": "application/json"}, whole)

    return send


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_of_a_server_that_is_over_a_limit_no_item_can_be_told(page: Page, status: int) -> None:
    found = results(lambda _: Reply(status, {}, b"{}"), page)
    assert {one.item.id: one.verdict for one in found if one.verdict is not Verdict.UNTOLD} == {}
    assert not any("the server says so" in one.seen for one in found)


def damaged(value: Any) -> Iterator[Any]:
    """This JSON with one thing in it, at any depth, gone or of another type; of a list its first."""
    yield from (None, [], "x")
    places: list[Any] = list(value) if isinstance(value, dict) else [0] if isinstance(value, list) else []
    for place in places:
        for other in damaged(value[place]):
            changed = value.copy()
            changed[place] = other
            yield changed
        changed = value.copy()
        del changed[place]
        yield changed


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_no_answer_of_an_odd_shape_ends_the_run(page: Page) -> None:
    for body in damaged(BODY):
        assert len(results(replying(body), page)) == sum(1 for _ in page.each())


def test_an_answer_that_no_judge_was_ready_for_differs() -> None:
    def send(_: Call) -> Reply:
        raise KeyError("choices")

    (found,) = results(send, PAGES["openai"], "object")
    assert (found.verdict, found.seen) == (Verdict.DIFFERS, "the answer has not the page's shape (KeyError: 'choices')")


@pytest.mark.parametrize(
    ("name", "item"), [("fireworks", "top_logprobs"), ("fireworks", "min_p"), ("novita", "top_k"), ("openai", "logprobs")]
)
@pytest.mark.parametrize("top", [None, "absent"])
def test_alternatives_that_are_not_there_are_told_as_such(name: str, item: str, top: object) -> None:
    lists = {**LISTS, "top_logprobs": top} if top is None else {key: value for key, value in LISTS.items() if key != "top_logprobs"}
    (found,) = results(replying({**BODY, "choices": [{**CHOICE, "logprobs": lists}]}), PAGES[name], item)
    assert found.verdict is Verdict.DIFFERS and found.seen.startswith("there are no top_logprobs")


@pytest.mark.parametrize("top", [[{}, {}], [{"token": "a", "logprob": -1}, {"token": "b", "logprob": -1}], [None, None], [[], []]])
def test_alternatives_that_are_no_texts_with_numbers_are_shown(top: list[object]) -> None:
    (found,) = results(
        replying({**BODY, "choices": [{**CHOICE, "logprobs": {**LISTS, "top_logprobs": top}}]}),
        PAGES["openai"],
        "choices.logprobs.token_logprobs",
    )
    assert found.verdict is Verdict.DIFFERS and found.seen.startswith("an entry of top_logprobs is ")


def test_of_a_text_that_ended_before_its_first_token_log_probabilities_cannot_be_told() -> None:
    lists: dict[str, list[object]] = {name: [] for name in LISTS}
    (found,) = results(replying({**BODY, "choices": [{**CHOICE, "text": "", "logprobs": lists}]}), PAGES["openai"], "logprobs")
    assert (found.verdict, found.seen) == (Verdict.UNTOLD, "the model ended before its first token")


@pytest.mark.parametrize(
    ("hiccup", "verdict"), [(Reply(0, {}, b"", "no answer within 60 s"), Verdict.DIFFERS), (Reply(503, {}, b"{}"), Verdict.UNTOLD)]
)
def test_what_failed_once_is_asked_again_for_the_next_item(hiccup: Reply, verdict: Verdict) -> None:
    sent, answer = list[Call](), replying(BODY)

    def send(call: Call) -> Reply:
        sent.append(call)
        return hiccup if len(sent) == 1 else answer(call)

    found = results(send, PAGES["openai"], "created", "model.answer", "object")
    assert [one.verdict for one in found] == [verdict, Verdict.PASS, Verdict.PASS]
    assert len(sent) == 2, "the answer that came is kept"


def test_the_command_offers_the_pages_that_there_are_items_of() -> None:
    """It has a list of its own, as the items take longer to import than the help to print."""
    assert tuple(PAGES) == clients.PAGES
