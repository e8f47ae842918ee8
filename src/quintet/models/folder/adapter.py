"""LoRA adapters as PEFT writes them: a folder with a file of settings and one of tensors, which are downloaded data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from quintet.errors import ModelError, shorten
from quintet.models.files import Map, sample
from quintet.models.folder.documents import Settings, read_document
from quintet.models.folder.files import weights
from quintet.models.folder.opening import MIN_SIZE
from quintet.models.folder.safetensors import read_tensors
from quintet.models.metadata import quoted

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_FIRST = "lora_A"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def rank_of(folder: Path) -> int:
    """The largest rank in an adapter's settings.

    Raises:
        ModelError: not an adapter's folder, or not one of LoRA.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: must be a folder with {CONFIG} and {WEIGHTS}.")
    settings = Settings(CONFIG, read_document(folder / CONFIG), {})
    if settings.text("peft_type") != "LORA":
        raise settings.error("peft_type", "must be LORA", settings.text("peft_type"))
    ranks = settings.section("rank_pattern")
    return max(settings.integer("r", high=MAX_RANK), *(ranks.integer(key, high=MAX_RANK) for key in ranks.unasked()) if ranks else (0,))


def shapes_of(model: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors, by their names; empty where they are stored as this server does not read them."""
    try:
        return {name: tensor.shape for path in weights(model) for name, tensor in read_tensors(path, Map(path, MIN_SIZE)).items()}
    except ModelError:
        return {}


def check_adapter(folder: Path, most: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What tells an adapter's files from others', after a look at what can be seen without an engine.

    Args:
        most: largest rank.
        shapes: of the model's tensors, as far as they are known. Not every engine looks at them, and some compute with others all the same.

    Raises:
        ModelError: not an adapter's folder, damaged, of a larger rank, or of another model.
    """
    if (rank := rank_of(folder)) > most:
        raise ModelError(f"{CONFIG}: must be of a rank of at most {most} (--max-lora-rank), got {rank}.")
    tensors = read_tensors(folder / WEIGHTS, Map(folder / WEIGHTS, MIN_SIZE))
    if not any(_FIRST in name for name in tensors):
        raise ModelError(f"{WEIGHTS}: must hold tensors of LoRA, got {shorten(next(iter(tensors), ''))}.")
    for name, tensor in tensors.items():
        _check_shape(name, tensor.shape, shapes)
    hashed = hashlib.blake2b(digest_size=4)
    for name in (CONFIG, WEIGHTS):
        sample(folder / name, hashed)
    return hashed.hexdigest()


def _check_shape(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The first matrix reads as many numbers as the model's does, the second gives as many."""
    found = _NAME.fullmatch(name)
    whole = shapes.get(f"{found[1]}.weight") if found else None
    if found is None or whole is None or len(whole) != 2:
        return
    side = 1 if found[2] == "A" else 0
    if len(shape) != 2 or shape[side] != whole[side]:
        rule = f"must have {whole[side]} {'columns' if side else 'rows'}, as the model's matrix has"
        raise ModelError(f"{WEIGHTS}: tensor {quoted(name)} {rule}, got the shape {list(shape)}.")
