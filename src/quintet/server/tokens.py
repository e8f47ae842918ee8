"""``/tokenize``, ``/detokenize``, ``/tokenizer_info``, beside the completions of every dialect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from quintet.dialects.tokens import Tokenize, detokenized, parse_detokenize, parse_tokenize, tokenized, tokenizer_info
from quintet.errors import BadRequest
from quintet.inputs.prepare import INLINE_CHARS, Preparer
from quintet.server.call import Call
from quintet.server.completions import warned
from quintet.server.guard import while_there
from quintet.server.large_answers import LargeAnswers
from quintet.server.models import Models

MOST_BYTES = 2**21
"""Of a body. No context bounds these texts, and an answer may be over twenty times as long: an id of six characters may be 64 spaces, and
a token's piece stands beside its id."""

T = TypeVar("T")


class _Reply(NamedTuple):
    """An answer.

    Args:
        ignored: fields of its request.
    """

    body: bytes
    ignored: tuple[str, ...]


class Tokens:
    """Endpoints.

    Args:
        max_body: bytes, of any body.
        answers: for what takes long, or is large.
        strict: refuse fields that are neither server's.
    """

    def __init__(self, models: Models, max_body: int, answers: LargeAnswers, *, strict: bool) -> None:
        self._models = models
        self._max_body = min(max_body, MOST_BYTES)
        self._strict = strict
        self._answers = answers

    async def tokenize(self, call: Call) -> None:
        """``POST /tokenize``."""
        await self._send(call, await self._tokenized(call))

    async def detokenize(self, call: Call) -> None:
        """``POST /detokenize``."""
        await self._send(call, await self._detokenized(call))

    async def _tokenized(self, call: Call) -> _Reply:
        with call.http.reading():
            body = await call.http.body(self._max_body)
            asked = await self._run(call, body, partial(parse_tokenize, body))
            self._require_known(asked.ignored)
            entry = self._models.find(asked.model, call).entry
            with entry.held():
                backend = await self._models.ready(call, entry)
                about, spelling = backend.capabilities, backend.tokenizer.spelling
                short = _short(body)

                async def reply() -> _Reply:
                    async with contextlib.nullcontext() if short else self._answers.turn(call):
                        ids = await _ids(entry.preparer, asked, call.caller.id)
                        write = partial(tokenized, asked, ids, about.pieces, spelling, about.context)
                        return _Reply(write() if short else await self._answers.run(call, write), asked.ignored)

                return await (reply() if short else while_there(call.http.receive, reply()))

    async def _run(self, call: Call, body: bytes, work: Callable[[], T]) -> T:
        """What little there is to do for a short body waits for nobody's long one.

        Raises:
            ClientGoneError: the client left while it waited.
        """
        return work() if _short(body) else await while_there(call.http.receive, self._answers.run(call, work))

    async def _detokenized(self, call: Call) -> _Reply:
        with call.http.reading():
            body = await call.http.body(self._max_body)
            asked = await self._run(call, body, partial(parse_detokenize, body))
            self._require_known(asked.ignored)
            entry = self._models.find(asked.model, call).entry
            with entry.held():
                backend = await self._models.ready(call, entry)
                write = partial(detokenized, asked.ids, backend.capabilities.pieces, backend.tokenizer.spelling)
                return _Reply(await self._run(call, body, write), asked.ignored)

    def _require_known(self, ignored: Sequence[str]) -> None:
        if ignored and self._strict:
            rule = "is a field of neither vLLM's nor llama-server's request, and this server is strict"
            raise BadRequest(ignored[0], rule, code="unknown_parameter")

    async def _send(self, call: Call, reply: _Reply) -> None:
        await self._answers.send(call, reply.body, warned(reply.ignored))

    async def info(self, call: Call) -> None:
        """``GET /tokenizer_info``; ``?model=`` names another model than the first."""
        entry = self._models.find(call.http.argument("model"), call).entry
        with entry.held():
            roles = (await self._models.ready(call, entry)).tokenizer.traits.roles
        texts = {"eos_token": roles.eos, "bos_token": roles.bos, "pad_token": roles.pad, "chat_template": roles.chat_template}
        await call.http.reply(200, tokenizer_info(texts))


async def _ids(preparer: Preparer, asked: Tokenize, tenant: str) -> Sequence[int]:
    if asked.inside:
        return await preparer.tokenize_inside(asked.text, tenant)
    return await preparer.tokenize(asked.text, asked.add_special, tenant=tenant)


def _short(body: bytes) -> bool:
    return len(body) <= INLINE_CHARS
