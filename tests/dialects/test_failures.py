"""A request that fails on its way says whose fault it is, in every dialect: by the status, or in a stream's last frame."""

from __future__ import annotations

import json

import pytest

from quintet.dialects.base import Dialect, ErrorReply, Format, Identity, failed
from quintet.dialects.cerebras.dialect import Cerebras
from quintet.dialects.completion.wire import error as infill_error
from quintet.dialects.fireworks.dialect import Fireworks
from quintet.dialects.infill.dialect import Infill
from quintet.dialects.novita.dialect import Novita
from quintet.dialects.openai.dialect import OpenAI
from quintet.dialects.together.dialect import Together
from quintet.events import Blame, ChoiceDelta, Event, Failed

DIALECTS: dict[str, Dialect] = {
    "openai": OpenAI(),
    "fireworks": Fireworks(),
    "together": Together(),
    "cerebras": Cerebras(),
    "novita": Novita(),
}
FORMATS: dict[str, Format] = {**DIALECTS, "infill": Infill()}
STATUS = {Blame.SERVER: 500, Blame.NUMBERS: 500, Blame.REQUEST: 400, Blame.LOAD: 503, Blame.TIME: 504}
BODY = {"model": "toy", "prompt": "a", "max_tokens": 4, "stream": True}
INFILL = {"input_prefix": "a", "input_suffix": "b", "stream": True}


def answer(name: str, event: Failed) -> ErrorReply:
    return infill_error(failed(event)) if name == "infill" else DIALECTS[name].error(failed(event))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blame", Blame)
def test_the_status_is_that_of_whose_fault_it_is(name: str, blame: Blame) -> None:
    reply = answer(name, Failed("It cannot be done.", blame))
    assert reply.status == STATUS[blame]
    assert b"It cannot be done." in reply.body
    assert ("retry-after" in dict(reply.headers)) is (blame is Blame.LOAD)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("blame", Blame)
def test_the_last_frame_of_a_stream_says_what_the_status_would_have_said(name: str, blame: Blame) -> None:
    form = FORMATS[name]
    parsed = form.parse(json.dumps(INFILL if name == "infill" else BODY).encode(), 7)
    renderer = form.renderer(parsed.request, Identity(id="id", created=1, model="toy", fingerprint="fp"), parsed.options)
    end = Failed("It cannot be done.", blame)
    events: list[Event] = [ChoiceDelta(0, "x"), end]
    last = json.loads([frame for event in events for frame in renderer.feed(event)][-1])
    said = json.loads(answer(name, end).body)
    # Novita's body is wrapped, as its SDK looks for `error` in a stream; Fireworks' is inside a chunk.
    assert last["error"] in (said, said.get("error"))
