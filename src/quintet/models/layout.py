"""The tensors of a model file: what each is called there and here, and its shape. A file has exactly these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from quintet.errors import ModelError, counted, shorten
from quintet.models.families import FAMILIES
from quintet.models.metadata import Metadata, quoted
from quintet.models.spec import ExpertSpec, LayerSpec, ModelSpec

ROPE_FREQS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the file's directory lists it.

    Args:
        type: GGML type name.
        shape: as in the file: input features first.
        offset: bytes from the start of tensor data.
        size: bytes.
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def cols(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        """Of all matrices, if it holds several."""
        return math.prod(self.shape[1:])


Infos = Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one of our tensors is.

    Args:
        tensor: the file's name.
        start: its first row there.
        rows: how many; 0 = it is a vector.
        cols: of each.
        experts: matrices of so many experts, one after the other; ``rows`` are those of all; 0 = it is one matrix.
    """

    tensor: str
    start: int
    rows: int
    cols: int
    experts: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the file's tensor, if nothing is in it after this."""
        if self.experts:
            return self.cols, self.rows // self.experts, self.experts
        return (self.cols, self.start + self.rows) if self.rows else (self.cols,)


class Spelling(Protocol):
    """What tensors are called, and how their shapes are written, where they are not in a GGUF file."""

    def name(self, ours: str) -> str:
        """Of GGUF's ``ours``."""
        ...

    def shape(self, ours: str, shape: tuple[int, ...]) -> list[int]:
        """Of that tensor, if GGUF's is ``shape``."""
        ...


class _Own:
    """GGUF's own."""

    def name(self, ours: str) -> str:
        return ours

    def shape(self, ours: str, shape: tuple[int, ...]) -> list[int]:  # noqa: ARG002 - the protocol's
        return list(shape)


def expected_tensors(spec: ModelSpec, meta: Metadata, infos: Infos, spelling: Spelling | None = None) -> dict[str, Place]:
    """Our name -> where it is, for exactly the tensors that the model has.

    Args:
        spelling: for messages; ``None`` = GGUF's.

    Raises:
        ModelError: a tensor is missing, has another shape than the keys say, or is not part of what we implement.
    """
    spelled = spelling or _Own()
    places: dict[str, Place] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for ours, place in _places(spec):
        if place.tensor not in infos:
            need = f"a {spec.architecture} model of {counted(len(spec.layers), 'layer')} needs it"
            raise ModelError(f"{meta.file}: tensor {quoted(spelled.name(place.tensor))} is missing; {need}.")
        places[ours] = place
        shapes[place.tensor] = place.shape
    for name, want in shapes.items():
        if infos[name].shape != want:
            shape, got = spelled.shape(name, want), shorten(spelled.shape(name, infos[name].shape))
            raise ModelError(f"{meta.file}: the shape of tensor {quoted(spelled.name(name))} must be {shape}, got {got}.")
    for name in infos.keys() - shapes.keys() - {ROPE_FREQS, ROPE_LONG, ROPE_SHORT}:
        raise ModelError(
            f"{meta.file}: tensor {quoted(spelled.name(name))} is not part of a {spec.architecture} model as implemented here."
        )
    return places


def _places(spec: ModelSpec) -> Iterator[tuple[str, Place]]:
    """Lazy: the number of layers is only a claim so far."""
    yield "embed", Place(EMBEDDING, 0, spec.vocab, spec.hidden)
    yield "output_norm", Place("output_norm.weight", 0, 0, spec.hidden)
    if spec.layer_norm:
        yield "output_norm_bias", Place("output_norm.bias", 0, 0, spec.hidden)
    if not spec.tied:
        yield "output", Place(OUTPUT, 0, spec.vocab, spec.hidden)
    for i, layer in enumerate(spec.layers):
        for ours, place in _layer(spec, layer, f"blk.{i}."):
            yield f"{i}.{ours}", place


def _layer(spec: ModelSpec, layer: LayerSpec, prefix: str) -> Iterator[tuple[str, Place]]:
    hidden, ffn, q, kv = spec.hidden, spec.ffn, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def vector(name: str, size: int) -> Place:
        return Place(prefix + name, 0, 0, size)

    def matrix(name: str, rows: int, cols: int, start: int = 0) -> Place:
        return Place(f"{prefix}{name}.weight", start, rows, cols)

    if layer.pre_norm:
        yield "attn_norm", vector("attn_norm.weight", hidden)
        yield "ffn_norm", vector(f"{FAMILIES[spec.architecture].ffn_norm}.weight", hidden)
        if spec.layer_norm:
            yield "attn_norm_bias", vector("attn_norm.bias", hidden)
            yield "ffn_norm_bias", vector(f"{FAMILIES[spec.architecture].ffn_norm}.bias", hidden)
    if FAMILIES[spec.architecture].fused:
        yield "q", matrix("attn_qkv", q, hidden)
        yield "k", matrix("attn_qkv", kv, hidden, q)
        yield "v", matrix("attn_qkv", kv, hidden, q + kv)
    else:
        yield "q", matrix("attn_q", q, hidden)
        yield "k", matrix("attn_k", kv, hidden)
        yield "v", matrix("attn_v", kv, hidden)
    yield "o", matrix("attn_output", hidden, q)
    if layer.experts:
        yield from _experts(layer.experts, hidden, prefix)
        if layer.ffn_bias:
            yield from _experts_biases(layer.experts, hidden, prefix)
    elif FAMILIES[spec.architecture].fused:
        yield "gate", matrix("ffn_up", ffn, hidden)
        yield "up", matrix("ffn_up", ffn, hidden, ffn)
        yield "down", matrix("ffn_down", hidden, ffn)
    else:
        if layer.gated:
            yield "gate", matrix("ffn_gate", ffn, hidden)
        yield "up", matrix("ffn_up", ffn, hidden)
        yield "down", matrix("ffn_down", hidden, ffn)
        yield from _dense_biases(layer, hidden, ffn, prefix)
    if layer.post_norm:
        yield "post_attn_norm", vector("post_attention_norm.weight", hidden)
        yield "post_ffn_norm", vector("post_ffw_norm.weight", hidden)
    if layer.qk_norm != "none":
        full = layer.qk_norm == "full"
        yield "q_norm", vector("attn_q_norm.weight", q if full else spec.head_dim)
        yield "k_norm", vector("attn_k_norm.weight", kv if full else spec.head_dim)
    if layer.qkv_bias:
        yield "q_bias", vector("attn_q.bias", q)
        yield "k_bias", vector("attn_k.bias", kv)
        yield "v_bias", vector("attn_v.bias", kv)
    if layer.o_bias:
        yield "o_bias", vector("attn_output.bias", hidden)
    if layer.sinks:
        yield "sinks", vector("attn_sinks.weight", spec.heads)


def _dense_biases(layer: LayerSpec, hidden: int, ffn: int, prefix: str) -> Iterator[tuple[str, Place]]:
    if layer.ffn_bias:
        if layer.gated:
            yield "gate_bias", Place(f"{prefix}ffn_gate.bias", 0, 0, ffn)
        yield "up_bias", Place(f"{prefix}ffn_up.bias", 0, 0, ffn)
        yield "down_bias", Place(f"{prefix}ffn_down.bias", 0, 0, hidden)


def _experts(experts: ExpertSpec, hidden: int, prefix: str) -> Iterator[tuple[str, Place]]:
    count, ffn, shared = experts.count, experts.ffn, experts.shared
    yield "router", Place(f"{prefix}ffn_gate_inp.weight", 0, count, hidden)
    yield "gate_exps", Place(f"{prefix}ffn_gate_exps.weight", 0, count * ffn, hidden, count)
    yield "up_exps", Place(f"{prefix}ffn_up_exps.weight", 0, count * ffn, hidden, count)
    yield "down_exps", Place(f"{prefix}ffn_down_exps.weight", 0, count * hidden, ffn, count)
    if shared:
        yield "gate", Place(f"{prefix}ffn_gate_shexp.weight", 0, shared, hidden)
        yield "up", Place(f"{prefix}ffn_up_shexp.weight", 0, shared, hidden)
        yield "down", Place(f"{prefix}ffn_down_shexp.weight", 0, hidden, shared)


def _experts_biases(experts: ExpertSpec, hidden: int, prefix: str) -> Iterator[tuple[str, Place]]:
    count, ffn = experts.count, experts.ffn
    yield "router_bias", Place(f"{prefix}ffn_gate_inp.bias", 0, 0, count)
    yield "gate_exps_bias", Place(f"{prefix}ffn_gate_exps.bias", 0, count, ffn)
    yield "up_exps_bias", Place(f"{prefix}ffn_up_exps.bias", 0, count, ffn)
    yield "down_exps_bias", Place(f"{prefix}ffn_down_exps.bias", 0, count, hidden)
