"""``--lora``: which LoRA adapters a model begins with, and which more it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quintet.cli.console import OptionError
from quintet.cli.plans import Plan
from quintet.cli.vllm import DEFAULT_RANK
from quintet.engines.adapters import LoraConfig
from quintet.engines.names import Names
from quintet.errors import ModelError, shorten
from quintet.models.files import expanded


@dataclass(frozen=True, slots=True)
class Given:
    """A value of ``--lora``."""

    name: str
    base: str
    path: str


def parse(text: str) -> Given:
    """``NAME=MODEL:PATH``.

    Raises:
        OptionError: not of this form.
        ModelError: a home directory that is not there.
    """
    name, equals, rest = text.partition("=")
    base, colon, path = rest.partition(":")
    if not (name and equals and base and colon and path):
        raise OptionError(f"--lora must be NAME=MODEL:PATH, MODEL the name of a model, got {shorten(text)}.")
    return Given(name, base, str(expanded(path).absolute()))


def plan(given: Sequence[str], plans: Mapping[str, Plan], names: Names) -> tuple[Names, list[tuple[Plan, LoraConfig | None]]]:
    """The names with the adapters', and each model's plan with what it takes of adapters.

    Args:
        plans: by the models' first names.
        names: of the models.

    Raises:
        OptionError: malformed, a model that is not there or takes none, or more than there is room for.
        ModelError: an adapter that cannot be read, of too high a rank, or of a name that is taken.
    """
    asked = [parse(text) for text in given]
    for lora in asked:
        if lora.base not in names.exact:
            raise OptionError(f"--lora: MODEL must be one of {', '.join(names.exact)}, got {shorten(lora.base)}.")
    planned = []
    for name, of_model in plans.items():
        planned.append(_config(of_model, [lora for lora in asked if names.exact[lora.base] == name]))
    for lora in asked:
        names = names.adding(lora.name, names.exact[lora.base])
    return names, planned


def _config(plan: Plan, asked: Sequence[Given]) -> tuple[Plan, LoraConfig | None]:
    if plan.vllm is None:
        if asked:
            raise OptionError(f"--lora is nothing to the native engine, which computes {plan.name}; --engine vllm takes LoRA adapters.")
        return plan, None
    options = plan.vllm.options
    most = options.max_loras or len(asked)
    if len(asked) > most:
        raise OptionError(f"--max-loras must be at least as many as --lora gives {plan.name}, {len(asked)}, got {most}.")
    if not most:
        return plan, None
    from quintet.models.folder.adapter import check_adapter, shapes_of  # brings much that no other start needs

    rank = options.max_lora_rank or max([DEFAULT_RANK, *map(_rank, asked)])
    shapes = shapes_of(Path(plan.vllm.path))

    def check(path: str) -> str:
        return check_adapter(Path(path), rank, shapes)

    for lora in asked:
        try:
            check(lora.path)
        except ModelError as error:
            raise ModelError(f"--lora {lora.name}: {error}") from None
    source = replace(plan.vllm, options=replace(options, max_loras=most, max_lora_rank=rank))
    return replace(plan, vllm=source), LoraConfig(most, check, tuple((lora.name, lora.path) for lora in asked))


def _rank(lora: Given) -> int:
    from quintet.models.folder.adapter import rank_of

    try:
        return rank_of(Path(lora.path))
    except ModelError as error:
        raise ModelError(f"--lora {lora.name}: {error}") from None
