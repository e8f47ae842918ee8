"""The oracle: a plain float32 forward pass of a GGUF over its dequantised weights, for each family that the engine knows.

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

INTERLEAVED = {
    "llama": True, "mistral3": True, "granite": True, "granitemoe": True, "smollm3": True,
    "qwen2": False, "qwen3": False, "gemma": False, "gemma2": False, "gemma3": False, "olmo2": False, "phi3": False,
    "qwen3moe": False, "olmoe": False, "gpt-oss": False, "starcoder2": False, "seed_oss": False,
}  # fmt: skip
"""Architecture -> whether rotary pairs are (2i, 2i+1), as its files have them; else (i, i + half)."""

GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "olmo2": 4, "gpt-oss": 2, "starcoder2": 0}
"""Architectures whose layers see a window, where the file names one and does not list them: all but the last of every so many; of 0 all."""

GEMMA_2 = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}
"""What its first files do not say, and all its models have: in llama.cpp the keys need not be there either."""

UNROTATED_EVERY = {"smollm3": 4}
"""Architectures in which the last of every so many layers does not rotate its heads."""

GEMMAS = ("gemma", "gemma2", "gemma3")


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

    first, last = pair_of(file.setting("rope.scaling.yarn_beta_fast", 32.0)), pair_of(file.setting("rope.scaling.yarn_beta_slow", 1.0))
    if file.architecture != "gpt-oss":  # its config.json says truncate: false
        first, last = np.floor(first), np.ceil(last)
    low, high = max(0.0, first), min(dim - 1.0, last)
    ramp = np.clip((np.arange(len(plain)) - low) / max(0.001, high - low), 0, 1)
    return np.asarray(plain * (1 - ramp) + plain / factor * ramp)


def plain_rotation(file: GGUFFile, head_dim: int, base: float) -> Rotation:
    """A rotary embedding that nothing stretches."""
    dim = file.setting("rope.dimension_count", head_dim)
    return Rotation(base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim), 1.0, INTERLEAVED[file.architecture])


def rotation(file: GGUFFile, head_dim: int) -> Rotation:
    """The file's rotary embedding."""
    base = file.setting("rope.freq_base", 10000.0)
    frequencies = plain_rotation(file, head_dim, base).frequencies
    longer = file.setting("context_length") > file.setting("rope.scaling.original_context_length", file.setting("context_length"))
    for name in ("rope_freqs.weight", f"rope_factors_{'long' if longer else 'short'}.weight"):
        if name in file:
            frequencies = frequencies / file.tensor(name).astype(np.float64)
    kind = file.setting("rope.scaling.type", "none")
    factor = file.setting("rope.scaling.factor", 1.0)
    scale = file.setting("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        frequencies = _yarn_frequencies(frequencies, factor, base, file)
        scale *= (1 + 0.1 * np.log(factor)) / (1 + 0.1 * file.setting("rope.scaling.yarn_log_multiplier", 0.0) * np.log(factor))
    elif kind not in ("none", "longrope"):
        raise ValueError(f"unknown rope scaling {kind!r}")
    return Rotation(frequencies, scale, interleaved=INTERLEAVED[file.architecture])


def _norm(x: F32, weight: F32, epsilon: float) -> F32:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + epsilon) * weight, dtype=np.float32)


def _mean_norm(x: F32, weight: F32, bias: F32, epsilon: float) -> F32:
    """LayerNorm: zero mean and unit variance, weighed and shifted."""
    wide = x.astype(np.float64)
    wide -= wide.mean(axis=-1, keepdims=True)
    return np.asarray(wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + epsilon) * weight + bias, dtype=np.float32)


def _capped(x: F64, cap: float) -> F64:
    return np.asarray(cap * np.tanh(x / cap)) if cap else x


def _attention(q: F32, k: F32, v: F32, scale: float, cap: float, window: int, sinks: F32 | None = None) -> F32:
    """Causal attention: [T, H, C], [T, G, C], [T, G, C] -> [T, H * C]; query head h reads key/value head h // (H / G).

    Args:
        window: tokens that a token sees, itself the last; 0 = all before it.
        sinks: a score more for each head, which takes part in the softmax and weighs nothing.
    """
    tokens, heads, head_dim = q.shape
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    unseen = (distance < 0) | (distance >= (window or tokens))
    out = np.empty_like(q)
    for head in range(heads):
        shared = head // (heads // k.shape[1])
        scores = _capped((q[:, head] @ k[:, shared].T).astype(np.float64) * scale, cap)
        scores[unseen] = -np.inf
        if sinks is not None:
            scores = np.concatenate([scores, np.full((tokens, 1), sinks[head])], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)[:, :tokens] @ v[:, shared]
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
        self.mean_norms = file.architecture == "starcoder2"
        self.epsilon: float = file.setting("attention.layer_norm_epsilon" if self.mean_norms else "attention.layer_norm_rms_epsilon")
        self.rotation = rotation(file, self.head_dim)
        self.local_rotation = self._local_rotation()
        width = file.setting("embedding_length")
        self.embed_scale: float = np.sqrt(width) if file.architecture in GEMMAS else file.setting("embedding_scale", 1.0)
        self.attn_scale: float = file.setting("attention.scale", 1 / np.sqrt(self.head_dim))
        self.temperature: float = file.setting("attention.temperature_scale", 0.0)
        self.temperature_length: int = file.setting("rope.scaling.original_context_length", file.setting("context_length"))
        attn_cap, logit_cap, window = (file.setting(key, usual if file.architecture == "gemma2" else 0) for key, usual in GEMMA_2.items())
        self.attn_cap: float = attn_cap
        self.logit_cap: float = logit_cap
        self.window: int = window if file.architecture in GLOBAL_EVERY else 0
        self.windowed: list[bool] = file.setting("attention.sliding_window_pattern", [])
        self.limit = 7.0
        self.residual_scale: float = file.setting("residual_scale", 1.0)

    def _local_rotation(self) -> Rotation:
        """Of the layers that see a window only: gemma3's and olmo3's are not stretched."""
        if self.file.architecture == "gemma3":
            return plain_rotation(self.file, self.head_dim, 10000.0)
        if self.file.architecture == "olmo2":
            return plain_rotation(self.file, self.head_dim, self.file.setting("rope.freq_base", 10000.0))
        return self.rotation

    def hidden(self, sequences: Sequence[npt.NDArray[np.int32]]) -> list[F32]:
        """Final normed hidden states of independent sequences of ids [T]: one float32 [T, D] each."""
        xs = [self.file.rows("token_embd.weight", np.asarray(tokens, dtype=np.int64)) for tokens in sequences]
        xs = [x * np.float32(self.embed_scale) for x in xs]
        for layer in range(self.layers):
            xs = self._layer(layer, xs)
        weight = self.file.tensor("output_norm.weight")
        if self.mean_norms:
            return [_mean_norm(x, weight, self.file.tensor("output_norm.bias"), self.epsilon) for x in xs]
        return [_norm(x, weight, self.epsilon) for x in xs]

    def logits(self, hidden: F32) -> F32:
        """Output matrix over hidden rows: float32 [T, D] -> [T, V]."""
        plain = (self.rounded(hidden) @ self.output().T).astype(np.float64) / self.file.setting("logit_scale", 1.0)
        return _capped(plain, self.logit_cap).astype(np.float32)

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
        weights, scale = _Layer(self.file, layer), np.float32(self.residual_scale)
        if self.file.architecture in ("gpt-oss", "seed_oss"):  # whose norm of that name is the one before the feed-forward part
            xs = [x + self._attend(weights, layer, x) for x in xs]
            return [x + self._feed_forward(weights, self._normed(weights, "post_attention_norm", x)) for x in xs]
        xs = [x + scale * self._normed(weights, "post_attention_norm", self._attend(weights, layer, x)) for x in xs]
        return [x + scale * self._normed(weights, "post_ffw_norm", self._feed_forward(weights, x)) for x in xs]

    def _normed(self, weights: _Layer, name: str, x: F32) -> F32:
        """What a norm makes of rows, or the rows if the model has no such norm."""
        if self.mean_norms and f"{name}.weight" in weights:
            return _mean_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], self.epsilon)
        return _norm(x, weights[f"{name}.weight"], self.epsilon) if f"{name}.weight" in weights else x

    def _attend(self, weights: _Layer, layer: int, x: F32) -> F32:
        normed = self.rounded(self._normed(weights, "attn_norm", x))
        q, k, v = self._qkv(weights, normed)
        every = GLOBAL_EVERY.get(self.file.architecture) or self.layers + 1
        local = self.window and (self.windowed[layer] if self.windowed else (layer + 1) % every != 0)
        if (layer + 1) % UNROTATED_EVERY.get(self.file.architecture, self.layers + 1):
            rotated = self.local_rotation if local else self.rotation
            q, k = rotated(q), rotated(k)
        if self.temperature:
            times = 1 + self.temperature * np.log(1 + np.arange(len(x)) // self.temperature_length)
            q = np.asarray(q * times[:, None, None], dtype=np.float32)
        window = self.window if local else 0
        sinks = weights["attn_sinks.weight"] if self.file.architecture == "gpt-oss" else None
        mixed = _attention(q, self.cached(k), self.cached(v), self.attn_scale, self.attn_cap, window, sinks)
        return weights.project("attn_output", self.rounded(mixed))

    def _qkv(self, weights: _Layer, x: F32) -> list[F32]:
        """Each [T, heads, C], normed where the model norms them: over all heads in olmo2, else over each."""
        if "attn_qkv.weight" in weights:
            wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
            parts = np.split(weights.project("attn_qkv", x), [wide, wide + narrow], axis=-1)
        else:
            parts = [weights.project(f"attn_{name}", x) for name in "qkv"]
        heads = [part.reshape(len(x), -1, self.head_dim) for part in parts]
        if self.file.architecture in ("olmo2", "olmoe"):
            return [
                self._normed(weights, f"attn_{name}_norm", part).reshape(len(x), -1, self.head_dim)
                for name, part in zip("qkv", parts, strict=True)
            ]
        return [self._normed(weights, f"attn_{name}_norm", part) for name, part in zip("qkv", heads, strict=True)]

    def _feed_forward(self, weights: _Layer, x: F32) -> F32:
        normed = self._normed(weights, "ffn_norm", x)
        if "ffn_gate_inp.weight" in weights:
            return self._experts(weights, normed)
        normed = self.rounded(normed)
        if self.file.architecture == "starcoder2":
            up = weights.project("ffn_up", normed)
            return weights.project("ffn_down", self.rounded(self._gated(up, np.ones_like(up))))
        if "ffn_gate.weight" in weights:
            gate, up = weights.project("ffn_gate", normed), weights.project("ffn_up", normed)
        else:
            gate, up = np.split(weights.project("ffn_up", normed), 2, axis=-1)
        return weights.project("ffn_down", self.rounded(self._gated(gate, up)))

    def _gated(self, gate: F32, up: F32) -> F32:
        wide = gate.astype(np.float64)
        if self.file.architecture == "gpt-oss":
            wide, limit = np.minimum(wide, self.limit), self.limit
            return np.asarray(wide / (1 + np.exp(-1.702 * wide)) * (np.clip(up, -limit, limit) + 1), dtype=np.float32)
        if self.file.architecture in (*GEMMAS, "starcoder2"):  # GELU in its tanh form
            active = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        else:
            active = wide * 0.5 * (1 + np.tanh(0.5 * wide))  # cannot overflow, as 1 / (1 + exp(-gate)) would
        return np.asarray(active * up, dtype=np.float32)

    def _experts(self, weights: _Layer, x: F32) -> F32:
        """Each token takes the experts that the router finds likeliest, and the one for all if there is one."""
        scores = x.astype(np.float64) @ weights["ffn_gate_inp.weight"].T
        if "ffn_gate_inp.bias" in weights:
            scores = scores + weights["ffn_gate_inp.bias"]
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        used = np.argsort(-shares, axis=-1, kind="stable")[:, : self.file.setting("expert_used_count")]
        seen, out = self.rounded(x), np.zeros_like(x)
        for token, chosen in enumerate(used):
            taken = shares[token, chosen] / (1 if self.file.architecture == "olmoe" else shares[token, chosen].sum())
            for expert, share in zip(chosen, taken, strict=True):
                gate, up = (weights.expert(f"ffn_{name}_exps", expert, seen[token]) for name in ("gate", "up"))
                out[token] += np.float32(share) * weights.expert("ffn_down_exps", expert, self.rounded(self._gated(gate, up)))
        if "ffn_up_shexp.weight" in weights:
            gate, up = weights.project("ffn_gate_shexp", seen), weights.project("ffn_up_shexp", seen)
            out += weights.project("ffn_down_shexp", self.rounded(self._gated(gate, up)))
        return out


class _Layer:
    """One layer's weights, dequantised once."""

    def __init__(self, file: GGUFFile, layer: int) -> None:
        self._file, self._prefix = file, f"blk.{layer}."
        self._known: dict[str, F32] = {}

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._file

    def __getitem__(self, name: str) -> F32:
        if name not in self._known:
            self._known[name] = self._file.tensor(self._prefix + name)
        return self._known[name]

    def project(self, name: str, x: F32) -> F32:
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{name}.bias" in self else y

    def expert(self, name: str, index: int, x: F32) -> F32:
        """One row through one expert's matrix."""
        y: F32 = self[f"{name}.weight"][index] @ x
        return y + self[f"{name}.bias"][index] if f"{name}.bias" in self else y
