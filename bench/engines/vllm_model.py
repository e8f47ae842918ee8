"""A GGUF file as a folder of float32 weights that vLLM reads; runs in vLLM's environment: ``vllm_model.py FILE FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the weights are plain numbers now
    (partial / "config.json").write_text(json.dumps(config, default=str))
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(weights, partial / "model.safetensors", {"format": "pt"})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    main()
