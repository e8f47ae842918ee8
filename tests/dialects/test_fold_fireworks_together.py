"""The JSON body is what a client gets by putting the stream's chunks together: Fireworks and Together.

The clients here are written from the providers' pages, without a look at the renderers.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialects.fold_clients import joined_fireworks, joined_together
from tests.dialects.folding import fold as fold_body

from quintet.dialects.base import Dialect, Identity
from quintet.dialects.fireworks.dialect import Fireworks
from quintet.dialects.together.dialect import Together
from quintet.dialects.wire import FLOOR
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, Timing, TokenText, Usage

IDENTITY = Identity(id="0", created=1, model="m", fingerprint="fp")
PROMPTS = 2

logprob = st.sampled_from([0.0, -0.0, -1e-300, -0.1, -1.0, -2.5, -9999.0, -1e5, -float("inf")])
text = st.sampled_from(["", "a", " b", "\u20ac", "\ufffd", "\n\u2028", '"\\', "\U0001f600\0"])


@st.composite
def token(draw: st.DrawFn) -> TokenText:
    """A token with the likeliest tokens at its place, itself among them."""
    own = draw(st.tuples(st.integers(0, 9), text, logprob))
    others = draw(st.lists(st.tuples(st.integers(10, 19), text, logprob), max_size=2))
    top = sorted([own, *others], key=lambda one: -one[2])
    raws = tuple(label.encode()[:2] for _, label, _ in top)
    return TokenText(own[0], own[1], own[1].encode()[:2], own[2], tuple(top), own[0], top_raw=raws)


def first(token: TokenText) -> TokenText:
    """The first of a prompt, which nothing precedes."""
    return TokenText(token.token, token.text, token.raw, None, (), 0)


@st.composite
def answers(draw: st.DrawFn, prompts: int, n: int, echo: bool, with_tokens: bool) -> list[Event]:
    """Events of a request that went well, choices interleaved; with ``echo`` each starts with its prompt, whole and alone."""
    queues: list[list[Event]] = []
    prompt: list[TokenText] = []
    for index in range(prompts * n):
        deltas = draw(st.lists(st.lists(token(), min_size=1, max_size=2), max_size=3))
        if echo and index % n == 0:
            prompt = draw(st.lists(token(), min_size=1, max_size=2))
        if echo:
            deltas = [[first(prompt[0]), *prompt[1:]], *deltas]
        events: list[Event] = [ChoiceDelta(index, "".join(one.text for one in part), tuple(part) if with_tokens else ()) for part in deltas]
        finish = draw(st.sampled_from([Finish.EOS, Finish.STOP, Finish.LENGTH]))
        queues.append([*events, ChoiceDone(index, finish, seed=draw(st.integers(0, 2**64 - 1)))])
    order = draw(st.permutations([index for index, queue in enumerate(queues) for _ in queue]))
    timing = Timing(queue=0.25, prompt=0.5, completion=1.0, total=2.0 + 1e-9)
    return [
        *(queues[index].pop(0) for index in order),
        Finished(Usage(draw(st.integers(0, 9)), draw(st.integers(0, 9)), cached_tokens=1), timing),
    ]


def stream_and_body(dialect: Dialect, body: dict[str, Any], events: list[Event]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    sides = []
    for stream in (True, False):
        parsed = dialect.parse(json.dumps({**body, "stream": stream}).encode(), 7)
        sides.append(dialect.renderer(parsed.request, IDENTITY, parsed.options))
    chunks = [chunk for event in events for chunk in sides[0].feed(event)]
    whole = fold_body(sides[1], events)
    assert all(chunk.isascii() and b"\n" not in chunk for chunk in [*chunks, whole])
    strict = partial(json.loads, parse_constant=lambda _: 1 / 0)
    return [strict(chunk) for chunk in chunks], strict(whole)


shapes = st.sampled_from([{}, {"logprobs": 0}, {"logprobs": 3}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
extras = st.fixed_dictionaries(
    {"n": st.integers(1, 2)},
    optional={
        "echo": st.booleans(),
        "echo_last": st.integers(0, 3),
        "return_token_ids": st.booleans(),
        "raw_output": st.booleans(),
        "perf_metrics_in_response": st.booleans(),
    },
)


@pytest.mark.fault("H05")
@settings(deadline=None, max_examples=100)
@given(st.data(), shapes, extras)
def test_fireworks_json_is_the_fold_of_its_stream(data: st.DataObject, shape: dict[str, Any], extra: dict[str, Any]) -> None:
    body = {"prompt": ["p"] * PROMPTS, **shape, **extra}
    request = Fireworks().parse(json.dumps(body).encode(), 7).request
    events = data.draw(answers(PROMPTS, request.n, request.echo, request.logprobs is not None or request.token_ids))
    chunks, whole = stream_and_body(Fireworks(), body, events)
    assert joined_fireworks(chunks) == whole
    assert ("perf_metrics" in whole) == extra.get("perf_metrics_in_response", False)
    assert {"token_ids" in choice for choice in whole["choices"]} == {extra.get("return_token_ids", False)}
    assert {"raw_output" in choice for choice in whole["choices"]} == {extra.get("raw_output", False)}


@settings(deadline=None, max_examples=60)
@given(st.data(), shapes.filter(bool), st.booleans())
def test_fireworks_never_sends_a_null_inside_its_log_probabilities(data: st.DataObject, shape: dict[str, Any], echo: bool) -> None:
    chunks, whole = stream_and_body(Fireworks(), {"prompt": "p", "echo": echo, **shape}, data.draw(answers(1, 1, echo, with_tokens=True)))
    for one in [*chunks, whole]:
        assert "null" not in json.dumps(one["choices"][0]["logprobs"])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_fireworks_shows_exactly_the_alternatives_that_were_asked_for(data: st.DataObject) -> None:
    events = data.draw(answers(1, 1, echo=False, with_tokens=True))
    asked = data.draw(st.integers(0, 5))
    _, whole = stream_and_body(Fireworks(), {"prompt": "p", "logprobs": True, "top_logprobs": asked}, events)
    tokens = [one for event in events if isinstance(event, ChoiceDelta) for one in event.tokens]
    for entry, one in zip(whole["choices"][0]["logprobs"]["content"], tokens, strict=True):
        assert entry["logprob"] == max(one.logprob or 0.0, FLOOR)
        assert bytes(entry["bytes"]) == one.raw
        likeliest = [max(value, FLOOR) for _, _, value in one.top][:asked]
        assert [alternative["logprob"] for alternative in entry["top_logprobs"]] == likeliest
        known = [raw or label.encode() * (token != one.token) for (token, label, _), raw in zip(one.top, one.top_raw, strict=True)]
        assert [bytes(alternative["bytes"]) for alternative in entry["top_logprobs"]] == known[:asked]


@pytest.mark.fault("H05")
@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([None, 0, 1, 20]), st.booleans(), st.integers(1, 3), st.integers(1, 6))
def test_together_json_is_the_fold_of_its_stream(data: st.DataObject, logprobs: int | None, echo: bool, n: int, most: int) -> None:
    body = {"prompt": "p", "n": n, "echo": echo, "logprobs": logprobs, "max_tokens": most}
    chunks, whole = stream_and_body(Together(), body, data.draw(answers(1, n, echo, with_tokens=True)))
    assert whole.pop("object") == "text.completion"
    assert {chunk["object"] for chunk in chunks} == {"completion.chunk"}
    about = {"id": "0", "created": 1, "model": "m"}
    assert about | joined_together(chunks, logprobs) == whole
    assert len(whole["prompt"]) == echo
