"""Images in prompts: which rows of embeddings stand where, which of them are there, which image is encoded next. Plain code over values.

A prompt's tokens hold the model's image token where an image's rows go. Its rows are made by the encoder, an image at a time, a piece in
each step, while others decode; until they are there the prompt is computed up to the image, and no further::

    tokens     [text][image image image image][text]        rows of the image: 0 1 2 3
    computed    ^^^^^ before its rows are there

They are kept by the image's digest, as long as somebody is going to need them, and then as long as there is room. Keys and values of
what was computed of them lie in pages like those of any token; the digest of a page that holds some has the image's digest in it, and
which of its rows they are, so that pages of other images with the same tokens are others.

Where the tokens of an image see each other both ways (Gemma 3) they are computed in one step, however long that takes: a
chunk that would end among them ends with the last. A prompt of which a prefix is cached may begin among them: the pages of the first ones
were made by a step that had them all.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quintet.backends.native.core.types import F32
from quintet.inputs.images.value import PreparedImage

KEPT_BYTES = 64 << 20
"""Of rows that nobody is going to need for now: some thirty images of a large model."""

Key = tuple[bytes, bytes]
"""Salt and digest: whether an image was there before must not be told across salts, by time either."""

_PLACE = struct.Struct("<iii")


@dataclass(frozen=True, slots=True)
class PendingImage:
    """An image that is to be encoded.

    Args:
        request_id: of a request that has it.
    """

    key: Key
    request_id: int
    image: PreparedImage


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Tokens one after the other that are rows of an image.

    Args:
        start, count: among the prompt's tokens.
        row: the first of them.
        key: of the image.
    """

    start: int
    count: int
    row: int
    key: Key

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class Given:
    """What a segment is given beside its tokens.

    Args:
        rows: the first token, counted from the segment's, and the rows from there on, float32 [·, width of the embedding].
        spans: the first token and how many: they see each other both ways.
    """

    rows: list[tuple[int, F32]]
    spans: list[tuple[int, int]]


class ShownPrompt(NamedTuple):
    """A prompt with images that is being computed.

    Args:
        computed: positions from 0 on.
    """

    tenant: str
    request_id: int
    images: PromptImages
    computed: int


class Encodings:
    """The rows of images that are there, and whose turn it is to be encoded.

    Args:
        both_ways: tokens of an image see each other.
        most: bytes that are kept beyond what is needed.
    """

    def __init__(self, *, both_ways: bool = False, most: int = KEPT_BYTES) -> None:
        self.both_ways = both_ways
        self._most = most
        self._rows: OrderedDict[Key, F32] = OrderedDict()  # those used last at the end
        self._needed: set[Key] = set()
        self._current: Key | None = None
        self._served: dict[str, int] = {}  # tenants that wait: when each had its last turn
        self._turns = 0

    def rows(self, key: Key) -> F32 | None:
        """An image's, float32 [rows, width of the embedding], if they are there."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def keep(self, key: Key, rows: F32) -> None:
        """An image is encoded."""
        self._rows[key] = rows
        self._shrink(self._most)

    def shed(self) -> None:
        """Drop what nobody is going to need for now."""
        self._shrink(0)

    def next(self, prompts: Iterable[ShownPrompt]) -> PendingImage | None:
        """Which image is encoded in this step: one that was begun, as long as it is wanted; else of the tenant that has waited longest.

        Args:
            prompts: in the order in which they came.
        """
        pending: list[tuple[str, PendingImage]] = []  # of each prompt the next that it lacks, with its tenant
        self._needed = set()
        for tenant, request_id, images, computed in prompts:
            ahead = images.after(computed)
            self._needed |= ahead.keys()
            missing = next((key for key in ahead if key not in self._rows), None)
            if missing is not None:
                pending.append((tenant, PendingImage(missing, request_id, ahead[missing])))
        self._served = {tenant: self._served.get(tenant, 0) for tenant, _ in pending}
        for _, image in pending:
            if image.key == self._current:
                return image
        if not pending:
            self._current = None
            return None
        tenant, image = min(pending, key=lambda tenant_and_image: self._served[tenant_and_image[0]])
        self._turns += 1
        self._served[tenant], self._current = self._turns, image.key
        return image

    def _shrink(self, most: int) -> None:
        spare = [key for key in self._rows if key not in self._needed and key != self._current]
        size = sum(self._rows[key].nbytes for key in spare)
        for key in spare:
            if size <= most:
                return
            size -= self._rows.pop(key).nbytes


class PromptImages:
    """The images of one prompt.

    Args:
        images: at least one.
        salt: of the cached prefixes that the prompt may use.
    """

    def __init__(self, images: tuple[PreparedImage, ...], salt: bytes, encodings: Encodings) -> None:
        self._images = {(salt, image.digest): image for image in images}
        self._encodings = encodings
        runs = []
        for image in images:
            row = 0
            for start, count in image.places:
                runs.append(Run(start, count, row, (salt, image.digest)))
                row += count
        self._runs = sorted(runs)

    def after(self, computed: int) -> dict[Key, PreparedImage]:
        """Images whose rows are still needed once so many positions are computed, in order."""
        return {run.key: self._images[run.key] for run in self._runs if run.end > computed}

    def without(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt's text."""
        text, start = list[int](), 0
        for run in self._runs:
            text += prompt[start : run.start]
            start = run.end
        return (*text, *prompt[start:])

    def at(self, position: int) -> bool:
        """Whether a position is an image's."""
        return next(self._within(position, position + 1), None) is not None

    def identity(self, start: int, stop: int) -> bytes:
        """Of the positions from ``start`` to ``stop - 1``: which rows of which images are where; empty if none are."""
        parts = []
        for run in self._within(start, stop):
            first, last = max(run.start, start), min(run.end, stop)
            _, digest = run.key
            parts.append(_PLACE.pack(first - start, run.row + first - run.start, last - first) + digest)
        return b"".join(parts)

    def reach(self, start: int, stop: int) -> int:
        """Where a chunk of the positions from ``start`` on ends that was to end before ``stop``, as far as images allow it.

        Not at or after an image whose rows are not there; and not among tokens that see each other both ways, but after the last.
        """
        for run in self._within(start, stop):
            if self._encodings.rows(run.key) is None:
                return max(run.start, start)
            if self._encodings.both_ways:
                stop = max(stop, run.end)
        return stop

    def cut(self, start: int, stop: int) -> int:
        """The same where no more than up to ``stop`` can be computed: before tokens that see each other."""
        for run in self._within(start, stop):
            if self._encodings.both_ways and run.end > stop:
                return max(run.start, start)
        return stop

    def given(self, start: int, stop: int) -> Given:
        """What stands at the positions from ``start`` to ``stop - 1``, as far as ``reach`` said."""
        given = Given([], [])
        for run in self._within(start, stop):
            rows, first, last = self._encodings.rows(run.key), max(run.start, start), min(run.end, stop)
            if rows is None or len(rows) < run.row + run.count:
                raise ValueError("an image has more places than rows")
            given.rows.append((first - start, rows[run.row + first - run.start : run.row + last - run.start]))
            if self._encodings.both_ways:
                given.spans.append((first - start, last - first))
        return given

    def _within(self, start: int, stop: int) -> Iterator[Run]:
        runs = self._runs if start < stop else []  # a prefix may end among an image's tokens: what comes of no position needs no row
        return (run for run in runs if run.start < stop and run.end > start)
