"""What a model file says about its model, in our words: plain values, no tensors. The core's own (csrc/model/config.h) follow them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quintet.config import Reduction


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    Args:
        dim: rotated dimensions per head, the first ones.
        base: theta.
        scaling: ``none``, ``linear`` or ``yarn``.
        factor: context extension factor (1 without scaling).
        original_context: context the model was trained on, for ``yarn`` and ``long_factors``.
        attn_factor: on the rotated values; ``yarn`` adds its own.
        log_multiplier: ``yarn``'s own factor is divided by what it would be with this times the logarithm of ``factor``; 1 = there is none.
        truncate: ``yarn``'s ramp between kept and interpolated pairs begins and ends at whole ones.
        freq_factors: per-pair divisors of the frequencies (llama 3's ``rope_freqs.weight``, LongRoPE's short ones); empty = none.
        long_factors: LongRoPE's (Ding et al. 2024, arXiv 2402.13753) for an engine whose context is beyond ``original_context``; which
            hold is never a matter of the position.
    """

    dim: int
    base: float
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def factors_for(self, context: int) -> tuple[float, ...]:
        """The divisors that hold for an engine of this context."""
        return self.long_factors if self.long_factors and context > self.original_context else self.freq_factors


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A feed-forward part of which each token takes a few experts: those with the largest softmax of a product with its row.

    Args:
        count: experts.
        used: taken by each token.
        ffn: width of one.
        shared: width of one more, which every token takes; 0 = there is none.
        normalise: the weights of those that are taken sum to 1.
    """

    count: int
    used: int
    ffn: int
    shared: int = 0
    normalise: bool = True


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer does beside its products.

    Args:
        pre_norm: RMS norms of what goes into attention and into the feed-forward part.
        post_norm: of what comes out of them, before it is added.
        qk_norm: of q and k before the rotation: ``none``, ``head`` (each head by itself) or ``full`` (all heads as one vector).
        qkv_bias: the q, k, v projections have biases.
        o_bias: and attention's output.
        ffn_bias: and the matrices of the feed-forward part, with the one that chooses experts.
        gated: the feed-forward part is activation(gate) * up, else activation(up).
        sinks: each head's softmax has a learned logit more, which nothing is weighed by.
        rope: which of the model's rotations; -1 = heads are not rotated.
        window: tokens that a token sees, itself the last; 0 = all before it.
        attn_scale: on the products of q and k; 0 = 1 / sqrt(head_dim).
        temperature, temperature_length: and at position p by 1 + temperature * ln(1 + floor(p / length)); 0 = it is not.
        attn_cap: scores s become cap * tanh(s / cap); 0 = they stay.
        residual_scale: on what attention and feed-forward part add.
        activation: of the gate: ``silu``, ``gelu`` in its tanh form, or ``swiglu_oai``: gpt-oss's silu of clamped values.
        experts: ``None`` = one feed-forward part for all.
    """

    pre_norm: bool = True
    post_norm: bool = False
    qk_norm: str = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    ffn_bias: bool = False
    gated: bool = True
    sinks: bool = False
    rope: int = 0
    window: int = 0
    attn_scale: float = 0.0
    temperature: float = 0.0
    temperature_length: int = 0
    attn_cap: float = 0.0
    residual_scale: float = 1.0
    activation: str = "silu"
    experts: ExpertSpec | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer as data; a new family is a new value, not new code.

    Args:
        architecture: GGUF ``general.architecture``, e.g. ``llama``, ``qwen2``.
        name: ``general.name``, for people.
        context: trained context length in tokens.
        hidden, heads, kv_heads, head_dim, ffn, vocab: sizes. ``vocab`` is the number of rows of the embedding.
        norm_eps: epsilon of the norms.
        layer_norm: norms before blocks and of the output are LayerNorms with biases, else RMS norms.
        tied: the embedding matrix is also the output matrix.
        interleaved: rotary pairs of the file's q and k are (2i, 2i+1) as in llama's, else (i, i + dim/2) (NeoX).
        ropes: the rotations, which differ in all but ``dim``.
        embed_scale: on the embedding's rows.
        logit_scale: on the logits.
        logit_cap: and then as ``LayerSpec.attn_cap``.
    """

    architecture: str
    name: str
    context: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    tied: bool
    interleaved: bool
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...]
    embed_scale: float = 1.0
    layer_norm: bool = False
    logit_scale: float = 1.0
    logit_cap: float = 0.0

    @property
    def window(self) -> int:
        """Tokens that a token sees in any layer, itself the last; 0 = there is a layer in which it sees all before it."""
        windows = [layer.window for layer in self.layers]
        return max(windows) if all(windows) else 0


@dataclass(frozen=True, slots=True)
class Made:
    """Bytes that are put together when they are asked for, and forgotten again: what lies otherwise in its file.

    Args:
        nbytes: how many.
    """

    nbytes: int
    make: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor, or rows of one, as they lie in the file.

    Args:
        type: GGML type name, of ``models.gguf.TENSOR_TYPES``.
        rows: output features N (1 for a vector).
        cols: input features K, contiguous.
        pieces: the raw bytes, one after the other: views into memory-mapped files, or one that is made; length checked against type, rows
            and cols.
        quantize: what becomes of it in memory if it is a matrix of a float type, see ``models/quantize.py``.
    """

    type: str
    rows: int
    cols: int
    pieces: tuple[memoryview, ...] | tuple[Made]
    quantize: Reduction = "q8"

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def data(self) -> memoryview:
        """All bytes in one place: a copy if they are several pieces."""
        first, *others = self.pieces
        if isinstance(first, Made):
            return memoryview(first.make())
        if not others:
            return first
        return memoryview(b"".join(piece for piece in self.pieces if isinstance(piece, memoryview)))


Tensors = Mapping[str, RawTensor]
"""By our own names: those of ``models/layout.py``."""
