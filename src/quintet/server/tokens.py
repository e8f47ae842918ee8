"""``/tokenize``, ``/detokenize``, ``/tokenizer_info``, beside the completions of every dialect."""

from __future__ import annotations

from functools import partial

from quintet.dialects.tokens import detokenized, parse_detokenize, parse_tokenize, tokenized, tokenizer_info
from quintet.executor import FairExecutor
from quintet.server.call import Call
from quintet.server.models import Models

MOST_BYTES = 2**21
"""Of a body. No context bounds these texts, and an answer may be eight times as long and be made of twenty times as much memory."""


class Tokens:
    """Endpoints.

    Args:
        max_body: bytes, of any body.
        executor: for what takes long.
    """

    def __init__(self, models: Models, max_body: int, executor: FairExecutor) -> None:
        self._models = models
        self._max_body = min(max_body, MOST_BYTES)
        self._executor = executor

    async def tokenize(self, call: Call) -> None:
        """``POST /tokenize``."""
        body = await call.http.body(self._max_body)
        tenant = call.caller.id
        asked = await self._executor.run(tenant, partial(parse_tokenize, body))
        entry = self._models.find(asked.model, call).entry
        with entry.held():
            backend = await self._models.ready(call, entry)
            ids = await entry.preparer.tokenize(asked.text, asked.add_special, tenant=tenant)
            about, spelling = backend.capabilities, backend.tokenizer.spelling
            answer = await self._executor.run(tenant, partial(tokenized, asked, ids, about.pieces, spelling, about.context))
            await call.http.reply(200, answer)

    async def detokenize(self, call: Call) -> None:
        """``POST /detokenize``."""
        body = await call.http.body(self._max_body)
        tenant = call.caller.id
        model, ids = await self._executor.run(tenant, partial(parse_detokenize, body))
        entry = self._models.find(model, call).entry
        with entry.held():
            backend = await self._models.ready(call, entry)
            made = partial(detokenized, ids, backend.capabilities.pieces, backend.tokenizer.spelling)
            await call.http.reply(200, await self._executor.run(tenant, made))

    async def info(self, call: Call) -> None:
        """``GET /tokenizer_info``; ``?model=`` names another model than the first."""
        entry = self._models.find(call.http.argument("model"), call).entry
        with entry.held():
            info = (await self._models.ready(call, entry)).tokenizer.traits.roles
        texts = {"eos_token": info.eos, "bos_token": info.bos, "pad_token": info.pad, "chat_template": info.chat_template}
        await call.http.reply(200, tokenizer_info(texts))
