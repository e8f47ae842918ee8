"""``/tokenize``, ``/detokenize``, ``/tokenizer_info``, beside the completions of every dialect."""

from __future__ import annotations

import asyncio

from quintet.backends.base import Backend
from quintet.dialects.tokens import detokenized, parse_detokenize, parse_tokenize, tokenized, tokenizer_info
from quintet.inputs.prepare import Preparer
from quintet.server.call import Call
from quintet.server.models import Models


class Tokens:
    """Handlers.

    Args:
        max_body: bytes.
    """

    def __init__(self, backend: Backend, preparer: Preparer, models: Models, max_body: int) -> None:
        self._backend = backend
        self._preparer = preparer
        self._models = models
        self._max_body = max_body

    async def tokenize(self, call: Call) -> None:
        """``POST /tokenize``."""
        body = await call.exchange.body(self._max_body)
        asked = await asyncio.to_thread(parse_tokenize, body)
        self._models.resolve(asked.model, call.provider)
        ids = await self._preparer.tokenize(asked.text, asked.add_special)
        about = self._backend.capabilities
        await call.exchange.reply(200, await asyncio.to_thread(tokenized, asked, ids, about.pieces, about.context))

    async def detokenize(self, call: Call) -> None:
        """``POST /detokenize``."""
        body = await call.exchange.body(self._max_body)
        about = self._backend.capabilities
        model, ids = await asyncio.to_thread(parse_detokenize, body, about.vocab)
        self._models.resolve(model, call.provider)
        await call.exchange.reply(200, await asyncio.to_thread(detokenized, ids, about.pieces))

    async def info(self, call: Call) -> None:
        """``GET /tokenizer_info``."""
        info = self._backend.tokenizer.traits.roles
        texts = {"eos_token": info.eos, "bos_token": info.bos, "pad_token": info.pad, "chat_template": info.chat_template}
        await call.exchange.reply(200, tokenizer_info(texts))
