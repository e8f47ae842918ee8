"""The oracle: a plain float32 forward pass of a llama- or qwen2-family GGUF over its dequantised weights.

No cache, no chunks, no quantised activations, no half-precision keys: what the file means, as exactly as is cheap. Norms, rotations and
softmax are computed in float64; matrix products are BLAS float32.

T = tokens, D = hidden, H = heads, G = key/value heads, C = head dimension, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.reference.dequantize import F32, GGUFFile

F64 = npt.NDArray[np.float64]

INTERLEAVED = {"llama": True, "qwen2": False}
"""Architecture -> whether rotary pairs are (2i, 2i+1), as its files have them; else (i, i + half)."""


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding of the first ``2 * len(frequencies)`` dimensions of each head.

    Args:
        frequencies: radians per position of each pair.
        scale: factor on both sine and cosine (YaRN's attention factor).
        interleaved: pairs are (2i, 2i+1), else (i, i + half).
    """

    frequencies: F64
    scale: float
    interleaved: bool

    def __call__(self, x: F32) -> F32:
        """Rotate float32 [T, heads, C], the first row at position 0."""
        half = len(self.frequencies)
        angles = np.arange(len(x))[:, None, None] * self.frequencies
        cos, sin = np.cos(angles) * self.scale, np.sin(angles) * self.scale
        first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if self.interleaved else (slice(0, half), slice(half, 2 * half))
        out = x.copy()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out


def _yarn_frequencies(plain: F64, factor: float, base: float, file: GGUFFile) -> F64:
    """Peng et al., YaRN (arXiv 2309.00071) section 3.2: low frequencies are interpolated, high ones kept, with a ramp between them."""
    dim = 2 * len(plain)
    original = file.setting("rope.scaling.original_context_length", file.setting("context_length"))

    def pair_of(rotations: float) -> float:
        return float(dim * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base)))

    low = max(0.0, np.floor(pair_of(file.setting("rope.scaling.yarn_beta_fast", 32.0))))
    high = min(dim - 1.0, np.ceil(pair_of(file.setting("rope.scaling.yarn_beta_slow", 1.0))))
    ramp = np.clip((np.arange(len(plain)) - low) / max(0.001, high - low), 0, 1)
    return np.asarray(plain * (1 - ramp) + plain / factor * ramp)


def rotation(file: GGUFFile, head_dim: int) -> Rotation:
    """The file's rotary embedding."""
    dim = file.setting("rope.dimension_count", head_dim)
    base = file.setting("rope.freq_base", 10000.0)
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if "rope_freqs.weight" in file:
        frequencies = frequencies / file.tensor("rope_freqs.weight").astype(np.float64)
    kind = file.setting("rope.scaling.type", "none")
    factor = file.setting("rope.scaling.factor", 1.0)
    scale = file.setting("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        frequencies = _yarn_frequencies(frequencies, factor, base, file)
        scale *= 1 + 0.1 * np.log(factor)
    elif kind != "none":
        raise ValueError(f"unknown rope scaling {kind!r}")
    return Rotation(frequencies, scale, interleaved=INTERLEAVED[file.architecture])


def _norm(x: F32, weight: F32, epsilon: float) -> F32:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + epsilon) * weight, dtype=np.float32)


def _attention(q: F32, k: F32, v: F32) -> F32:
    """Causal attention: [T, H, C], [T, G, C], [T, G, C] -> [T, H * C]; query head h reads key/value head h // (H / G)."""
    tokens, heads, head_dim = q.shape
    future = np.triu(np.ones((tokens, tokens), dtype=bool), 1)
    out = np.empty_like(q)
    for head in range(heads):
        shared = head // (heads // k.shape[1])
        scores = (q[:, head] @ k[:, shared].T).astype(np.float64) / np.sqrt(head_dim)
        scores[future] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32) @ v[:, shared]
    return out.reshape(tokens, heads * head_dim)


class Reference:
    """A model file as a function of token ids.

    Args:
        path: GGUF of one of the architectures in ``INTERLEAVED``.

    Raises:
        ValueError: another architecture.
    """

    def __init__(self, path: Path | str) -> None:
        self.file = file = GGUFFile(path)
        if file.architecture not in INTERLEAVED:
            raise ValueError(f"no reference for architecture {file.architecture!r}")
        self.layers: int = file.setting("block_count")
        self.heads: int = file.setting("attention.head_count")
        self.kv_heads: int = file.setting("attention.head_count_kv", self.heads)
        self.head_dim: int = file.setting("attention.key_length", file.setting("embedding_length") // self.heads)
        self.epsilon: float = file.setting("attention.layer_norm_rms_epsilon")
        self.rotation = rotation(file, self.head_dim)

    def hidden(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[F32]:
        """Final normed hidden states of independent sequences of ids [T]: one float32 [T, D] each."""
        xs = [self.file.rows("token_embd.weight", np.asarray(tokens, dtype=np.int64)) for tokens in sequences]
        for layer in range(self.layers):
            xs = self._layer(layer, xs)
        weight = self.file.tensor("output_norm.weight")
        return [_norm(x, weight, self.epsilon) for x in xs]

    def logits(self, hidden: F32) -> F32:
        """Output matrix over hidden rows: float32 [T, D] -> [T, V]."""
        return self.rounded(hidden) @ self.output().T

    def __call__(self, tokens: npt.NDArray[np.int32]) -> F32:
        """Logits of one sequence: ids [T] -> float32 [T, V]."""
        return self.logits(self.hidden([tokens])[0])

    def output(self) -> F32:
        """The dequantised output matrix: float32 [V, D]."""
        return self.file.tensor("output.weight" if "output.weight" in self.file else "token_embd.weight")

    def rounded(self, x: F32) -> F32:
        """What a matrix product sees of its activations: exactly them, here."""
        return x

    def cached(self, x: F32) -> F32:
        """What attention sees of keys and of values: exactly them, here."""
        return x

    def _layer(self, layer: int, xs: list[F32]) -> list[F32]:
        weights = _Layer(self.file, layer)
        return [x + self._feed_forward(weights, x) for x in (x + self._attend(weights, x) for x in xs)]

    def _attend(self, weights: _Layer, x: F32) -> F32:
        normed = self.rounded(_norm(x, weights["attn_norm.weight"], self.epsilon))
        q, k, v = (weights.project(f"attn_{name}", normed).reshape(len(x), -1, self.head_dim) for name in "qkv")
        mixed = _attention(self.rotation(q), self.cached(self.rotation(k)), self.cached(v))
        return weights.project("attn_output", self.rounded(mixed))

    def _feed_forward(self, weights: _Layer, x: F32) -> F32:
        normed = self.rounded(_norm(x, weights["ffn_norm.weight"], self.epsilon))
        gate = weights.project("ffn_gate", normed).astype(np.float64)
        sigmoid = 0.5 * (1 + np.tanh(0.5 * gate))  # cannot overflow, as 1 / (1 + exp(-gate)) would
        product = (gate * sigmoid * weights.project("ffn_up", normed)).astype(np.float32)
        return weights.project("ffn_down", self.rounded(product))


class _Layer:
    """One layer's weights, dequantised once."""

    def __init__(self, file: GGUFFile, layer: int) -> None:
        self._file, self._prefix = file, f"blk.{layer}."
        self._known: dict[str, F32] = {}

    def __getitem__(self, name: str) -> F32:
        if name not in self._known:
            self._known[name] = self._file.tensor(self._prefix + name)
        return self._known[name]

    def project(self, name: str, x: F32) -> F32:
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{self._prefix}{name}.bias" in self._file else y
