"""The tensors of a folder under the names that GGUF has for them, put together of as many pieces as the folder has them in."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from quintet.errors import ModelError, counted
from quintet.models.folder import layouts
from quintet.models.folder.config import Outline
from quintet.models.folder.kinds import BLOCKS, EACH, SCALES, TOP, Kind, Source
from quintet.models.folder.safetensors import CODES, StoredTensor
from quintet.models.layout import EMBEDDING, OUTPUT, TensorInfo
from quintet.models.metadata import quoted
from quintet.models.spec import Made

HEAD = "lm_head.weight"
BUFFERS = ("rotary_emb.inv_freq", "attention.bias", "attn.masked_bias")
"""Ends of names of what is computed, not learned; old files have it."""

COMPARED = 1 << 20
"""Numbers of two tensors that are compared in one go."""

Stored = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A tensor as GGUF would have it.

    Args:
        info: type, shape (input features first) and bytes.
        pieces: the bytes, one after the other.
    """

    info: TensorInfo
    pieces: tuple[memoryview, ...] | tuple[Made]


class Spelling:
    """What a GGUF file's tensors are called in one folder, and how they lie there.

    Args:
        stored: the folder's tensors.
    """

    def __init__(self, kind: Kind, stored: Stored) -> None:
        self._kind, self._stored = kind, stored
        self._prefix = next((prefix for prefix in kind.prefixes if prefix + TOP["token_embd.weight"] in stored), kind.prefixes[0])

    def name(self, ours: str) -> str:
        """The folder's name of GGUF's ``ours``, or of the first tensor that it is put together of."""
        if ours.startswith("blk."):
            return self._layer(ours)[0].replace(EACH, "0")
        return self.heads()[0] if ours == OUTPUT else self._prefix + TOP[ours]

    def shape(self, ours: str, shape: tuple[int, ...]) -> list[int]:
        """The folder's shape of that tensor, rows first, where GGUF's is ``shape``."""
        turned = list(shape[::-1])
        if not ours.startswith("blk."):
            return turned
        name, source = self._layer(ours)
        if source.form != "rows":
            return _other_shape(turned, source)
        if source.half is not None:
            turned[-2] *= 2
        return turned[1:] if EACH in name else turned

    def place(self, layer: int, sources: tuple[Source, ...]) -> tuple[str, Source] | None:
        """The name, and which of ``sources`` it is of; ``None`` = the folder has none."""
        for source in sources:
            name = f"{self._prefix}layers.{layer}.{source.name}"
            if name.replace(EACH, "0") in self._stored:
                return name, source
        return None

    def heads(self) -> tuple[str, ...]:
        """What the output matrix may be called."""
        return tuple(dict.fromkeys((HEAD, self._prefix.removesuffix("model.") + HEAD)))

    def _layer(self, ours: str) -> tuple[str, Source]:
        _, layer, rest = ours.split(".", 2)
        sources = self._kind.names[rest]
        return self.place(int(layer), sources) or (f"{self._prefix}layers.{layer}.{sources[0].name}", sources[0])


def assemble(outline: Outline, stored: Stored) -> dict[str, Assembled]:
    """Every tensor under GGUF's name.

    Raises:
        ModelError: a tensor is not part of such a model, an expert is missing, or what belongs together does not fit.
    """
    return _Assembly(outline, stored).run()


class _Assembly:
    """One folder's tensors, and which of them were used."""

    def __init__(self, outline: Outline, stored: Stored) -> None:
        self._outline, self._stored, self._kind = outline, stored, outline.kind
        self._spelling = Spelling(outline.kind, stored)
        self._left = {name for name in stored if not name.startswith(outline.kind.skipped) and not name.endswith(BUFFERS)}

    def run(self) -> dict[str, Assembled]:
        found = dict(self._all())
        for name in sorted(self._left):
            raise ModelError(f"{self._stored[name].file}: tensor {quoted(name)} is not part of such a model as implemented here.")
        return found

    def _all(self) -> Iterator[tuple[str, Assembled]]:
        for ours in TOP:
            if (name := self._spelling.name(ours)) in self._stored:
                yield ours, self._one(ours, name, Source(name))
        for name in self._spelling.heads():
            if name in self._stored:
                made = self._one(OUTPUT, name, Source(name))
                if not (self._outline.tied and self._repeats_embedding(self._stored[name])):
                    yield OUTPUT, made
        for layer in range(self._outline.layers):
            for rest, sources in self._kind.names.items():
                if place := self._spelling.place(layer, sources):
                    yield f"blk.{layer}.{rest}", self._one(rest, *place)

    def _repeats_embedding(self, head: StoredTensor) -> bool:
        """What is stored beside the embedding that it should be may be another after all: then it counts, as in transformers."""
        embedding = self._stored.get(self._spelling.name(EMBEDDING))
        return embedding is not None and same(embedding, head)

    def _one(self, ours: str, name: str, source: Source) -> Assembled:
        if EACH in name:
            return self._experts(name)
        tensor = self._stored[name]
        self._left.discard(name)
        if source.form == "mxfp4":
            beside = name.removesuffix(BLOCKS) + SCALES
            self._left.discard(beside)
            info, made = layouts.mxfp4(name, tensor, self._stored.get(beside), source.half)
            return Assembled(info, (made,))
        if tensor.type == CODES:
            raise ModelError(f"{tensor.file}: tensor {quoted(name)} must not be of {CODES}: it has no scales.")
        if source.form == "turns":
            info, made = layouts.turned(tensor, source.half)
            return Assembled(info, (made,))
        if source.half is not None:
            return self._half(name, tensor, source.half)
        if self._kind.one_more and ours.endswith("norm.weight"):
            return one_more(tensor)
        return Assembled(_info(tensor.type, tensor.shape, tensor.data.nbytes), (tensor.data,))

    def _experts(self, pattern: str) -> Assembled:
        names = [pattern.replace(EACH, str(expert)) for expert in range(self._outline.experts)]
        first = self._stored[names[0]]
        for name in names:
            tensor = self._stored.get(name)
            if tensor is None:
                raise ModelError(f"{first.file}: tensor {quoted(name)} is missing; the model has {counted(len(names), 'expert')}.")
            if (tensor.type, tensor.shape) != (first.type, first.shape):
                want = f"{first.type} {list(first.shape)}"
                raise ModelError(
                    f"{tensor.file}: tensor {quoted(name)} must be {want} as {quoted(names[0])} is, got {tensor.type} {list(tensor.shape)}."
                )
        self._left.difference_update(names)
        pieces = tuple(self._stored[name].data for name in names)
        return Assembled(_info(first.type, (len(names), *first.shape), sum(piece.nbytes for piece in pieces)), pieces)

    def _half(self, name: str, tensor: StoredTensor, half: int) -> Assembled:
        """Of the rows of each of its matrices."""
        shape = tensor.shape
        if len(shape) < 2 or shape[-2] % 2:
            raise ModelError(f"{tensor.file}: tensor {quoted(name)} must have an even number of rows, got the shape {list(shape)}.")
        count, size = tensor.rows // shape[-2], tensor.data.nbytes * shape[-2] // tensor.rows // 2
        pieces = tuple(tensor.data[(2 * i + half) * size : (2 * i + half + 1) * size] for i in range(count))
        return Assembled(_info(tensor.type, (*shape[:-2], shape[-2] // 2, shape[-1]), count * size), pieces)


def _other_shape(shape: list[int], source: Source) -> list[int]:
    """In the form of ``source``: of matrices [experts, rows, columns], or of vectors [experts, rows]."""
    experts, rows, *columns = shape
    rows *= 1 if source.half is None else 2
    if source.form == "mxfp4":
        return [experts, rows, -(-columns[0] // layouts.BLOCK), layouts.CODE_BYTES]
    return [experts, *columns, rows]


def _info(type_: str, shape: tuple[int, ...], size: int) -> TensorInfo:
    return TensorInfo(type_, shape[::-1], 0, size)


def one_more(tensor: StoredTensor) -> Assembled:
    """A norm's weights with the 1 that Gemma adds to them."""
    values = memoryview(array("f", [1 + value for value in floats(tensor)])).cast("B")
    return Assembled(_info("F32", tensor.shape, values.nbytes), (values,))


def same(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether they hold the same numbers; some rows at a time, to the first that differ."""
    if one.shape != other.shape:
        return False
    rows = max(1, COMPARED // one.cols)
    pairs = ((_rows(one, at, rows), _rows(other, at, rows)) for at in range(0, one.rows, rows))
    return all((a.type == b.type and bytes(a.data) == bytes(b.data)) or floats(a) == floats(b) for a, b in pairs)


def _rows(tensor: StoredTensor, first: int, count: int) -> StoredTensor:
    """At most ``count`` of them."""
    size, count = tensor.data.nbytes // tensor.rows, min(count, tensor.rows - first)
    return replace(tensor, shape=(count, tensor.cols), data=tensor.data[first * size : (first + count) * size])


def floats(tensor: StoredTensor) -> tuple[float, ...]:
    """A small tensor's numbers."""
    if tensor.type == "BF16":  # the upper half of a float's bits
        return tuple(memoryview(array("I", [bits << 16 for bits in tensor.data.cast("H")])).cast("B").cast("f"))
    count = tensor.rows * tensor.cols
    return struct.unpack(f"<{count}{'e' if tensor.type == 'F16' else 'f'}", tensor.data)
