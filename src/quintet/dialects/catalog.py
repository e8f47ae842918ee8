"""The providers: each one's dialect, where its SDKs look for it, and how they send bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quintet.dialects import wire
from quintet.dialects.base import Dialect, Parsed, ServedModel
from quintet.dialects.batches import Batches
from quintet.dialects.cerebras import dialect as cerebras
from quintet.dialects.cerebras import models as cerebras_models
from quintet.dialects.cerebras import wire as cerebras_wire
from quintet.dialects.fields import Field
from quintet.dialects.fireworks import dialect as fireworks
from quintet.dialects.fireworks import wire as fireworks_wire
from quintet.dialects.novita import dialect as novita
from quintet.dialects.novita import wire as novita_wire
from quintet.dialects.novita.batches import NovitaBatches
from quintet.dialects.openai import dialect as openai
from quintet.dialects.openai.batches import OpenAIBatches
from quintet.dialects.together import dialect as together
from quintet.dialects.together import models as together_models
from quintet.dialects.together import wire as together_wire


def _for_anybody(parsed: Parsed, _agent: str) -> Parsed:
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A dialect and what the server and the docs need to know about it.

    Args:
        title: the provider's name as people write it.
        page: the documentation that the dialect follows.
        fields: of a request, the extensions among them.
        body: the shape of a JSON answer.
        error: the shape of an error's body.
        chunk: the shape of a stream's chunks, where it is not that of a JSON answer.
        bases: what precedes ``/completions`` in a path, the main one first. The others are what its SDKs make of a base URL with or
            without ``/v1``, and the provider's own path where no other provider has the same.
        agents: beginnings of the ``User-Agent`` of its SDKs.
        claims: the provider's own paths that are another one's bases here: its own where the server speaks it, or ``auto`` finds its key.
        keys: beginnings of its API keys.
        typed: a body must say that it is JSON.
        for_agent: what a request is for a client of some ``User-Agent``, where that changes how it reads the answer.
        stand_ins: names of models that its page gives its clients; where nothing has such a name, it is what is served.
        batches: its files and batches of completions; ``None`` = it has none.
        packed: request bodies may be gzip-compressed, and MessagePack.
        warming: its SDK asks for ``tcp_warming`` when it is made.
        statuses: of errors that mean something else than with the other providers, and what.
        counts_samples: a request with ``n`` samples counts as ``n`` requests.
        forms: what its clients make of a model's name, as regular expressions whose one group is the name.
        formats: the models list's in other forms: value of the parameter ``format`` -> what writes an entry.
        of_project: writes an entry of the models of a project, of that name, for which its SDK asks.
    """

    dialect: Dialect
    title: str
    page: str
    fields: Sequence[Field[Any]]
    body: type[msgspec.Struct]
    error: type[msgspec.Struct]
    bases: tuple[str, ...]
    agents: tuple[str, ...]
    packed: bool = False
    warming: bool = False
    chunk: type[msgspec.Struct] | None = None
    statuses: Mapping[str, str] = field(default_factory=dict)
    counts_samples: bool = False
    forms: tuple[str, ...] = ()
    formats: Mapping[str, Callable[[ServedModel], dict[str, object]]] = field(default_factory=dict)
    of_project: Callable[[ServedModel, str], dict[str, object]] | None = None
    claims: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    typed: bool = False
    for_agent: Callable[[Parsed, str], Parsed] = _for_anybody
    stand_ins: tuple[str, ...] = ()
    batches: Batches | None = None

    @property
    def name(self) -> str:
        return self.dialect.name


_OF_ORGANISATION = "[^/]+/([^/]+)"
"""As on the Hugging Face hub: ``meta-llama/Llama-2-70b-hf``."""

_ALL = (
    Provider(
        dialect=openai.OpenAI(),
        title="OpenAI",
        page="https://platform.openai.com/docs/api-reference/completions/create",
        fields=openai.KNOWN,
        body=openai.Completion,
        error=wire.ErrorBody,
        bases=("/openai/v1", "/openai", "/openai/v1/v1"),
        agents=("OpenAI/", "AsyncOpenAI/"),
        batches=OpenAIBatches(),
    ),
    Provider(
        dialect=fireworks.Fireworks(),
        title="Fireworks",
        page="https://docs.fireworks.ai/api-reference/post-completions",
        fields=fireworks.KNOWN,
        body=fireworks_wire.Completion,
        error=fireworks_wire.ErrorBody,
        bases=(
            "/fireworks/inference/v1",
            *("/fireworks", "/fireworks/v1", "/fireworks/v1/v1", "/fireworks/inference", "/fireworks/inference/v1/v1"),
            *("/inference", "/inference/v1", "/inference/v1/v1"),
        ),
        agents=("Fireworks/", "AsyncFireworks/"),
        counts_samples=True,
        forms=("accounts/[^/]+/models/(.+)", "(?:accounts/[^/]+/models/)?([^#]+)#.+", "accounts/[^/]+/deployments/([^/]+)"),
    ),
    Provider(
        dialect=together.Together(),
        title="Together",
        page="https://docs.together.ai/reference/completions-1",
        fields=together.KNOWN,
        body=together_wire.Completion,
        error=wire.ErrorBody,
        bases=("/together/v1", "/together", "/together/v1/v1"),
        agents=("Together/", "AsyncTogether/"),
        chunk=together_wire.Chunk,
        for_agent=together.for_agent,
        of_project=together_models.of_project,
        statuses={"403": "The prompt, or the prompt and `max_tokens` together, do not fit the context; or the key may not do this."},
        forms=(_OF_ORGANISATION,),
    ),
    Provider(
        dialect=cerebras.Cerebras(),
        title="Cerebras",
        page="https://inference-docs.cerebras.ai/api-reference/completions",
        fields=cerebras.KNOWN,
        body=cerebras_wire.Completion,
        error=cerebras_wire.ErrorBody,
        bases=("/cerebras/v1", "/cerebras", "/cerebras/v1/v1"),
        agents=("Cerebras/", "AsyncCerebras/"),
        packed=True,
        warming=True,
        formats=cerebras_models.FORMATS,
        stand_ins=cerebras_models.PAGE,
    ),
    Provider(
        dialect=novita.Novita(),
        title="Novita",
        page="https://novita.ai/docs/api-reference/model-apis-llm-create-completion",
        fields=novita.KNOWN,
        body=novita_wire.Completion,
        error=novita_wire.ErrorBody,
        bases=(
            "/novita/openai/v1",
            *("/novita", "/novita/v1", "/novita/openai", "/novita/openai/v1/v1", "/novita/v3/openai", "/novita/v3/openai/v1"),
            *("/v3/openai", "/v3/openai/v1"),
        ),
        agents=(),
        statuses={"403": "The key may not use this model, or may not do this."},
        forms=(_OF_ORGANISATION,),
        # Page: "--url https://api.novita.ai/openai/v1/completions".
        claims=("/openai/v1", "/openai", "/openai/v1/v1"),
        keys=("sk_",),  # as it hands them out; OpenAI's begin with "sk-"
        # Page, Request Headers: "Content-Type, string, required. Enum: `application/json`".
        typed=True,
        batches=NovitaBatches(),
    ),
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}
"""By name."""

DEFAULT = "openai"
"""The dialect of the bare paths, unless the server is told another."""
