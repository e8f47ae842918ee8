"""Routes of other servers with a shape of their own: llama-server's ``/completion``, ``/infill``, ``/props`` and ``/slots``; Mistral's FIM.

What a prompt is made of is tokenised first (``inputs.infill`` for a gap); the rest is a completion.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from quintet import __version__
from quintet.dialects.base import ErrorReply, Format, Parsed
from quintet.dialects.completion.kinds import MOST_BIASES, Bias, Parts
from quintet.dialects.completion.options import defaults
from quintet.dialects.completion.wire import Options
from quintet.dialects.completion.wire import error as llama_error
from quintet.errors import BadRequest, QuintetError
from quintet.inputs.prepare import Preparer
from quintet.inputs.sampling import BAN
from quintet.keys.key import Scope
from quintet.request import CompletionRequest, Prompt
from quintet.server.auth import require_scope
from quintet.server.call import Call
from quintet.server.completions import CompletionApi, Completions
from quintet.server.models import Models

_SLOTS = 512
"""Slots that are told of in one go."""


class ForeignCompletions:
    """Endpoint of completions in a shape that is no dialect's.

    Args:
        write_error: as the other server writes errors.
    """

    def __init__(self, completions: Completions, api: CompletionApi, write_error: Callable[[Exception], ErrorReply]) -> None:
        self._completions = completions
        self._api = api
        self._write_error = write_error

    @classmethod
    def llama(cls, completions: Completions, form: Format) -> ForeignCompletions:
        """One of llama-server's. Source: "[DONE]" ends streams in OpenAI's shape only."""
        return cls(completions, CompletionApi("llama.cpp", form, _complete, done=b""), llama_error)

    async def __call__(self, call: Call) -> None:
        try:
            await self._completions.answer(call, self._api)
        except QuintetError as failure:
            if call.http.started:
                raise
            await call.refuse(failure, self._write_error(failure))


async def _complete(parsed: Parsed, preparer: Preparer, tenant: str) -> CompletionRequest:
    """The request with its prompts and biases as token ids, where they are not yet."""
    options = parsed.options
    assert isinstance(options, Options)
    request, controls = parsed.request, parsed.request.sampling
    if options.gap is not None:
        prompt, stops = await preparer.fill(options.gap, tenant)
        request, controls = replace(request, prompts=(prompt,)), replace(controls, stop_token_ids=stops)
    if options.parts:
        request = replace(request, prompts=await _joined(request.prompts, options.parts, preparer, tenant))
    biases = await _summed(options.biases, preparer, tenant)
    return replace(request, sampling=replace(controls, logit_bias=tuple(biases.items())))


async def _summed(biases: Sequence[Bias], preparer: Preparer, tenant: str) -> dict[int, float]:
    """The bias of each token that one of them names, by its id or in a text.

    Raises:
        BadRequest: these are too many.
    """
    texts = (token_or_text for token_or_text, _ in biases if isinstance(token_or_text, str))
    ids_of = await preparer.tokenize_all(texts, add_special=False, tenant=tenant)
    sums: dict[int, float] = {}
    for token_or_text, bias in biases:
        # Source, logit_bias: each is put on a list as it comes, a ban as minus infinity; llama_sampler_logit_bias_apply adds all of them.
        weight = bias if bias > BAN else -math.inf
        ids = ids_of[token_or_text] if isinstance(token_or_text, str) else (token_or_text,)
        for token, times in Counter(ids).items():
            sums[token] = sums.get(token, 0.0) + times * weight
        if len(sums) > MOST_BIASES:
            raise BadRequest("logit_bias", f"must stand for at most {MOST_BIASES} different tokens, those of its texts among them")
        await asyncio.sleep(0)  # together they may be thousands of tokens
    return {token: min(max(total, BAN), -BAN) for token, total in sums.items()}


async def _joined(prompts: Sequence[Prompt], mixed: Sequence[tuple[int, Parts]], preparer: Preparer, tenant: str) -> tuple[Prompt, ...]:
    """The prompts, with ids for those of texts and ids."""
    names = {f"prompt[{at}]" if len(prompts) > 1 else "prompt": parts for at, parts in mixed}
    joined = [*prompts]
    for (at, _), ids in zip(mixed, await preparer.join(names, tenant), strict=True):
        joined[at] = ids
    return tuple(joined)


class Properties:
    """``GET /props`` and ``GET /slots``, as far as there is something to tell: there are no slots, only places in a batch."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def props(self, call: Call) -> None:
        """What the model is, and what ``/completion`` does unless it is told otherwise; ``?model=`` names another than the first."""
        served = self._models.find(call.http.argument("model"), call)
        with served.entry.held():
            backend = await self._models.ready(call, served.entry)
            about, roles = backend.capabilities, backend.tokenizer.traits.roles
        told = {
            "default_generation_settings": {"n_ctx": about.context, "params": defaults()},
            "total_slots": about.max_sequences,
            "model_alias": served.name,
            "model_path": served.name,  # where a file lies is nobody's business
            "chat_template": roles.chat_template,
            "bos_token": roles.bos,
            "eos_token": roles.eos,
            "modalities": {"vision": False, "audio": False},  # of `multimodal_data`, which `/completion` refuses
            "build_info": f"quintet-{__version__}",
            "is_sleeping": False,
        }
        await call.http.reply(200, json.dumps(told).encode())

    async def slots(self, call: Call) -> None:
        """As many as a request may have choices; those that compute come first. It tells of everybody's, so not to every tenant."""
        require_scope(call.caller, Scope.METRICS)
        served = self._models.find(call.http.argument("model"), call)
        with served.entry.held():
            about = (await self._models.ready(call, served.entry)).capabilities
            running = served.entry.health().running
        facts, count = {"n_ctx": about.context, "speculative": served.entry.model.speculative}, max(about.max_sequences, running)
        await call.http.start(200, "application/json")
        for first in range(0, count, _SLOTS):
            numbers = range(first, min(first + _SLOTS, count))
            told = json.dumps([{"id": number, **facts, "is_processing": number < running} for number in numbers])[1:-1]
            await call.http.write((f", {told}" if first else f"[{told}").encode())
            await asyncio.sleep(0)  # together they may be a million
        await call.http.write(b"]", last=True)
