"""Mistral's fill-in-the-middle completions, as editors send them to Codestral: the request.

Page: https://docs.mistral.ai/api/endpoint/fim, quoted as "page" below (``FIMCompletionRequest`` of Mistral's OpenAPI document). "Continue":
its ``Mistral`` provider, which posts ``fim/completions`` and reads ``choices[0].delta.content``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quintet.dialects.base import GREEDY_NOTE, Identity, Parsed, sampling
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.fields import REQUIRED, Boolean, Field, Integer, Number, Object, Status, Stop, String
from quintet.dialects.fim.wire import FimRenderer
from quintet.dialects.json_guard import decode_object
from quintet.request import CompletionRequest, StopRules

MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
# Page, prompt: "The text/code to complete."
PROMPT = Field("prompt", String(), "", shown=REQUIRED)
# Page, suffix: "Optional text/code that adds more context for the model. When given a `prompt` and a `suffix` the model will fill what is
# between them. When `suffix` is not provided, the model will simply execute completion starting with `prompt`."
SUFFIX = Field("suffix", String(), "", note="400 for a model without fill-in-the-middle tokens.")
# Page, max_tokens: "The token count of your prompt plus `max_tokens` cannot exceed the model's context length."
MAX_TOKENS: Field[int | None] = Field("max_tokens", Integer(0), None, shown="up to the end of the context")
# Page, min_tokens: "The minimum number of tokens to generate in the completion."
MIN_TOKENS = Field("min_tokens", Integer(0, 2**31 - 1), 0)
# Page, temperature: "between 0.0 and 0.7" is recommended; "maximum: 1.5"; "The default value varies depending on the model".
TEMPERATURE = Field("temperature", Number(0, 1.5), 0.3, note=f"The page has no default. {GREEDY_NOTE}")
TOP_P = Field("top_p", Number(0, 1), 1.0)
# Page, stop: "Stop generation if this token is detected. Or if one of these tokens is detected when providing an array".
STOP: Field[tuple[str, ...]] = Field("stop", Stop(32, 1024), ())
STREAM = Field("stream", Boolean(), False)
# Page, random_seed: "The seed to use for random sampling. If set, different calls will generate deterministic results."
RANDOM_SEED: Field[int | None] = Field("random_seed", Integer(0, 2**64 - 1), None, shown="drawn anew")
METADATA: Field[dict[str, object]] = Field("metadata", Object(), {}, Status.NO_OP)

FIELDS: tuple[Field[Any], ...] = (
    *(MODEL, PROMPT, SUFFIX, MAX_TOKENS, MIN_TOKENS, TEMPERATURE, TOP_P, STOP, STREAM, RANDOM_SEED, METADATA),
)


class FimCompletion:
    """Requests and answers; see ``Format``."""

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        METADATA.of(raw)
        request = _request(raw, fresh_seed)
        return Parsed(request, unknown_fields(FIELDS, raw), request.max_tokens is not None)

    def renderer(self, _request: CompletionRequest, identity: Identity, bounded: object = None) -> FimRenderer:
        return FimRenderer(identity, bounded=bool(bounded))


def _request(raw: Mapping[str, object], fresh_seed: int) -> CompletionRequest:
    drawn = sampling(TEMPERATURE.of(raw), TOP_P.of(raw), RANDOM_SEED.of(raw), fresh_seed)
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=(PROMPT.required(raw),),
        max_tokens=MAX_TOKENS.of(raw),
        n=1,
        echo=False,
        logprobs=None,
        sampling=replace(drawn, min_tokens=MIN_TOKENS.of(raw)),
        stop=StopRules(STOP.of(raw)),
        stream=STREAM.of(raw),
        include_usage=True,
        user="",
        suffix=SUFFIX.of(raw),
        spelled=(("seed", RANDOM_SEED.name),),
    )
