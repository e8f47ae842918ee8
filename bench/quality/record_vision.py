"""Record what transformers computes in float32 with tiny random models of its own that see images: what ours must give.

Needs torch and transformers, which the project itself does not: run it in an environment of its own.

    pip install torch==2.13.0 transformers safetensors numpy
    python -m bench.quality.record_vision

Sizes are odd on purpose: heads of 24 and 48 dimensions, patches of 14 x 14 pixels that leave some of a tile over, feed-forward parts
that are no multiple of 16 or 32, an image of more tokens than a window. The seed is the first one whose greedy text leads by ``CLEAR``
everywhere.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from tests.reference.transformers_vision import ANSWERS, GREEDY, IMAGE, MODELS, SeeingModel

CLEAR = 0.02
"""The likeliest token's lead, in log-probability: more than two answers that agree with ours can be apart."""
KINDS = 8
"""Different tokens that a greedy text has at least."""
PLAIN = 256
"""Tokens from this one on are special in the tokenizers of tests: a text that ends early is not what is compared."""
SEEN = 0.5
"""Log-probability that other pixels change somewhere after the images, at least: else nothing that sees is tested."""

TEXT: dict[str, Any] = {"vocab_size": 277, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
TEXT |= {"bos_token_id": 263, "eos_token_id": 263, "pad_token_id": None}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "idefics3": (
        "Idefics3ForConditionalGeneration",
        {
            "text_config": {
                **TEXT, "model_type": "llama", "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1,
                "intermediate_size": 224, "num_hidden_layers": 3,
            },
            "vision_config": {
                "hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 136, "num_hidden_layers": 3, "image_size": 60,
                "patch_size": 14,
            },
            "scale_factor": 2, "image_token_id": IMAGE,
        },
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {
                **TEXT, "model_type": "gemma3_text", "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64,
                "intermediate_size": 224, "num_hidden_layers": 6, "sliding_window": 9, "query_pre_attn_scalar": 64,
            },
            "vision_config": {
                "hidden_size": 96, "num_attention_heads": 2, "intermediate_size": 152, "num_hidden_layers": 3, "image_size": 112,
                "patch_size": 14, "vision_use_head": False,
            },
            "mm_tokens_per_image": 16, "image_token_index": IMAGE,
        },
    ),
}  # fmt: skip


def record(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's entry of the record, and its answers."""
    class_, settings = CONFIGS[name]
    config = transformers.AutoConfig.for_model(name, **settings)
    getattr(transformers, class_)(config).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="np") as saved:
        shapes = {key: tuple(saved.get_slice(key).get_shape()) for key in sorted(saved.keys())}
    said = json.loads((folder / "config.json").read_text())
    said = {key: value for key, value in said.items() if key not in ("transformers_version", "dtype", "_pad_token_id")}
    for seed in count(1):
        tiny = SeeingModel(name, said, shapes, seed)
        if found := answers(tiny, folder, class_):
            break
    print(f"{name:10} seed {seed:2}  features {found['features'].std():.2f}  log-probabilities {found['rows'].std():.1f}", flush=True)
    return {"seed": seed, "config": said, "shapes": shapes}, found


def answers(tiny: SeeingModel, folder: Path, class_: str) -> dict[str, Any]:
    """What the model sees and says; nothing if two tokens are too close, or the images change too little."""
    tiny.write(folder)
    model, info = getattr(transformers, class_).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    tiles = np.concatenate(tiny.images()).astype(np.float32)
    ids = torch.tensor(tiny.prompt().astype(np.int64))[None]
    with torch.no_grad():
        features, logits = run(model, ids, tiles)
        for _ in range(GREEDY):
            best = logits[-1].topk(2)
            if best.values[0] - best.values[1] < CLEAR:
                return {}
            ids = torch.cat([ids, best.indices[None, :1]], dim=1)
            features, logits = run(model, ids, tiles)
        _, others = run(model, ids, tiles[:, ::-1].copy())
    tokens, rows = ids[0].numpy(), torch.log_softmax(logits.double(), -1).numpy()
    after = np.abs(rows - torch.log_softmax(others.double(), -1).numpy())[-GREEDY:]
    if len(set(tokens[-GREEDY:])) < KINDS or max(tokens[-GREEDY:]) >= PLAIN or after.max() < SEEN:
        return {}
    return {"tokens": tokens.astype(np.int16), "features": features, "rows": rows.astype(np.float32)}


def run(model: Any, ids: Any, tiles: Any) -> tuple[Any, Any]:
    """Rows of the images, [places, hidden], and logits after each token."""
    pixels = torch.tensor((tiles / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)
    if model.config.model_type == "idefics3":
        said = model(input_ids=ids, pixel_values=pixels[None], use_cache=False)
        found = model.get_image_features(pixels[None])
    else:
        types = (ids == IMAGE).long()
        said = model(input_ids=ids, pixel_values=pixels, token_type_ids=types, use_cache=False)
        found = model.get_image_features(pixels)
    rows = torch.cat([one.reshape(-1, one.shape[-1]) for one in found.pooler_output])
    return rows.numpy(), said.logits[0]


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    entries: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            entries[name], found = record(name, Path(folder))
        arrays |= {f"{name}.{key}": value for key, value in found.items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    MODELS.write_text(f'{{"versions": {json.dumps(versions)},\n"models": {{\n{lines}\n}}}}\n')
    np.savez_compressed(ANSWERS, **arrays)
    print(f"{ANSWERS.stat().st_size + MODELS.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
