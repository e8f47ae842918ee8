"""A sixth dialect, made by following docs/contributing/add-a-dialect.md. Its page exists only in the quotations below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quintet.dialects.base import (
    ErrorReply,
    Fault,
    Headers,
    Identity,
    Parsed,
    ServedModel,
    broken,
    check_choices,
    fault,
    sampling,
    switched_off,
)
from quintet.dialects.catalog import Provider
from quintet.dialects.chunks import ChunkRenderer
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.extensions import Extensions
from quintet.dialects.fields import REQUIRED, Boolean, Field, Integer, Number, Prompts, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.wire import Counts, encode
from quintet.events import ChoiceDelta, ChoiceDone, Failed, Finish, Finished
from quintet.quota import Meter
from quintet.request import CompletionRequest, Prompt, StopRules

# --- the page's fields, as data

MODEL = Field("bird", String(256), "", shown="the served model")
# Page, say: "What the parrot hears."
PROMPT: Field[tuple[Prompt, ...]] = Field("say", Prompts(8), (), shown=REQUIRED)
# Page, words: "At most 64; default 8."
MAX_TOKENS = Field("words", Integer(0, 64), 8)
# Page, mood: "0 is calm, 1 is wild. Default: 0."
TEMPERATURE = Field("mood", Number(0, 1), 0.0)
SEED: Field[int | None] = Field("seed", Integer(0, 2**64 - 1), None, shown="drawn anew")
STREAM = Field("stream", Boolean(), False)

FIELDS: tuple[Field[Any], ...] = (MODEL, PROMPT, MAX_TOKENS, TEMPERATURE, SEED, STREAM)
EXTENSIONS = Extensions(FIELDS)
KNOWN = (*FIELDS, *EXTENSIONS.fields)


# --- what it writes

_FINISH = {Finish.EOS: "quiet", Finish.STOP: "quiet", Finish.LENGTH: "tired", Finish.ABORT: "tired", Finish.ERROR: "tired"}


class Said(msgspec.Struct, gc=False, rename={"index": "beak", "finish_reason": "became"}):
    text: str
    index: int
    finish_reason: str | None

    def extend(self, later: Said) -> None:
        """There are no log-probabilities to append."""


class Completion(msgspec.Struct, gc=False, rename={"choices": "said", "model": "bird"}):
    choices: list[Said]
    model: str
    usage: Counts | None = None


class Squawk(msgspec.Struct, gc=False):
    """Page, errors: "The parrot squawks, and shows you where it hurts." """

    squawk: str
    at: str | None

    @classmethod
    def of(cls, known: Fault) -> Squawk:
        return cls(known.message, known.param)


class ParrotRenderer(ChunkRenderer[Said, Completion]):
    """See ``Renderer``."""

    def __init__(self, request: CompletionRequest, identity: Identity) -> None:
        super().__init__(request)
        self._model = identity.model

    def _body(self, choices: list[Said]) -> Completion:
        return Completion(choices, self._model)

    def _pieces(self, delta: ChoiceDelta) -> list[Said]:
        return [Said(delta.text, delta.index, None)]

    def _end(self, done: ChoiceDone) -> Said:
        return Said("", done.index, _FINISH[done.finish])

    def _finish(self, last: Completion, event: Finished) -> None:
        last.usage = Counts.of(event.usage)

    def _broken(self, event: Failed) -> object:
        return {"error": Squawk.of(broken(event))}


class Parrot:
    """See ``Dialect``."""

    name = "parrot"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        request = EXTENSIONS.apply(raw, _request(raw, fresh_seed))
        check_choices(request, 8)
        return Parsed(request, unknown_fields(KNOWN, raw), unheeded=switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, _options: object = None) -> ParrotRenderer:
        return ParrotRenderer(request, identity)

    def error(self, error: Exception) -> ErrorReply:
        known = fault(error)
        return ErrorReply(known.status, known.headers, encode(Squawk.of(known)))

    def limits(self, meters: Sequence[Meter], _over: bool) -> Headers:
        return tuple((f"parrot-{meter.unit.value}-left", str(meter.remaining)) for meter in meters)

    def models(self, served: Sequence[ServedModel]) -> bytes:
        return encode({"birds": [one.name for one in served]})

    def model(self, served: ServedModel) -> bytes:
        return encode({"bird": served.name})


def _request(raw: Mapping[str, object], fresh_seed: int) -> CompletionRequest:
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=PROMPT.required(raw),
        max_tokens=MAX_TOKENS.of(raw),
        n=1,
        echo=False,
        logprobs=None,
        sampling=sampling(TEMPERATURE.of(raw), 1.0, SEED.of(raw), fresh_seed),
        stop=StopRules(()),
        stream=STREAM.of(raw),
        include_usage=True,
        user="",
    )


PROVIDER = Provider(
    dialect=Parrot(),
    title="Parrot",
    page="https://parrot.example/docs/completions",
    fields=KNOWN,
    body=Completion,
    error=Squawk,
    bases=("/parrot/v1", "/parrot"),
    agents=("Polly/",),
)
"""Its entry in the catalog."""
