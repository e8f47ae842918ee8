"""llama-server's own ``/completion``: the request. What each field does, and where this departs: docs/completion.md.

Page: llama.cpp, tools/server/README.md, "POST /completion".
"""

from __future__ import annotations

from typing import Any

from quintet.dialects.base import Identity, Parsed
from quintet.dialects.completion import options
from quintet.dialects.completion.kinds import LlamaPrompts, Parts, plain
from quintet.dialects.completion.wire import LlamaRenderer, Options
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
        parts, samplers = PROMPT.required(raw), options.SAMPLERS.of(raw)
        request = options.request_of(raw, tuple(plain(one) or "" for one in parts), fresh_seed)
        written = Options(
            most=options.most_of(raw),
            samplers=samplers,
            fields=options.RESPONSE_FIELDS.of(raw),
            slot=max(options.ID_SLOT.of(raw), 0),
            tokens=options.RETURN_TOKENS.of(raw) or request.stream,
            parts=tuple((at, one) for at, one in enumerate(parts) if plain(one) is None),
            biases=options.LOGIT_BIAS.of(raw),
        )
        return Parsed(request, unknown_fields(FIELDS, raw), written, options.unheeded(raw, samplers, request))

    def renderer(self, request: CompletionRequest, identity: Identity, given: object = None) -> LlamaRenderer:
        if not isinstance(given, Options):
            raise TypeError("options must come from the same format's parse")
        return LlamaRenderer(request, identity, given)
