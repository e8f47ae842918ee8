"""What a model file says about its model, in our words: plain values, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Args:
        dim: rotated dimensions per head.
        base: theta.
        interleaved: pairs are (2i, 2i+1) as in llama GGUF files, else (i, i + dim/2) as in qwen2 (NeoX).
        scaling: ``none``, ``linear`` or ``yarn``.
        factor: context extension factor (1 without scaling).
        original_context: context the model was trained on, for ``yarn``.
        freq_factors: per-pair divisors of the frequencies (llama 3's ``rope_freqs.weight``); empty = none.
    """

    dim: int
    base: float
    interleaved: bool
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer as data; a new family is a new value, not new code.

    Args:
        architecture: GGUF ``general.architecture``, e.g. ``llama``, ``qwen2``.
        name: ``general.name``, for people.
        context: trained context length in tokens.
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab: sizes. ``vocab`` is the number of rows of the embedding.
        norm_eps: epsilon of the RMS norms.
        qkv_bias: the q, k, v projections have biases.
        tied: the embedding matrix is also the output matrix.
    """

    architecture: str
    name: str
    context: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    qkv_bias: bool
    tied: bool
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in the file.

    Args:
        type: GGML type name: ``F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K``.
        rows: output features N (1 for a vector).
        cols: input features K, contiguous.
        data: the raw bytes, a view into the memory-mapped file; length checked against type, rows and cols.
    """

    type: str
    rows: int
    cols: int
    data: memoryview


Tensors = Mapping[str, RawTensor]
"""By our own names: ``embed``, ``output`` (absent when tied), ``output_norm`` and, for each layer i, ``i.attn_norm i.q i.k i.v
i.o i.ffn_norm i.gate i.up i.down`` plus ``i.q_bias i.k_bias i.v_bias`` with ``qkv_bias``."""
