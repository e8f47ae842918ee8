"""Obfuscation: the size of a chunk tells next to nothing of its text, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.folding import fold as fold_body

from quintet.dialects.base import Identity
from quintet.dialects.openai.dialect import OpenAI
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText, Usage

IDENTITY = Identity(id="0123456789abcdef", created=1_700_000_000, model="m", fingerprint="fp")


def chunks(events: list[Event], identity: Identity = IDENTITY, **fields: Any) -> list[bytes]:
    parsed = OpenAI().parse(json.dumps({"stream": True, **fields}).encode(), 7)
    renderer = OpenAI().renderer(parsed.request, identity, parsed.options)
    return [chunk for event in events for chunk in renderer.feed(event)]


def plain(chunk: bytes) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(chunk)
    assert isinstance(made.pop("obfuscation"), str)
    return made


TEXTS = st.lists(st.text(max_size=200), max_size=20)


@pytest.mark.fault("G08")
@given(TEXTS)
def test_whatever_the_texts_there_are_few_sizes_and_the_rest_of_each_chunk_is_unchanged(texts: list[str]) -> None:
    events: list[Event] = [*(ChoiceDelta(0, text) for text in texts), ChoiceDone(0, Finish.STOP)]
    hidden = chunks(events)
    shown = chunks(events, stream_options={"include_obfuscation": False})
    assert [plain(chunk) for chunk in hidden] == [json.loads(chunk) for chunk in shown]
    assert len({len(chunk) for chunk in hidden}) <= 7  # 20 to 1280 bytes of text as JSON
    assert all(len(hide) > len(show) for hide, show in zip(hidden, shown, strict=True))


@pytest.mark.fault("G08")
@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters='"\\'), max_size=20), min_size=2))
def test_usual_tokens_and_ends_are_all_of_one_size(texts: list[str]) -> None:
    events: list[Event] = [*(ChoiceDelta(0, text) for text in texts), ChoiceDone(0, Finish.LENGTH), ChoiceDone(0, Finish.STOP)]
    assert len({len(chunk) for chunk in chunks(events)}) == 1


def test_it_is_on_by_default_and_off_on_request_and_never_in_json_or_errors() -> None:
    delta = ChoiceDelta(0, "a")
    assert b'"obfuscation"' in chunks([delta])[0]
    assert b'"obfuscation"' in chunks([delta], stream_options={"include_usage": True})[0]
    assert b'"obfuscation"' not in chunks([delta], stream_options={"include_obfuscation": False})[0]
    assert b'"obfuscation"' not in chunks([Failed("x")])[0]
    body = fold_body(OpenAI().renderer(OpenAI().parse(b'{"stream":false}', 7).request, IDENTITY), [delta, Finished(Usage(1, 1))])
    assert b'"obfuscation"' not in body


def test_the_padding_differs_from_chunk_to_chunk_and_response_to_response() -> None:
    other = Identity(id="fedcba9876543210", created=1_700_000_000, model="m", fingerprint="fp")
    drawn = [json.loads(chunk)["obfuscation"] for one in (IDENTITY, other) for chunk in chunks([ChoiceDelta(0, "a")] * 3, one)]
    assert len(set(drawn)) == 6


@pytest.mark.fault("G08")
def test_log_probabilities_are_hidden_too() -> None:
    def size(text: str) -> int:
        token = TokenText(5, text, text.encode(), -0.5, ((5, text, -0.5), (6, "b", -1.5)), 1)
        return len(chunks([ChoiceDelta(0, text, (token,))], logprobs=1)[0])

    assert len({size("x" * length) for length in range(1, 30)}) == 1


@pytest.mark.parametrize("cached", [0, 3])
def test_usage_breaks_the_tokens_down(cached: int) -> None:
    usage = Usage(10, 20, cached_tokens=cached, reasoning_tokens=4, accepted_tokens=5, rejected_tokens=6)
    last = json.loads(chunks([Finished(usage)], stream_options={"include_usage": True})[0])
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            **{"reasoning_tokens": 4, "accepted_prediction_tokens": 5, "rejected_prediction_tokens": 6, "audio_tokens": 0}
        },
    }
