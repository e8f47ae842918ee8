"""The ends of llama-server's ``/completion``: each choice has one that tells all there is to tell, and there are many choices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.dialects.folding import fold

from quintet.dialects.base import Identity
from quintet.dialects.completion import wire
from quintet.dialects.completion.dialect import Completion
from quintet.dialects.wire import encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, Usage

IDENTITY = Identity(id="0", created=1, model="m", fingerprint="fp")


def events(choices: int) -> list[Event]:
    prompts = [ChoiceDelta(at, "", (), (1, 2)) for at in range(choices)]
    ends = [ChoiceDone(at, Finish.LENGTH, "", at, tokens=1) for at in range(choices)]
    return [*prompts, *ends, Finished(Usage(2, choices))]


class Counted(str):
    """Counts the pieces that any path is cut into."""

    pieces = 0

    def split(self, *given: Any) -> list[str]:
        made = super().split(*given)
        Counted.pieces += len(made)
        return made

    def partition(self, by: str) -> tuple[str, str, str]:
        head, slash, rest = super().partition(by)
        Counted.pieces += 1
        return head, slash, Counted(rest)


@pytest.mark.parametrize("beginning", ["", "stop", "timings/x", "generation_settings"])
def test_of_a_path_no_more_is_looked_at_than_leads_somewhere(beginning: str) -> None:
    """256 paths of 255 slashes, of 128 choices: a third of a second for one body of 65 kB."""
    parsed = Completion().parse(json.dumps({"prompt": "a", "n": 128, "n_predict": 1}).encode(), 0)
    assert isinstance(parsed.options, wire.Options)
    fields = tuple(Counted(beginning + "/" * (255 - len(str(at)) - len(beginning)) + str(at)) for at in range(256))
    renderer = wire.renderer(parsed.request, IDENTITY, replace(parsed.options, fields=fields))
    Counted.pieces = 0
    assert json.loads(fold(renderer, events(128))) == [{}] * 128
    assert Counted.pieces <= 2 * 128 * 256 * 3  # the body is made twice


@pytest.mark.parametrize("stream", [True, False])
def test_what_all_ends_tell_alike_is_written_once(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """A prompt and stop strings that are not ASCII, of 128 samples: 31 MB, a quarter of a second for one body of 231 kB."""
    written: list[Any] = []

    def noted(value: Any) -> bytes:
        written.append(value)
        return encode(value)

    monkeypatch.setattr(wire, "encode", noted)
    prompts, stops = ["\u4e2d", "\u6587"], ["\u4e2d" * 9]
    body = {"prompt": prompts, "stop": stops, "n": 64, "n_predict": 1, "stream": stream}
    parsed = Completion().parse(json.dumps(body).encode(), 0)
    renderer = wire.renderer(parsed.request, IDENTITY, parsed.options)
    ends = _ends(renderer, stream)
    assert [end["prompt"] for end in ends] == [prompt for prompt in prompts for _ in range(64)]
    assert all(end["generation_settings"]["stop"] == stops for end in ends)
    texts = [value for value in written if isinstance(value, str)]
    assert (len(texts), sum(value == tuple(stops) for value in written)) == (2 if stream else 4, 1)
    assert not any(isinstance(value, dict) and isinstance(value.get("prompt"), str) for value in written)


def _ends(renderer: wire.LlamaRenderer, stream: bool) -> Sequence[Any]:
    if not stream:
        made: list[Any] = json.loads(fold(renderer, events(128)))
        return made
    return [json.loads(chunk) for event in events(128) for chunk in renderer.feed(event)]
