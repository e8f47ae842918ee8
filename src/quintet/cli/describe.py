"""What a model file is, and what it needs, in figures for people."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from quintet.backends.native.core.sizes import packed_bytes
from quintet.config import KvType, Quantize
from quintet.errors import ModelError
from quintet.models.opened import ModelFile
from quintet.models.quantize import chosen, settled, words
from quintet.models.spec import ModelSpec, Tensors
from quintet.models.vision.quantize import settled as vision_settled
from quintet.models.vision.spec import VisionSpec

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
"""GGUF's ``general.file_type``: what the maker of the file called its mix of tensor types."""

_KV_CELL: dict[KvType, int] = {"f16": 2, "q8": 1}
_KV_SCALES: dict[KvType, int] = {"f16": 0, "q8": 2}
"""Bytes of a key's or a value's dimension, and beside these of a head's key or value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Figures of a model.

    Args:
        quant: what people call the file's mix of tensor types; without a known name, the type that holds most bytes.
        mix: (type, tensors, bytes), most bytes first.
        parameters: weights, biases and norms.
        weights: bytes of all tensors in memory.
        choices: the same for each ``--quantize`` that the model allows, if it has float matrices.
        kv_per_token: bytes of keys and values of one token, all layers.
    """

    spec: ModelSpec
    quant: str
    mix: tuple[tuple[str, int, int], ...]
    parameters: int
    weights: int
    kv_per_token: int
    choices: Mapping[Quantize, int]


def describe(file: ModelFile, quantize: Quantize = "q8", kv_type: KvType = "f16") -> Description:
    """The figures of an open model file.

    Raises:
        ModelError: ``quantize`` is not for this model.
    """
    choice = settled(file.metadata.file, file.tensors, quantize)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type] += tensor.size
        counts[tensor.type] += 1
    mix = tuple((name, counts[name], size) for name, size in sizes.most_common())
    quant = _FILE_TYPES.get(file.metadata.integer("general.file_type", -1, low=-1), mix[0][0])
    parameters = sum(tensor.rows * tensor.cols for tensor in file.tensors.values())
    return Description(
        spec=file.spec,
        quant=quant,
        mix=mix,
        parameters=parameters,
        weights=weights_bytes(file.tensors, choice),
        kv_per_token=kv_per_token(file.spec, kv_type),
        choices=choices(file),
    )


def weights_bytes(tensors: Tensors, quantize: Quantize) -> int:
    """Bytes of all tensors in memory, by a ``settled`` choice."""
    return total(chosen(tensors, quantize))


def total(tensors: Tensors) -> int:
    """Bytes of tensors in memory, of each as it is to be packed."""
    return sum(map(packed_bytes, tensors.values()))


def encoder_bytes(spec: VisionSpec, tensors: Tensors, quantize: Quantize) -> int:
    """Bytes of an image encoder in memory, what it computes with included."""
    weights = sum(packed_bytes(replace(tensor, quantize=vision_settled(tensors, quantize))) for tensor in tensors.values())
    return weights + spec.side**2 * spec.hidden * 12


def choices(file: ModelFile) -> dict[Quantize, int]:
    """``--quantize`` -> ``weights_bytes``, for those that the model allows; empty if it is all the same."""
    found: dict[Quantize, int] = {}
    for choice in get_args(Quantize):
        with contextlib.suppress(ModelError):
            found[choice] = weights_bytes(file.tensors, settled("", file.tensors, choice))
    return found if words(file.tensors, "q8") else {}


def kv_per_token(spec: ModelSpec, kv_type: KvType) -> int:
    """Bytes of keys and values of one token, all layers."""
    return 2 * len(spec.layers) * spec.kv_heads * (spec.head_dim * _KV_CELL[kv_type] + _KV_SCALES[kv_type])


def check_context(wanted: int, most: int) -> int:
    """``wanted`` if the model has so much context.

    Raises:
        ModelError: it has less.
    """
    if wanted > most:
        raise ModelError(f"--ctx-size must be at most {most}, the model's own context, got {wanted}.")
    return wanted
