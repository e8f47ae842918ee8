"""Models for the tests of vLLM: ``python -m tests.vllm.models FOLDER`` makes them in vLLM's environment; whoever tests finds them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vllm import others

MODELS = ("llama", "qwen3", "gemma3", "mixtral")
"""Tiny ones of random weights, with the bundled model's tokenizer."""

SEEING = "seeing"
"""A tiny SmolVLM of random weights, of which is recorded what transformers computes."""

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3": {"sliding_window": 32, "query_pre_attn_scalar": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def folder(name: str) -> Path:
    """Where a model is."""
    return Path(os.environ["QUINTET_VLLM_MODELS"]) / name


def make(root: Path) -> None:
    """All that is not there yet."""
    from tests.support.bundled import bundled_path

    root.mkdir(parents=True, exist_ok=True)
    smollm2 = root / "smollm2"
    if not smollm2.exists():
        subprocess.run([sys.executable, "-m", "bench.engines.vllm_model", bundled_path(), smollm2], check=True)
    for name in MODELS:
        if not (root / name).exists():
            _tiny(name, root / name, smollm2)
    if not (root / SEEING).exists():
        _seeing(root / SEEING)
    for name in others.WORDS:
        if not (root / name).exists():
            _other(name, root / name, smollm2)


def _tiny(name: str, target: Path, tokenizer: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    partial = target.with_suffix(".partial")
    vocab = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    config = AutoConfig.for_model("gemma3_text" if name == "gemma3" else name, vocab_size=vocab, **SMALL, **OWN[name])
    _save(AutoModelForCausalLM.from_config(config, dtype=torch.float32), partial)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, partial / file)
    partial.rename(target)


def _save(model: Any, target: Path) -> None:
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.2)  # texts that are neither always one token nor all alike
    model.save_pretrained(target)


def _rename(file: Path, old: str, new: str) -> None:
    """Tensors whose names begin otherwise: as published files have them, and vLLM reads them, which transformers no longer writes."""
    from safetensors.torch import load_file, save_file

    tensors = {name.replace(old, new) if name.startswith(old) else name: values for name, values in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def _other(name: str, target: Path, tokenizer: Path) -> None:
    import transformers

    partial = target.with_suffix(".partial")
    tokens = transformers.AutoTokenizer.from_pretrained(tokenizer)
    tokens.add_tokens(list(others.WORDS[name]), special_tokens=True)
    tokens.save_pretrained(partial)
    _save(others.model(name, {"vocab_size": len(tokens), **SMALL}, *tokens.convert_tokens_to_ids(list(others.WORDS[name]))), partial)
    if name == "llava":
        _rename(partial / "model.safetensors", "vision_tower.", "vision_tower.vision_model.")
    for file, document in others.DOCUMENTS[name].items():
        (partial / file).write_text(json.dumps(document), encoding="utf-8")
    partial.rename(target)


def _seeing(target: Path) -> None:
    from tests.reference.seeing_folder import write_seeing
    from tests.reference.transformers_vision import models

    tiny, partial = models()["idefics3"], target.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    folder = write_seeing(partial)
    pixels = {"size": {"longest_edge": 4 * tiny.tile}, "max_image_size": {"longest_edge": tiny.tile}}
    documents: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {"image_processor_type": "Idefics3ImageProcessor", **pixels},
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": tiny.tokens_of_tile},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    folder.rename(target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
