"""The image that is being encoded: its pixels, asked of the front when it is its turn, and where its encoder stands.

Pixels are large, and what the prefix cache holds needs none: so they cross only when they are wanted, one image's at a time::

    front    Submit with digests --->   worker   ... the image's turn
                                 <---            Wanted
             Pixels              --->            a piece in each step, until its rows are there
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quintet.backends.native.core.types import F32, Encoder
from quintet.backends.native.schedule.images import PendingImage
from quintet.backends.native.wire.messages import Pixels, Wanted

PIECE_S = 0.04
"""How long a piece takes beside a step of others, about."""
ALONE_S = 0.1
"""And where nobody else has anything to compute: whoever comes waits so long."""

LEAST_S = 0.001
"""Less is not worth beginning with."""

FIRST = 1 << 28
"""Multiply-adds of the first piece of all, when nothing is known of the machine."""
_RATE = 0.5  # what the last piece counts against all before it


class Encoding:
    """Used in the worker's thread.

    Args:
        clock: seconds, monotonic; what is told of it decides how large pieces are, and changes no number.
        ask: tells the front what is wanted.
    """

    def __init__(self, encoder: Encoder, clock: Callable[[], float], ask: Callable[[Wanted], None]) -> None:
        self._encoder, self._clock, self._ask = encoder, clock, ask
        self._job: PendingImage | None = None
        self._pixels: bytes | None = None
        self._tile = -1  # that is being encoded
        self._done: list[F32] = []  # rows of those before it
        self._rate = 0.0

    def take(self, message: Pixels) -> None:
        """What was asked for has come, or what was asked for before."""
        if self._job is not None and message.digest == self._job.image.digest:
            self._pixels = message.pixels

    @property
    def waits(self) -> bool:
        """There is an image, and its pixels are on their way."""
        return self._job is not None and self._pixels is None

    def step(self, job: PendingImage | None, *, alone: bool) -> F32 | None:
        """Go on with an image for a piece, float32 [rows, width of the embedding] when it is done.

        Args:
            job: whose turn it is; one that was begun and is another is given up.
            alone: nothing else is computed in this step.

        Raises:
            ValueError: pixels of a wrong number. Whatever was raised, the image is given up.
        """
        if not self._goes_on(job):
            self._begin(job)
        if job is None or self._pixels is None:
            return None
        try:
            rows = self._piece(self._pixels, job.image.shape[0], ALONE_S if alone else PIECE_S)
        except Exception:
            self._begin(None)  # else another request with this image would go on with a tile that was not begun
            raise
        if rows is not None:
            self._begin(None)
        return rows

    def _goes_on(self, job: PendingImage | None) -> bool:
        """Whether it is the image that was begun. Pixels that have not come are asked for again if those of another request were."""
        begun = self._job
        if job is None or begun is None or job.key != begun.key:
            return False
        return self._pixels is not None or job.request_id == begun.request_id

    def _begin(self, job: PendingImage | None) -> None:
        self._job, self._pixels, self._tile, self._done = job, None, -1, []
        if job is not None:
            self._ask(Wanted(job.request_id, job.image.digest))

    def _piece(self, pixels: bytes, tiles: int, seconds: float) -> F32 | None:
        end = self._clock() + seconds
        while (left := end - self._clock()) > LEAST_S:
            if self._advance(pixels, tiles, left):
                return np.concatenate(self._done)
        return None

    def _advance(self, pixels: bytes, tiles: int, seconds: float) -> bool:
        """True: all tiles are done."""
        if self._tile < 0:
            self._tile = 0
            self._start(pixels, tiles)
        begin, work = self._clock(), int(self._rate * seconds) if self._rate else FIRST
        done = self._encoder.advance(work)
        took = self._clock() - begin
        if took > 0 and not done:
            rate = work / took
            self._rate += (rate - self._rate) * (_RATE if self._rate else 1.0)
        if not done:
            return False
        self._done.append(self._encoder.rows())
        self._tile += 1
        if self._tile == tiles:
            return True
        self._start(pixels, tiles)
        return False

    def _start(self, pixels: bytes, tiles: int) -> None:
        size = len(pixels) // tiles
        self._encoder.begin(np.frombuffer(pixels, np.uint8, size, self._tile * size))
