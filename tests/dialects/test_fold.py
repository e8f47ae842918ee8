"""The JSON body is what a client gets by putting the stream's chunks together."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialects.fold_clients import put_together
from tests.dialects.folding import fold as fold_body

from quintet.dialects.base import Dialect, Identity
from quintet.dialects.openai.dialect import OpenAI
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, TokenText, Usage

IDENTITY = Identity(id="0", created=1, model="m", fingerprint="fp")
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

logprob = st.floats(max_value=0, allow_nan=False)
tops = st.lists(st.tuples(st.integers(0, 9), st.text(max_size=3), logprob), max_size=4).map(tuple)
tokens = st.builds(TokenText, st.integers(0, 9), st.text(max_size=3), st.just(b""), st.none() | logprob, tops, st.integers(min_value=0))


@st.composite
def requests(draw: st.DrawFn) -> tuple[bool, list[Event]]:
    """Events of a request that went well, choices interleaved."""
    logprobs = draw(st.booleans())
    queues: list[list[Event]] = []
    for index in range(draw(st.integers(1, 3))):
        entries = st.lists(tokens, max_size=3).map(tuple) if logprobs else st.just(())
        deltas = st.builds(ChoiceDelta, st.just(index), st.text(max_size=5), entries)
        done = ChoiceDone(index, draw(st.sampled_from([Finish.EOS, Finish.STOP, Finish.LENGTH])))
        queues.append([*draw(st.lists(deltas, max_size=4)), done])
    order = draw(st.permutations([index for index, queue in enumerate(queues) for _ in queue]))
    events = [queues[index].pop(0) for index in order]
    return logprobs, [*events, Finished(Usage(draw(st.integers(0, 9)), draw(st.integers(0, 9)), cached_tokens=draw(st.integers(0, 9))))]


def check(dialect: Dialect, logprobs: bool, events: list[Event]) -> None:
    request = dialect.parse(b'{"stream":true,"stream_options":{"include_usage":true}}', 7).request
    request = dataclasses.replace(request, logprobs=4 if logprobs else None)
    streaming = dialect.renderer(request, IDENTITY)
    chunks = [chunk for event in events for chunk in streaming.feed(event)]
    body = fold_body(dialect.renderer(dataclasses.replace(request, stream=False, include_usage=False), IDENTITY), events)
    assert all(chunk.isascii() and b"\n" not in chunk for chunk in [*chunks, body])
    assert put_together(json.loads(chunk) for chunk in chunks) == json.loads(body)


@pytest.mark.fault("H05")
@settings(deadline=None)
@given(requests())
def test_openai_json_is_the_fold_of_its_stream(made: tuple[bool, list[Event]]) -> None:
    check(OpenAI(), *made)


@settings(deadline=None)
@given(requests())
def test_every_log_probability_is_a_json_number_and_the_likeliest_is_told_by_equality(made: tuple[bool, list[Event]]) -> None:
    _, events = made
    renderer = OpenAI().renderer(dataclasses.replace(OpenAI().parse(b"{}", 7).request, logprobs=4), IDENTITY)
    found = [choice["logprobs"] for choice in json.loads(fold_body(renderer, events), parse_constant=lambda _: 1 / 0)["choices"]]
    given_ = [[t for e in events if isinstance(e, ChoiceDelta) and e.index == index for t in e.tokens] for index in range(len(found))]
    for lists, entries in zip(found, given_, strict=True):
        assert {len(lists[name]) for name in LISTS} == {len(entries)}
        for value, top, entry in zip(lists["token_logprobs"], lists["top_logprobs"], entries, strict=True):
            if entry.logprob is None:
                assert value is None
                assert top is None
                continue
            best = max([entry.logprob, *(logprob for _, _, logprob in entry.top)])
            assert max(top.values()) == max(best, -9999.0)
            assert (value == max(top.values())) == (max(entry.logprob, -9999.0) == max(best, -9999.0))
            assert top[entry.text] >= value
