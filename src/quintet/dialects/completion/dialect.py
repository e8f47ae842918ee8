"""llama-server's own ``/completion``: the request. What each field does, and where this departs: docs/completion.md.

Page: llama.cpp, tools/server/README.md, "POST /completion".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quintet.dialects.base import Identity, Parsed
from quintet.dialects.completion import options
from quintet.dialects.completion.kinds import LlamaPrompts, Parts, plain
from quintet.dialects.completion.wire import LlamaRenderer, renderer
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.fields import REQUIRED, Field
from quintet.dialects.json_guard import decode_object
from quintet.request import CompletionRequest

PROMPT: Field[tuple[Parts, ...]] = Field(
    "prompt", LlamaPrompts(options.MAX_CHOICES), (), note="Over 1, the JSON body is an array of answers.", shown=REQUIRED
)
FIELDS: tuple[Field[Any], ...] = (PROMPT, *options.FIELDS)


class Completion:
    """Requests and answers of ``/completion``; see ``Format``."""

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        prompts = PROMPT.required(raw)
        request = options.request_of(raw, tuple(plain(prompt) or "" for prompt in prompts), fresh_seed)
        mixed = tuple((at, prompt) for at, prompt in enumerate(prompts) if plain(prompt) is None)
        answer = replace(options.options_of(raw, stream=request.stream), parts=mixed)
        return Parsed(request, unknown_fields(FIELDS, raw), answer, options.unheeded(raw, answer.samplers, request))

    def renderer(self, request: CompletionRequest, identity: Identity, given: object = None) -> LlamaRenderer:
        return renderer(request, identity, given)
