"""The JSON body is what a client gets by putting the stream's chunks together: Cerebras and Novita.

The clients here are written from the providers' pages, without a look at the renderers. The events are those of real choices (``text``)
over random token bytes, so that every offset can be held against the text that a client sees.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.dialects.fold_clients import put_together
from tests.dialects.folding import fold as fold_body

from quintet.dialects.base import Dialect, Identity
from quintet.dialects.cerebras.dialect import Cerebras
from quintet.dialects.novita.dialect import Novita
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, Timing, TokenEvent, Usage
from quintet.text.choice import Choice
from quintet.text.entries import Echo
from quintet.text.labels import Labels
from quintet.text.stop import compile_stops

IDENTITY = Identity(id="0", created=1, model="m", fingerprint="fp")
PROMPTS = ("p\u00e9", "")
NAME = "\x07"
"""Of the token that all events have, in lists, where it has no text."""
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

pieces = st.sampled_from([b"", b"a", b" b", "\u20ac".encode()[:1], "\u20ac".encode()[1:], b"\n", "\u2028".encode(), b'"\\', b"stop"])
logprob = st.sampled_from([0.0, -1e-300, -0.1, -2.5, -1e5, -float("inf")])


@st.composite
def answers(draw: st.DrawFn, n: int, echo: bool, logprobs: int | None, include: bool, entries: bool = False) -> list[Event]:
    """Events of a request that went well: ``PROMPTS`` times ``n`` choices, interleaved; with ``entries`` each token is told anyway."""
    vocabulary = [bytes([byte]) for byte in range(256)]
    queues: list[list[Event]] = []
    for index in range(len(PROMPTS) * n):
        prompt = PROMPTS[index // n]
        ids = list(prompt.encode()) or [0]
        shown = Echo(prompt, ids if logprobs is not None else (), Labels(vocabulary)) if echo else None
        if shown is not None and logprobs is not None:
            for at, one in enumerate(ids):
                shown.add(token_event(draw, index, bytes([one]), logprobs, first=not at))
        choice = Choice(
            index,
            start=len(prompt),
            echo=shown,
            logprobs=entries or logprobs is not None,
            patterns=compile_stops(("stop", "ab")),
            include=include,
            seed=index,
            labels=Labels(vocabulary),
        )
        made: list[TokenEvent] = []
        made += [token_event(draw, index, piece, logprobs) for piece in draw(st.lists(pieces, min_size=1, max_size=6))]
        made[-1] = structs.replace(made[-1], finish=draw(st.sampled_from([Finish.EOS, Finish.LENGTH])))
        queues.append([])
        for event in made:
            if not choice.done:
                queues[-1] += choice.feed(event)
    order = draw(st.permutations([index for index, queue in enumerate(queues) for _ in queue]))
    usage = Usage(
        draw(st.integers(0, 9)), draw(st.integers(0, 9)), cached_tokens=1, reasoning_tokens=2, accepted_tokens=3, rejected_tokens=4
    )
    return [*(queues[index].pop(0) for index in order), Finished(usage, Timing(queue=0.25, prompt=0.5, completion=1.0, total=2.0 + 1e-9))]


def token_event(draw: st.DrawFn, seq: int, piece: bytes, logprobs: int | None, first: bool = False) -> TokenEvent:
    if logprobs is None or first:
        return TokenEvent(seq, 7, piece)
    top = tuple((97 + rank, draw(logprob)) for rank in range(logprobs))
    return TokenEvent(seq, 7, piece, draw(logprob), top)


def stream_and_body(dialect: Dialect, body: dict[str, Any], events: list[Event], **options: Any) -> tuple[list[Any], Any]:
    """The chunks of the stream, and the body; ``options`` are those that only a stream may have."""
    parsed = [dialect.parse(json.dumps(one).encode(), 7) for one in ({**body, **options, "stream": True}, body)]
    streaming, whole = (dialect.renderer(one.request, IDENTITY, one.options) for one in parsed)
    chunks = [chunk for event in events for chunk in streaming.feed(event)]
    folded = fold_body(whole, events)
    assert all(chunk.isascii() and b"\n" not in chunk for chunk in [*chunks, folded])
    strict = partial(json.loads, parse_constant=lambda _: 1 / 0)
    return [strict(chunk) for chunk in chunks], strict(folded)


def check_offsets(choice: dict[str, Any]) -> None:
    """Each offset is the place of its token in the text, where a control token, which has a name only, takes no room."""
    lists = choice["logprobs"]
    texts = ["" if token.startswith("token_id:") or token == NAME else token for token in lists["tokens"]]
    assert "".join(texts) == choice["text"]
    for text, offset in zip(texts, lists["text_offset"], strict=True):
        assert choice["text"][offset : offset + len(text)] == text
    assert len({len(values) for values in lists.values()}) == 1


def without_nulls(value: Any) -> bool:
    """Whether no key is null; a list may hold nulls, where a prompt's first token has no log-probability."""
    if isinstance(value, dict):
        return all(one is not None and without_nulls(one) for one in value.values())
    return all(map(without_nulls, value)) if isinstance(value, list) else True


@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from([None, 0, 2, 20]), st.integers(1, 2))
def test_cerebras_raw_tokens_are_the_fold_of_their_stream(data: st.DataObject, logprobs: int | None, n: int) -> None:
    events = data.draw(answers(n, False, logprobs, include=False, entries=True))
    body = {"prompt": PROMPTS, "n": n, "return_raw_tokens": True, "logprobs": logprobs}
    chunks, whole = stream_and_body(Cerebras(), body, events)
    for choice in whole["choices"]:
        index = choice["index"]
        mine = [event for event in events if isinstance(event, ChoiceDelta) and event.index == index]
        shown = [token.token for event in mine for token in event.tokens if token.whole]  # the others stand for more than is shown
        streamed = [token for chunk in chunks for one in chunk["choices"] if one["index"] == index for token in one["tokens"]]
        assert choice["tokens"] == streamed == shown
        assert ("logprobs" in choice) == (logprobs is not None)
    assert not any("text" in choice for chunk in [*chunks, whole] for choice in chunk["choices"])


@pytest.mark.fault("H05")
@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from([None, 0, 2, 20]), st.booleans(), st.integers(1, 2))
def test_cerebras_json_is_the_fold_of_its_stream(data: st.DataObject, logprobs: int | None, echo: bool, n: int) -> None:
    events = data.draw(answers(n, echo, logprobs, include=False))
    chunks, whole = stream_and_body(Cerebras(), {"prompt": PROMPTS, "n": n, "echo": echo, "logprobs": logprobs}, events)
    assert all(chunk["system_fingerprint"] == "fp" and without_nulls(chunk) for chunk in [*chunks, whole])
    assert [("usage" in chunk, "time_info" in chunk) for chunk in chunks] == [(False, False)] * (len(chunks) - 1) + [(True, True)]
    assert chunks[-1]["choices"][0]["finish_reason"]
    for choice in whole["choices"]:
        assert ("logprobs" in choice) == (logprobs is not None)
        if logprobs is not None:
            assert ("top_logprobs" in choice["logprobs"]) == (logprobs > 0)
            check_offsets(choice)
    joined = put_together(chunks)
    for choice in joined["choices"]:
        if choice["logprobs"] is None:
            del choice["logprobs"]
    assert joined == whole


@pytest.mark.fault("H05")
@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from([None, 0, 1, 5]), st.booleans(), st.integers(1, 2))
def test_novita_json_is_the_fold_of_its_stream(data: st.DataObject, logprobs: int | None, usage_alone: bool, n: int) -> None:
    events = data.draw(answers(n, False, logprobs, include=True))
    options = {"stream_options": {"include_usage": usage_alone}}
    chunks, whole = stream_and_body(Novita(), {"prompt": PROMPTS, "n": n, "logprobs": logprobs}, events, **options)
    assert [chunk["usage"] is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (chunks[-1]["choices"] == []) == usage_alone
    assert all(set(choice) == {"text", "index", "logprobs", "finish_reason"} for chunk in [*chunks, whole] for choice in chunk["choices"])
    if logprobs is not None:
        for choice in whole["choices"]:
            check_offsets(choice)
    assert put_together(chunks) == whole


@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from([None, 1]))
def test_a_choice_that_a_stop_string_ends_has_it_in_novitas_text_and_not_in_cerebras(data: st.DataObject, logprobs: int | None) -> None:
    for dialect, include in ((Novita(), True), (Cerebras(), False)):
        events = data.draw(answers(1, False, logprobs, include))
        _, whole = stream_and_body(dialect, {"prompt": PROMPTS, "logprobs": logprobs}, events)
        for done in (event for event in events if isinstance(event, ChoiceDone)):
            text = whole["choices"][done.index]["text"]
            assert text.endswith(done.stop) if include else "stop" not in text
