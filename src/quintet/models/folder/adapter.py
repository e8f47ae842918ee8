"""LoRA adapters as PEFT writes them: a folder with a file of settings and one of tensors, which are downloaded data."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quintet.errors import ModelError, shorten
from quintet.models.files import Map, sample
from quintet.models.folder.documents import Settings, read_document
from quintet.models.folder.opening import MIN_SIZE
from quintet.models.folder.safetensors import read_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_FIRST = "lora_A"


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


def check_adapter(folder: Path, most: int) -> str:
    """What tells an adapter's files from others', after a look at what can be seen without its model.

    Args:
        most: largest rank.

    Raises:
        ModelError: not an adapter's folder, damaged, or of a larger rank.
    """
    if (rank := rank_of(folder)) > most:
        raise ModelError(f"{CONFIG}: must be of a rank of at most {most} (--max-lora-rank), got {rank}.")
    tensors = read_tensors(folder / WEIGHTS, Map(folder / WEIGHTS, MIN_SIZE))
    if not any(_FIRST in name for name in tensors):
        raise ModelError(f"{WEIGHTS}: must hold tensors of LoRA, got {shorten(next(iter(tensors), ''))}.")
    hashed = hashlib.blake2b(digest_size=4)
    for name in (CONFIG, WEIGHTS):
        sample(folder / name, hashed)
    return hashed.hexdigest()
