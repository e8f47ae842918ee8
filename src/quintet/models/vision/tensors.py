"""The tensors of an encoder: what each is called here, in an mmproj file and in a folder, and its shape. A file has exactly these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quintet.errors import ModelError, counted, shorten
from quintet.models.metadata import quoted
from quintet.models.spec import RawTensor
from quintet.models.vision.spec import VisionSpec

MATRICES = frozenset({"patch", "projection", "q", "k", "v", "o", "up", "down"})
"""Last parts of the names of what is packed; the others are kept in float32."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file.

    Args:
        type: GGML type name.
        shape: rows first.
        data: views into the mapped file.
    """

    type: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class Spelling:
    """What tensors are called in one kind of file.

    Args:
        top: of our names without a layer, the whole name.
        layer: before a layer's number.
        parts: of our names of a layer's tensors, without ``.weight`` or ``.bias``, what follows the number.
    """

    top: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]

    def name(self, ours: str) -> str:
        """Of our ``12.attn_norm_bias``, or of ``patch``."""
        number, _, part = ours.rpartition(".")
        if not number:
            return self.top[ours]
        stem = part.removesuffix("_bias")
        return f"{self.layer}{number}.{self.parts[stem]}.{'weight' if stem == part else 'bias'}"


def shapes(spec: VisionSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our name and shape, rows first, of every tensor. Lazy: the number of layers is only a claim so far."""
    hidden, ffn = spec.hidden, spec.ffn
    yield "patch", (hidden, 3, spec.patch, spec.patch)
    yield "patch_bias", (hidden,)
    yield "positions", (spec.side**2, hidden)
    yield "post_norm", (hidden,)
    yield "post_norm_bias", (hidden,)
    if spec.projector == "idefics3":
        yield "projection", (spec.out, hidden * spec.scale**2)
    else:
        yield "pooled_norm", (hidden,)
        yield "projection", (hidden, spec.out)  # rows are inputs, as it is stored
    for i in range(spec.layers):
        for part in ("attn_norm", "ffn_norm", "attn_norm_bias", "ffn_norm_bias", "q_bias", "k_bias", "v_bias", "o_bias", "down_bias"):
            yield f"{i}.{part}", (hidden,)
        for part in "qkvo":
            yield f"{i}.{part}", (hidden, hidden)
        yield f"{i}.up", (ffn, hidden)
        yield f"{i}.up_bias", (ffn,)
        yield f"{i}.down", (hidden, ffn)


def collect(file: str, spec: VisionSpec, stored: Mapping[str, Stored], spelling: Spelling) -> dict[str, RawTensor]:
    """Every tensor under our own name.

    Args:
        file: its name, for messages.
        stored: all tensors of the file that are the encoder's.

    Raises:
        ModelError: one is missing, has another shape than the keys say, or is not part of what we implement.
    """
    found: dict[str, RawTensor] = {}
    left = set(stored)
    for ours, shape in shapes(spec):
        theirs = spelling.name(ours)
        tensor = stored.get(theirs)
        if tensor is None:
            raise ModelError(f"{file}: tensor {quoted(theirs)} is missing; an image encoder of {counted(spec.layers, 'layer')} needs it.")
        if tensor.shape != shape:
            raise ModelError(f"{file}: the shape of tensor {quoted(theirs)} must be {list(shape)}, got {shorten(list(tensor.shape))}.")
        left.discard(theirs)
        rows = shape[0] if len(shape) > 1 else 1
        found[ours] = RawTensor(tensor.type, rows, math.prod(shape) // rows, (tensor.data,))
    for name in sorted(left):
        raise ModelError(f"{file}: tensor {quoted(name)} is not part of an image encoder as implemented here.")
    return found
