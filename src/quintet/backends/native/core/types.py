"""The values that a step is made of, and what computes it, as protocols: the seams at which a double can stand in for the compiled core.

Nothing here imports that core, so that whoever plans a step does not need it. Shapes below: R = requested rows, V = vocabulary,
k = alternatives.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from quintet.request import Sampling

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

Meanwhile = Callable[[], None]
"""What the caller of a pass does while it is computed."""


@dataclass(frozen=True, slots=True)
class Given:
    """Tokens of a batch that are no text.

    Args:
        rows: int32 [G], indexes into ``tokens``, ascending, whose embedding is given.
        embeddings: float32 [G, width of the embedding], as it goes into the first layer: no factor is applied to it.
        spans: int32 [B, 2], spans of tokens that see each other both ways, as far as a layer's window goes back: the index of the first,
            and how many. All tokens of a span are computed in one batch; later its last ones may be computed alone.
    """

    rows: I32
    embeddings: F32
    spans: I32


@dataclass(frozen=True, slots=True)
class Batch:
    """One ragged forward pass: segments of consecutive tokens of different sequences.

    Args:
        tokens: int32 [T], all segments' tokens one after the other.
        lengths: int32 [S], tokens per segment, each ≥ 1, summing to T.
        starts: int32 [S], position of each segment's first token in its sequence.
        tables: int32 [S, P], page numbers of each sequence in order; entries past the last used page are ignored, and those of
            positions that none of its tokens sees. Every other position up to ``starts + lengths - 1`` must lie in a listed page,
            and those before ``starts`` must have been computed earlier.
        rows: int32 [R], indexes into ``tokens`` whose final hidden row is wanted.
        given: what is no text; ``None`` = all is.
    """

    tokens: I32
    lengths: I32
    starts: I32
    tables: I32
    rows: I32
    given: Given | None = None


class Runner(Protocol):
    """A model that can be stepped. Implemented by the native model and by the toy. Not thread-safe: one caller at a time.

    Every number it returns depends only on the tokens of that row's own sequence up to that row, never on the batch.
    """

    @property
    def vocab(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def window(self) -> int:
        """Tokens that a token sees in any layer, itself the last; 0 = there is a layer in which it sees all before it."""
        ...

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

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        """Run the batch, write its keys and values to the pages, and return the wanted hidden rows, uint8 [R, row_bytes].

        A row is the final hidden state, normed and quantised for the output matrix; it may be kept and given to ``logits`` later.

        Args:
            meanwhile: called once, in the caller's thread, when the others have begun. It must not ask for anything that computes with
                the same threads. What it raises is raised here, once the pass is over.

        Raises:
            ValueError: a token id, page number, length or index out of range; nothing was computed, and ``meanwhile`` not called.
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

    def read_page(self, page: int) -> U8:
        """A copy of one page's keys and values, uint8 [page_bytes]: the same for the same tokens, wherever they were computed."""
        ...

    def write_page(self, page: int, data: U8) -> None:
        """Fill a page with what ``read_page`` gave, of this runner or of another of the same model.

        Raises:
            ValueError: of another size.
        """
        ...

    def touch_pages(self, first: int, last: int) -> None:
        """Have the memory of the pages from ``first`` up to, not with, ``last`` resident before they are written. What they hold stays."""
        ...

    def drop_pages(self, pages: Sequence[int]) -> None:
        """Give the memory of these pages back to the system, as far as that can be; they may be used again, and hold nothing."""
        ...


class Encoder(Protocol):
    """What makes rows of embeddings of images, a tile at a time, in pieces. Not thread-safe: one caller at a time, and not while a
    ``Runner`` on the same threads runs.

    A row depends on the tile's pixels and on nothing else.
    """

    @property
    def tokens(self) -> int:
        """Rows of a tile."""
        ...

    @property
    def work(self) -> int:
        """Of a tile, in the units of ``advance``."""
        ...

    def begin(self, tile: U8) -> None:
        """Begin with a tile, uint8 [pixels of all rows, each red, green and blue]; one that was begun before is given up.

        Raises:
            ValueError: of another size than the encoder's.
        """
        ...

    def advance(self, work: int) -> bool:
        """Go on for about so many multiply-adds, and at least a little; True: the tile is done."""
        ...

    def rows(self) -> F32:
        """Of the tile that is done, float32 [tokens, width of the embedding]."""
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """What rows of logits gave.

    Args:
        tokens: int32 [R], token ids, or an ``Outcome``.
        scores: of the tokens, with as many alternatives as any row asked for, where a row did; 0 beyond what it asked for itself, and
            where it has no token.
    """

    tokens: I32
    scores: Scores | None = None


class Outcome(enum.IntEnum):
    """What a row gives instead of a token. All are below 0, which no token id is; csrc/sampling/sample.h has the same."""

    NOT_FINITE = -1  # a logit is NaN or +infinity, or all are -infinity
    NOTHING_LEFT = -2  # the sequence's own controls ban every token
    NO_WAY_ON = -3  # its mask does: the guide cannot be followed any further
    NOT_DRAWN = -4  # the sequence did not go on as drafted, so there is none at this place yet


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


class Sampler(Protocol):
    """One sequence's way of choosing tokens: its controls and what it has seen. One that is drawing can do nothing else."""

    @property
    def accepted(self) -> int:
        """Tokens that it has seen after the prompt."""
        ...

    def accept(self, token: int) -> None:
        """The sequence goes on with this token: to be told of each, in order."""
        ...

    def copy(self) -> Sampler:
        """Another one that has seen the same; what it sees from here on is nothing to this one."""
        ...

    def fork(self, seed: int) -> Sampler:
        """What ``make`` gives for the same controls with this seed and the same prompt, for less work.

        Raises:
            ValueError: this one has accepted a token.
        """
        ...


class Samplers(Protocol):
    """Choosing and scoring of one model's tokens. Implemented over the compiled core, and plainly by the tests of the scheduler."""

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> Sampler:
        """A sampler for a sequence that begins with ``prompt``.

        Args:
            sampling: resolved by ``sampling.resolve_sampling``; its ``bad_words`` are not looked at.
            bad_words: the same as token sequences.

        Raises:
            ValueError: a control or an id out of range.
        """
        ...

    def draw(
        self,
        logits: F32,
        samplers: Sequence[Sampler],
        positions: U64,
        masks: U32 | None = None,
        drafts: Drafted | None = None,
        alternatives: I32 | None = None,
    ) -> Drawn:
        """Choose one token per row of float32 [R, V]; the logits are not changed. The order of steps is in docs/sampling.md.

        A row's token depends on its own logits, sampler and position only. With drafts a sequence draws at its rows in turn, as long as
        it draws what was drafted, and its sampler accepts all but the last of what it drew: the same as with one row at a time.

        Args:
            samplers: [S], made by ``make``, no two the same; S = R without drafts.
            positions: [S], of the first token to be drawn in each sequence: the counters of the random numbers.
            masks: [R, ceil(V / 32)], a bit per token, lowest first: 0 bans it. ``None``: bans none.
            alternatives: [R], so many of a row's most likely tokens are to be told with the log-probability of its drawn one; below 0:
                neither. ``None``: of no row. To ask here is cheaper than ``score``, as the row has been looked at.
        """
        ...

    def score(self, logits: F32, targets: I32, k: int) -> Scores:
        """Log-probabilities of ``targets`` int32 [R] and of the ``k`` most likely tokens of each row of float32 [R, V]."""
        ...


@runtime_checkable
class Shortener(Protocol):
    """A runner that computes the logits of its first tokens alone."""

    def first_logits(self, rows: U8, tokens: int) -> F32:
        """``logits(rows)[:, :tokens]``, to the bit, for so much less work; 0 < tokens <= V. Valid until the next call of either."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A runner that scores hidden rows by itself, without the logits of all of them ever being there."""

    def score(self, rows: U8, targets: I32, k: int) -> Scores:
        """What ``Samplers.score`` gives of ``logits(rows)``, to the bit.

        Args:
            rows: uint8 [R, row_bytes].
        """
        ...
