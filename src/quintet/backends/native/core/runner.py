"""The only importer of the native extension; typed, and the seam at which a model double can stand in.

Shapes below: R = requested rows, V = vocabulary, k = alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quintet import _core
from quintet.models.spec import ModelSpec, Tensors
from quintet.request import Sampling

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged forward pass: segments of consecutive tokens of different sequences.

    Args:
        tokens: int32 [T], all segments' tokens one after the other.
        lengths: int32 [S], tokens per segment, each ≥ 1, summing to T.
        starts: int32 [S], position of each segment's first token in its sequence.
        tables: int32 [S, P], page numbers of each sequence in order; entries past the last used page are ignored.
            Every position from 0 to ``starts + lengths - 1`` must lie in a listed page, and those before ``starts``
            must have been computed earlier.
        rows: int32 [R], indexes into ``tokens`` whose final hidden row is wanted.
    """

    tokens: I32
    lengths: I32
    starts: I32
    tables: I32
    rows: I32


class Runner(Protocol):
    """A model that can be stepped. Implemented by the native model and by the toy. Not thread-safe: one caller at a time.

    Every number it returns depends only on the tokens of that row's own sequence up to that row, never on the batch.
    """

    @property
    def vocab(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def page_bytes(self) -> int:
        """Memory of one KV page (all layers), in bytes."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of one hidden row as returned by ``forward``."""
        ...

    def allocate(self, pages: int) -> None:
        """Reserve KV memory for ``pages`` pages, numbered from 0. Once, before the first ``forward``."""
        ...

    def forward(self, batch: Batch) -> U8:
        """Run the batch, write its keys and values to the pages, and return the wanted hidden rows, uint8 [R, row_bytes].

        A row is the final hidden state, normed and quantised for the output matrix; it may be kept and given to ``logits`` later.

        Raises:
            ValueError: a token id, page number, length or index out of range; nothing was computed.
        """
        ...

    def logits(self, rows: U8) -> F32:
        """Output matrix over hidden rows: uint8 [R, row_bytes] -> float32 [R, V]. The array is valid until the next call."""
        ...

    def logits_of(self, rows: U8, tokens: I32) -> F32:
        """Of each row the logit of one token, int32 [R]: the same as in ``logits``, for a small part of the work. float32 [R]."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's keys and values (copy on write)."""
        ...


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities (natural log, of the plain softmax of the logits row).

    Args:
        chosen: float32 [R], of the target token.
        top_ids: int32 [R, k], most likely first; ties by lower id.
        top: float32 [R, k].
        log_sums: float64 [R]. A log-probability is the logit less this, rounded once; NaN for a row that is not finite.
    """

    chosen: F32
    top_ids: I32
    top: F32
    log_sums: npt.NDArray[np.float64]


def score(logits: F32, targets: I32, k: int) -> Scores:
    """Log-probabilities of ``targets`` int32 [R] and of the ``k`` most likely tokens of each row of float32 [R, V]."""
    return Scores(*_core.score(logits, targets, k))


NOT_FINITE = -1
"""Instead of a token: a logit is NaN or +infinity, or all are -infinity."""
NOTHING_LEFT = -2
"""Instead of a token: the sequence's own controls ban every one."""
NOT_DRAWN = -4
"""Instead of a token: the sequence did not go on as drafted, so there is none at this place yet."""

Sampler = _core.Sampler
"""One sequence's way of choosing tokens: its controls and what it has seen. ``accept`` every token it goes on with, in order; one that
is drawing can do nothing else. ``distribution`` tells what the next draw chooses from."""


class Samplers:
    """Makes the samplers of one model.

    Args:
        pieces: the bytes of each token id, as many as logits are wide.
        eos_ids: ids that end a sequence.
    """

    def __init__(self, pieces: Sequence[bytes], eos_ids: Iterable[int]) -> None:
        self._pieces = _core.Pieces(list(pieces))
        self._eos_ids = sorted(eos_ids)

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> Sampler:
        """A sampler for a sequence that begins with ``prompt``.

        Args:
            sampling: resolved by ``sampling.resolve_sampling``; its ``bad_words`` are not looked at.
            bad_words: the same as token sequences.

        Raises:
            ValueError: a control or an id out of range.
        """
        controls = {name: getattr(sampling, name) for name in _CONTROLS}
        dry = sampling.dry
        controls |= {
            "dry_multiplier": dry.multiplier,
            "dry_base": dry.base,
            "dry_allowed_length": dry.allowed_length,
            "dry_range": dry.range,
            "dry_breakers": [breaker.encode() for breaker in dry.breakers],
            "bad_words": bad_words,
            "eos_ids": self._eos_ids,
        }
        return Sampler(controls, self._pieces, np.array(prompt, np.int32))


_CONTROLS = tuple(field.name for field in fields(Sampling) if field.name not in ("dry", "bad_words", "seeded"))


@dataclass(frozen=True, slots=True)
class Drafted:
    """Rows that were computed on a guess of how their sequences go on. The rows of a sequence follow each other: those of its next token,
    and of each one that is drafted after it.

    Args:
        lengths: int32 [S], rows of each sequence, at least 1.
        tokens: int32 [R], the token that the row after this one was computed on; -1 at a sequence's last row, or where it must not go on.
    """

    lengths: I32
    tokens: I32


def draw(
    logits: F32,
    samplers: Sequence[Sampler],
    positions: npt.NDArray[np.uint64],
    masks: npt.NDArray[np.uint32] | None = None,
    drafts: Drafted | None = None,
) -> I32:
    """Choose one token per row of float32 [R, V]; the logits are not changed. The order of steps is in docs/sampling.md.

    A row's token depends on its own logits, sampler and position only. With drafts a sequence draws at its rows in turn, as long as it
    draws what was drafted, and its sampler accepts all but the last of what it drew: the same as with one row at a time.

    Args:
        samplers: [S], no two the same; S = R without drafts.
        positions: [S], of the first token to be drawn in each sequence: the counters of the random numbers.
        masks: [R, ceil(V / 32)], a bit per token, lowest first: 0 bans it. ``None``: bans none.

    Returns:
        int32 [R]: token ids, or ``NOT_FINITE``, ``NOTHING_LEFT`` or ``NOT_DRAWN``.
    """
    return _core.draw(logits, samplers, positions, masks, None if drafts is None else (drafts.lengths, drafts.tokens))


class NativeRunner:
    """``Runner`` over the native extension.

    Args:
        context: most tokens of a sequence.
        isa: instruction set, see ``isas``; empty = ``QUINTET_ISA`` from the environment, else the best.

    Raises:
        ValueError: sizes the kernels cannot take, or an instruction set that cannot run here.
    """

    def __init__(self, spec: ModelSpec, context: int, isa: str, threads: int) -> None:
        self._model = _core.Model(_config(spec, context), isa, threads)
        self._spec = spec
        self._context = context

    @property
    def vocab(self) -> int:
        return self._spec.vocab

    @property
    def context(self) -> int:
        return self._context

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._model.isa

    @property
    def page_bytes(self) -> int:
        return self._model.page_bytes

    @property
    def row_bytes(self) -> int:
        return self._model.row_bytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices."""
        return self._model.weight_bytes

    def take(self, tensors: Tensors, progress: Callable[[float], None]) -> None:
        """Pack every tensor; ``progress`` hears shares of 1 by bytes.

        Raises:
            ValueError: a tensor that the model does not have, or lacks.
        """
        total = sum(tensor.data.nbytes for tensor in tensors.values())
        done = 0
        for name, tensor in tensors.items():
            self._model.set(name, tensor.type, tensor.rows, tensor.cols, tensor.data)
            done += tensor.data.nbytes
            progress(done / total)
        self._model.finish()

    def allocate(self, pages: int) -> None:
        self._model.allocate(pages)

    def forward(self, batch: Batch) -> U8:
        return self._model.forward(batch.tokens, batch.lengths, batch.starts, batch.tables, batch.rows)

    def logits(self, rows: U8) -> F32:
        return self._model.logits(np.ascontiguousarray(rows))

    def logits_of(self, rows: U8, tokens: I32) -> F32:
        return self._model.logits_of(np.ascontiguousarray(rows), tokens)

    def copy_page(self, source: int, target: int) -> None:
        self._model.copy_page(source, target)


def _config(spec: ModelSpec, context: int) -> dict[str, object]:
    """The spec in the names of csrc/model/model.h's ``Config``."""
    rope = spec.rope
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "norm_eps", "qkv_bias", "tied")
    return {
        "context": context,
        **{name: getattr(spec, name) for name in names},
        "interleaved": rope.interleaved,
        "rope_dim": rope.dim,
        "rope_base": rope.base,
        "rope_scaling": rope.scaling,
        "rope_factor": rope.factor,
        "rope_original_context": rope.original_context,
        "rope_attn_factor": rope.attn_factor,
        "rope_beta_fast": rope.beta_fast,
        "rope_beta_slow": rope.beta_slow,
        "rope_freq_factors": list(rope.freq_factors),
    }
