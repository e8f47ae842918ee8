"""``POST /infill``: a gap's surroundings become a prompt of tokens (``inputs.infill``), and the rest is a completion."""

from __future__ import annotations

from dataclasses import replace

from quintet.backends.base import Backend
from quintet.dialects.base import Parsed
from quintet.dialects.infill.dialect import Infill as Format
from quintet.dialects.infill.wire import Options, error
from quintet.errors import QuintetError, Unsupported
from quintet.inputs.prepare import Preparer
from quintet.inputs.supported import fills_in
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.server.completions import Completions, Manner


class Infill:
    """Handler."""

    def __init__(self, backend: Backend, preparer: Preparer, completions: Completions) -> None:
        self._backend = backend
        self._preparer = preparer
        self._completions = completions
        self._manner = Manner("llama.cpp", Format(), self._filled, done=b"")  # source: "[DONE]" ends streams in OpenAI's shape only

    async def __call__(self, call: Call) -> None:
        try:
            await self._completions.answer(call, self._manner)
        except QuintetError as failure:
            if call.exchange.started:
                raise
            reply = error(failure)
            await call.exchange.reply(reply.status, reply.body, reply.headers)

    async def _filled(self, parsed: Parsed) -> CompletionRequest:
        """The request with the gap's prompt."""
        assert isinstance(parsed.options, Options)
        form = self._preparer.infill
        if form is None:
            # Source: "Infill is not supported by this model: [...] token is missing."
            about = self._backend.capabilities
            lack = "it has no fill-in-the-middle tokens" if fills_in(about) else "its engine does not end at given tokens"
            raise Unsupported("", f"Infill is not supported by {about.model}: {lack}")
        prompt = await self._preparer.fill(parsed.options.gap, form)
        # A middle that goes on with one of these has ended, as with `suffix`.
        controls = replace(parsed.request.sampling, stop_token_ids=form.stops)
        return replace(parsed.request, prompts=(prompt,), sampling=controls)
