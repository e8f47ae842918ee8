"""LoRA adapters as PEFT writes them: a folder with a file of settings and one of tensors, which are downloaded data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quintet.errors import ModelError, counted, shorten
from quintet.models.files import Map, file_errors, is_folder, open_regular
from quintet.models.folder.documents import Settings, read_document
from quintet.models.folder.files import weights
from quintet.models.folder.opening import MIN_SIZE
from quintet.models.folder.safetensors import read_tensors
from quintet.models.metadata import quoted

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_FIRST = "lora_A"
_NAME = re.compile(r"base_model\.model\.(.{1,500})\.lora_([AB])\.weight")
_PLAIN = re.compile(r"[\w.-]+")

Shapes = Mapping[str, tuple[int, ...]]
"""Of tensors, by their names."""


class _NamedRank(NamedTuple):
    """A rank that the settings have for a name.

    Args:
        place: among all that the settings have for names: of those that match, PEFT takes the first.
        patterns_before: how many of ``_Ranks.patterns`` go before it.
    """

    place: int
    rank: int
    patterns_before: int


@dataclass(frozen=True, slots=True)
class _Ranks:
    """What an adapter's settings say of its ranks.

    Args:
        default: of any matrix that nothing else is said of.
        named: by the ends of matrices' names.
        patterns: different ranks of what regular expressions match. Which that is, is not asked: one could be made that takes for ever.
        turned: the model's matrices are stored turned (``fan_in_fan_out``): as many rows as numbers are read.
        several: all of them where a pair may hold a matrix for each of a layer's experts, side by side, and ranks go by names that are
            not its own; else empty.
    """

    default: int
    named: Mapping[str, _NamedRank]
    patterns: tuple[int, ...]
    turned: bool
    several: tuple[int, ...]

    @property
    def largest(self) -> int:
        return max(self.default, *self.patterns, *(named.rank for named in self.named.values()), 0)

    def of(self, module: str) -> tuple[int, ...]:
        """What a matrix's may be."""
        if self.several:
            return self.several
        unnamed = _NamedRank(0, self.default, len(self.patterns))
        first = min((self.named[end] for end in _ends(module) if end in self.named), default=unnamed)
        return tuple(dict.fromkeys((first.rank, *self.patterns[: first.patterns_before])))


def rank_of(folder: Path) -> int:
    """The largest rank in an adapter's settings.

    Raises:
        ModelError: not an adapter's folder, or not one of LoRA.
    """
    return _ranks(folder).largest


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors, by their names; empty where they are stored as this server does not read them."""
    try:
        return {name: tensor.shape for path in weights(model) for name, tensor in read_tensors(path, Map(path, MIN_SIZE)).items()}
    except ModelError:
        return {}


def digest_of(folder: Path) -> str:
    """What tells an adapter's files from others', wherever they are: of every byte, for what is cached of its answers goes by it.

    Raises:
        ModelError: one cannot be read.
    """
    hashed = hashlib.blake2b(digest_size=8)
    for name in (CONFIG, WEIGHTS):
        with file_errors(folder / name), open_regular(folder / name) as file:
            hashed.update(hashlib.file_digest(file, hashlib.blake2b).digest())
    return hashed.hexdigest()


def check_adapter(folder: Path, most: int, shapes: Shapes) -> str:
    """Its ``digest_of``, after a look at what can be seen without an engine.

    Args:
        most: largest rank.
        shapes: of the model's tensors, as far as they are known. Not every engine looks at them, and some compute with others all the same.

    Raises:
        ModelError: not an adapter's folder, damaged, of a larger rank than ``most`` or its settings say, or of another model.
    """
    digest = digest_of(folder) if is_folder(folder) else ""  # before the look: what is put in its place meanwhile has another
    ranks = _ranks(folder)
    if ranks.largest > most:
        raise ModelError(f"{CONFIG}: must be of a rank of at most {most} (--max-lora-rank), got {ranks.largest}.")
    own = {name: tensor.shape for name, tensor in read_tensors(folder / WEIGHTS, Map(folder / WEIGHTS, MIN_SIZE)).items()}
    if not any(_FIRST in name for name in own):
        raise ModelError(f"{WEIGHTS}: must hold tensors of LoRA, got {shorten(next(iter(own), ''))}.")
    for name, shape in own.items():
        if found := _NAME.fullmatch(name):
            whole = shapes.get(f"{found[1]}.weight")
            _check_sides(name, shape, whole[::-1] if whole and ranks.turned else whole, first=found[2] == "A")
            _check_rank(name, shape, ranks.of(found[1]), several=bool(ranks.several), first=found[2] == "A")
    _check_pairs(own)
    _check_model(own, shapes)
    return digest


def _ranks(folder: Path) -> _Ranks:
    if not is_folder(folder):
        raise ModelError(f"{folder}: must be a folder with {CONFIG} and {WEIGHTS}.")
    settings = Settings(CONFIG, read_document(folder / CONFIG), {})
    if settings.text("peft_type") != "LORA":
        raise settings.error("peft_type", "must be LORA", settings.text("peft_type"))
    named: dict[str, _NamedRank] = {}
    patterns: dict[int, None] = {}
    section = settings.section("rank_pattern") or Settings(CONFIG, {}, {})
    for place, key in enumerate(section.unasked()):
        rank, end = section.integer(key, high=MAX_RANK), key.replace("\\.", ".")
        if _PLAIN.fullmatch(end):
            named.setdefault(end, _NamedRank(place, rank, len(patterns)))
        else:
            patterns[rank] = None
    default = settings.integer("r", high=MAX_RANK)
    several = tuple({default, *patterns, *(one.rank for one in named.values())}) if settings.get("target_parameters") else ()
    return _Ranks(default, named, tuple(patterns), settings.get("fan_in_fan_out") is True, several)


def _ends(module: str) -> Iterator[str]:
    """What of a name follows a dot, and all of it."""
    while module:
        yield module
        module = module.partition(".")[2]


def _check_sides(name: str, shape: tuple[int, ...], whole: tuple[int, ...] | None, *, first: bool) -> None:
    """The first matrix reads as many numbers as the model's does, the second gives as many."""
    side = 1 if first else 0
    if whole is not None and len(whole) == 2 and (len(shape) != 2 or shape[side] != whole[side]):
        raise _wrong(name, f"must have {whole[side]} {'columns' if first else 'rows'}, as the model's matrix has", shape)


def _check_rank(name: str, shape: tuple[int, ...], ranks: tuple[int, ...], *, several: bool, first: bool) -> None:
    """The first matrix gives as many numbers as the rank is, the second reads as many."""
    if len(shape) < 2:
        raise _wrong(name, "must be a matrix", shape)
    got = shape[0 if first else 1]
    if not any(got == rank or (several and got and got % rank == 0) for rank in ranks):
        told = " or ".join(map(str, ranks))
        raise _wrong(name, f"must have {told} {'rows' if first else 'columns'}, the rank in {CONFIG}", shape)


def _check_pairs(own: Shapes) -> None:
    """What the first matrix gives is what the second reads."""
    for name, shape in own.items():
        found = _NAME.fullmatch(name)
        if found and found[2] == "A":
            second = f"base_model.model.{found[1]}.lora_B.weight"
            if second in own and own[second][1] != shape[0]:
                raise _wrong(second, f"must have {counted(shape[0], 'column')}, as lora_A has rows", own[second])


def _check_model(own: Shapes, shapes: Shapes) -> None:
    """Something in it may change the model. What is in none of the layers, or has a name of another form, is the engine's to know."""
    there = {head for name in shapes for head in _heads(_within(name))}
    modules = [_within(found[1].removesuffix(".base_layer")) if (found := _NAME.fullmatch(name)) else "" for name in own]
    if shapes and all(module and module not in there for module in modules):
        name, shape = next(iter(own.items()))
        raise _wrong(name, "must, as one of them at least, be for a matrix that the model has", shape)


def _within(name: str) -> str:
    """A name from the number of its layer on, empty without: what goes before differs between a model's files and PEFT's names."""
    parts = name.split(".")
    return ".".join(parts[next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts)) :])


def _heads(name: str) -> Iterator[str]:
    """A name, and what of it goes before a dot."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _wrong(name: str, rule: str, shape: tuple[int, ...]) -> ModelError:
    return ModelError(f"{WEIGHTS}: tensor {quoted(name)} {rule}, got the shape {list(shape)}.")
