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
    for one in asked:
        if one.base not in names.exact:
            raise OptionError(f"--lora: MODEL must be one of {', '.join(names.exact)}, got {shorten(one.base)}.")
    made = [_config(of, [one for one in asked if names.exact[one.base] == first]) for first, of in plans.items()]
    for one in asked:
        names = names.adding(one.name, names.exact[one.base])
    return names, made


def _config(of: Plan, asked: Sequence[Given]) -> tuple[Plan, LoraConfig | None]:
    if of.vllm is None:
        if asked:
            raise OptionError(f"--lora is nothing to the native engine, which computes {of.name}; --engine vllm takes LoRA adapters.")
        return of, None
    options = of.vllm.options
    most = options.max_loras or len(asked)
    if len(asked) > most:
        raise OptionError(f"--max-loras must be at least as many as --lora gives {of.name}, {len(asked)}, got {most}.")
    if not most:
        return of, None
    from quintet.models.folder.adapter import check_adapter, shapes_of  # brings much that no other start needs

    rank = options.max_lora_rank or max([DEFAULT_RANK, *map(_rank, asked)])
    shapes = shapes_of(Path(of.vllm.path))

    def check(path: str) -> str:
        return check_adapter(Path(path), rank, shapes)

    for one in asked:
        try:
            check(one.path)
        except ModelError as error:
            raise ModelError(f"--lora {one.name}: {error}") from None
    source = replace(of.vllm, options=replace(options, max_loras=most, max_lora_rank=rank))
    return replace(of, vllm=source), LoraConfig(most, check, tuple((one.name, one.path) for one in asked))


def _rank(one: Given) -> int:
    from quintet.models.folder.adapter import rank_of

    try:
        return rank_of(Path(one.path))
    except ModelError as error:
        raise ModelError(f"--lora {one.name}: {error}") from None
