"""LoRA adapters for tests, in PEFT's form, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.reference.folders import raw, write_safetensors


def write_adapter(folder: Path, modules: Mapping[str, tuple[int, int]], *, rank: int = 4, seed: int = 1, **settings: Any) -> Path:
    """An adapter that changes what a model says.

    Args:
        modules: name of a matrix of the model -> its rows and columns.
        settings: beside, or in place of, those of a plain one.
    """
    folder.mkdir(parents=True)
    names = sorted({name.rpartition(".")[2] for name in modules})
    plain = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": names, "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(plain | settings), encoding="utf-8")
    draw = np.random.default_rng(seed)
    tensors = {}
    for name, (rows, columns) in modules.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = raw(draw.normal(0, 0.3, (rank, columns)).astype(np.float32))
        tensors[f"base_model.model.{name}.lora_B.weight"] = raw(draw.normal(0, 0.3, (rows, rank)).astype(np.float32))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder
