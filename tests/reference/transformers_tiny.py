"""Tiny models of transformers' own classes, and what transformers computes with them: ``bench.quality.record_transformers`` recorded it.

The record holds each model's config.json, the names and shapes of its tensors, and its answers; the weights are drawn anew from a seed and
the tensor's name, so that the same folder can be written without transformers. Matrices are drawn such that bfloat16, float16, float32 and
Q8_0 all hold them exactly: whatever a file keeps them in, the answers are the same.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.reference.folders import write_safetensors

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

MODELS = Path(__file__).with_name("transformers_tiny.json")
ANSWERS = Path(__file__).with_name("transformers_tiny.npz")
MISSING = Path(__file__).with_name("transformers_missing.json")
"""What it makes of configurations without a key; ``bench.quality.record_missing_keys`` recorded it."""

PROMPT = 70
"""Random tokens at the start."""
GREEDY = 200
"""Tokens that follow, each the likeliest."""
EVERY = 8
"""All log-probabilities are kept of every so many positions."""

NORMS = {"q_norm": 1.3, "k_norm": 1.3, "norm": 3.0}
"""Of the weights of these norms, the mean; the last one is the model's own and spreads the logits. 1 of the others'."""

GAINS = {
    "embed_tokens": 1.0, "lm_head": 1.0, "q_proj": 1.7, "k_proj": 1.7, "v_proj": 1.0, "qkv_proj": 1.5, "o_proj": 2.0, "dense": 2.0,
    "gate_proj": 1.5, "up_proj": 1.5, "down_proj": 2.0, "w1": 1.5, "w3": 1.5, "w2": 2.0, "gate_up_proj": 1.5, "c_fc": 1.5, "c_proj": 2.0,
    "input_linear": 1.5, "output_linear": 2.0,
    "gate": 4.0, "layer": 4.0, "router": 4.0,  # the routers
}  # fmt: skip
"""Spread of a product with normed rows: attention is far from uniform, each part of a layer moves the logits, routers choose clearly."""

COLUMNS_FIRST = ("experts.gate_up_proj", "experts.down_proj")
"""Ends of the names of the tensors whose input features are the last axis but one."""

SMALLER = 0.15
"""On Gemma's embeddings, which are multiplied by sqrt(hidden) and would drown what layers add; the last norm makes up for it."""


@dataclass(frozen=True)
class TinyModel:
    """One of the recorded models.

    Args:
        name: of the record.
        config: what its config.json says.
        shapes: of its tensors, by their names in the folder.
        seed: of its weights.
    """

    name: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    seed: int

    def tensors(self) -> dict[str, F32]:
        """Its weights."""
        return {name: draw(name, shape, self.seed, self.config["model_type"]) for name, shape in self.shapes.items()}

    def write(self, folder: Path) -> Path:
        """The folder as transformers saves it, without a tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        tensors = {name: ("BF16", values.shape, _top_halves(values).tobytes()) for name, values in self.tensors().items()}
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def prompt(self) -> Ids:
        return random_prompt(self.config["vocab_size"])


@dataclass(frozen=True)
class Answers:
    """What transformers computes in float32.

    Args:
        tokens: int32 [PROMPT + GREEDY], of which the last ``GREEDY`` are each the likeliest after those before it.
        chosen: float32 [GREEDY], their log-probabilities.
        rows: float32 [R, V], all log-probabilities after every ``EVERY``-th token.
    """

    tokens: Ids
    chosen: F32
    rows: F32


def random_prompt(vocab: int) -> Ids:
    return np.random.RandomState(7).randint(0, vocab, PROMPT).astype(np.int32)


def draw(name: str, shape: tuple[int, ...], seed: int, model_type: str) -> F32:
    """A tensor of random weights. The same arguments give the same bits for ever."""
    values = np.random.RandomState([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    module, _, kind = name.rpartition(".")
    part, gemma = module.rpartition(".")[2], model_type.startswith("gemma")
    if len(shape) > 1 and "bias" not in kind:
        inputs = -2 if name.endswith(COLUMNS_FIRST) else -1
        gain = GAINS[part if kind == "weight" else kind] * (SMALLER if gemma and part == "embed_tokens" else 1.0)
        return np.ascontiguousarray(_in_codes(np.moveaxis(values * (gain / np.sqrt(shape[inputs])), inputs, -1)).swapaxes(-1, inputs))
    if kind == "weight":
        mean = NORMS.get(part, 1.0) / (SMALLER if gemma and part == "norm" else 1.0)
        values = mean * (1 + 0.3 * values) - (1.0 if gemma else 0.0)  # Gemma's norms add 1 to their weights
    elif part not in ("q_proj", "k_proj", "v_proj", "self_attn"):
        values *= 0.2  # biases of what is added to rows: they are the same for all
    return in_bfloat16(values.astype(np.float32))


def _in_codes(values: npt.NDArray[np.float64]) -> F32:
    """Rounded to multiples, by -127 to 127, of a power of two for each block of 32 columns; the largest of a block is one of 127."""
    blocks = values.reshape(*values.shape[:-1], -1, 32)
    _, exponent = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))
    codes = np.clip(np.rint(np.ldexp(blocks, 7 - exponent)), -127, 127)
    largest = np.abs(blocks).argmax(axis=-1)[..., None]
    np.put_along_axis(codes, largest, np.copysign(127, np.take_along_axis(blocks, largest, axis=-1)), axis=-1)
    return np.asarray(np.ldexp(codes, exponent - 7), dtype=np.float32).reshape(values.shape)


def _top_halves(values: F32) -> npt.NDArray[np.uint16]:
    """bfloat16 is the upper half of float32."""
    return (values.view(np.uint32) >> 16).astype("<u2")


def in_bfloat16(values: F32) -> F32:
    """Rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@cache
def models() -> dict[str, TinyModel]:
    """The recorded models, by name."""
    found = json.loads(MODELS.read_text())
    return {
        name: TinyModel(name, entry["config"], {key: tuple(shape) for key, shape in entry["shapes"].items()}, entry["seed"])
        for name, entry in found["models"].items()
    }


def answers(name: str) -> Answers:
    """What was recorded of a model."""
    with np.load(ANSWERS) as found:
        return Answers(found[f"{name}.tokens"].astype(np.int32), found[f"{name}.chosen"], found[f"{name}.rows"])
