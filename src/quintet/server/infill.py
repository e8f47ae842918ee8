"""``POST /infill``: a gap's surroundings become a prompt of tokens (``inputs.infill``), and the rest is a completion."""

from __future__ import annotations

from dataclasses import replace

from quintet.dialects.base import Parsed
from quintet.dialects.infill.dialect import Infill as Format
from quintet.dialects.infill.wire import Options, error
from quintet.errors import QuintetError
from quintet.inputs.prepare import Preparer
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.server.completions import CompletionApi, Completions


class Infill:
    """Endpoint."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._api = CompletionApi("llama.cpp", Format(), self._filled, done=b"")  # source: "[DONE]" ends streams in OpenAI's shape only

    async def __call__(self, call: Call) -> None:
        try:
            await self._completions.answer(call, self._api)
        except QuintetError as failure:
            if call.http.started:
                raise
            reply = error(failure)
            await call.http.reply(reply.status, reply.body, reply.headers)

    async def _filled(self, parsed: Parsed, preparer: Preparer, tenant: str) -> CompletionRequest:
        """The request with the gap's prompt."""
        assert isinstance(parsed.options, Options)
        prompt, stops = await preparer.fill(parsed.options.gap, tenant)
        return replace(parsed.request, prompts=(prompt,), sampling=replace(parsed.request.sampling, stop_token_ids=stops))
