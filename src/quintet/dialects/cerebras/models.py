"""Cerebras' models list in the formats of two catalogues. Page: https://inference-docs.cerebras.ai/api-reference/models/public-models.

"The endpoint supports three response formats via the `format` query parameter"; what each has is as the SDK types it, where only what
it requires, and what is known, is sent. There are no prices on one's own machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quintet.dialects.base import ServedModel
from quintet.dialects.wire import model_entry
from quintet.errors import Loading

PAGE = (
    *("llama3.1-8b", "llama-3.3-70b", "qwen-3-32b", "qwen-3-235b-a22b-instruct-2507", "qwen-3-235b-a22b-thinking-2507"),
    "qwen-3-coder-480b",
)
"""The completions page, model: "Available options". So that its examples run as they stand."""

_CONTROLS = ("temperature", "top_p", "seed", "stop", "max_tokens", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs")


def openrouter(served: ServedModel) -> dict[str, object]:
    """SDK, id: "Model ID with provider prefix"; here without, so that it is a name that requests can use."""
    context = _context(served)
    return {
        "id": served.name,
        "name": served.name,
        "created": served.created,
        "context_length": context,
        "max_output_length": context,
        "pricing": {"prompt": "0", "completion": "0"},
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "supported_sampling_parameters": _CONTROLS,
    }


def huggingface(served: ServedModel) -> dict[str, object]:
    """An entry, in the terms of the hub's inference providers."""
    return model_entry(served, context_length=_context(served), pricing={"input": 0.0, "output": 0.0})


FORMATS: Mapping[str, Callable[[ServedModel], dict[str, object]]] = {"openrouter": openrouter, "huggingface": huggingface}
"""Value of ``format`` -> what writes an entry."""


def _context(served: ServedModel) -> int:
    if served.context is None:
        raise Loading("The model is still loading, and its context is not known yet.")
    return served.context
