"""Loading a folder takes little more memory than its packed weights, though its files are twice as large and experts come in pieces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.folders import Raw, write_safetensors

ROOT = Path(__file__).parents[4]
LAYERS, HIDDEN, VOCAB = 16, 512, 512
WIDTH, EXPERTS = 768, 6


def matrix(rows: int, cols: int) -> Raw:
    """Of one number: what it is does not matter here."""
    return "BF16", (rows, cols), np.full(rows * cols, 0x3C80, "<u2").tobytes()


def layer(prefix: str) -> dict[str, Raw]:
    found = {f"{prefix}self_attn.{part}_proj.weight": matrix(HIDDEN, HIDDEN) for part in "qkvo"}
    norms = ("input_layernorm", "post_attention_layernorm")
    found |= {f"{prefix}{name}.weight": ("BF16", (HIDDEN,), bytes(2 * HIDDEN)) for name in norms}
    block = f"{prefix}block_sparse_moe."
    for i in range(EXPERTS):
        found |= {f"{block}experts.{i}.{part}.weight": matrix(WIDTH, HIDDEN) for part in ("w1", "w3")}
        found[f"{block}experts.{i}.w2.weight"] = matrix(HIDDEN, WIDTH)
    return found | {f"{block}gate.weight": matrix(EXPERTS, HIDDEN)}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count of a process's peak")
def test_loading_takes_at_most_a_fifth_more_than_the_packed_weights(tmp_path: Path) -> None:
    config = {
        **{"model_type": "mixtral", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "vocab_size": VOCAB},
        **{"num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 64},
        **{"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "lm_head.weight": matrix(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = ("BF16", (HIDDEN,), bytes(2 * HIDDEN))
    for i in range(LAYERS):
        tensors |= layer(f"model.layers.{i}.")
    size = write_safetensors(tmp_path / "model.safetensors", tensors).stat().st_size
    command = [sys.executable, "-m", "tests.backends.native.worker.folder_loads", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["weights"] > 80e6
    assert size > 1.8 * found["weights"]
    assert found["more"] < 1.2 * found["weights"], found
