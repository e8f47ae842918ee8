"""llama-server's ``/infill``, which llama.cpp's editor plug-ins call: the request. The answer is that of ``/completion``.

Page: llama.cpp, tools/server/README.md, "POST /infill", quoted as "page" below; "source": tools/server of the same tree; "plug-ins":
llama.vim and llama.vscode. What each field does, and where this departs: docs/infill.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quintet.dialects.base import Identity, Parsed
from quintet.dialects.completion import options
from quintet.dialects.completion.wire import LlamaRenderer, renderer
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.fields import Field, String
from quintet.dialects.infill.kinds import Chunk, Chunks
from quintet.dialects.json_guard import decode_object
from quintet.dialects.lists import ListOf
from quintet.errors import BadRequest
from quintet.request import CompletionRequest, Gap

MOST_BYTES = 1 << 21
"""Of all texts around a gap. Too long ones are cut, so no context bounds them, and to cut them all of them are tokenised."""

INPUT_PREFIX = Field("input_prefix", String(), "", note="Text before the gap; its end, if it is long.", shown="required")
INPUT_SUFFIX = Field("input_suffix", String(), "", note="Text after the gap; its beginning, if it is long.", shown="required")
# Page: "Additional context inserted before the FIM prefix"; "array of {"filename": string, "text": string} objects".
INPUT_EXTRA: Field[tuple[Chunk, ...]] = Field(
    "input_extra",
    ListOf(Chunks(), 4096),
    (),
    note='`{"text": ..., "filename": ...}` each; the last of them, if they are long. A name left out is `tmp`.',
)
# Source: the tokens of `prompt` follow those of the prefix. (The page says "Added after the `FIM_MID` token"; the source does not.)
PROMPT = Field("prompt", String(), "", note="What is typed so far of the line; goes on the prefix, tokenised by itself.")

# Page: "The endpoint also accepts all the options of `/completion`."
FIELDS: tuple[Field[Any], ...] = (INPUT_PREFIX, INPUT_SUFFIX, INPUT_EXTRA, PROMPT, *options.FIELDS)


class Infill:
    """Requests and answers of ``/infill``; see ``Format``."""

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        request = options.request_of(raw, ("",), fresh_seed)  # the gap's, once it is tokenised
        answer = options.options_of(raw, stream=request.stream)
        answer = replace(answer, gap=_gap(raw, max(answer.n_predict, 0)))
        unknown_members = {f"input_extra[].{name}": None for chunk in INPUT_EXTRA.of(raw) for name in chunk.unknown}  # each once
        unheeded = (*options.unheeded(raw, answer.samplers, request), *unknown_members)
        return Parsed(request, unknown_fields(FIELDS, raw), answer, unheeded)

    def renderer(self, request: CompletionRequest, identity: Identity, given: object = None) -> LlamaRenderer:
        return renderer(request, identity, given)


def _gap(raw: Mapping[str, object], most: int) -> Gap:
    extra = tuple((chunk.heading, chunk.text) for chunk in INPUT_EXTRA.of(raw))
    gap = Gap(INPUT_PREFIX.required(raw), PROMPT.of(raw), INPUT_SUFFIX.required(raw), extra, most)
    size = sum(len(text.encode()) for text in (gap.prefix, gap.line, gap.suffix, *itertools.chain(*extra)))
    if size > MOST_BYTES:
        names = ", ".join(field.name for field in (INPUT_SUFFIX, INPUT_EXTRA, PROMPT))
        raise BadRequest(INPUT_PREFIX.name, f"and {names} must together be at most {MOST_BYTES} bytes", f"{size} bytes")
    return gap
