"""Which replica a request goes to: the one that holds its prompt's pages, unless that has too much to do. Plain code over values.

The front has sent every replica all that it holds, so it knows what that is, as far as a replica forgets in the same order: the least
recently used first. A prompt that nobody holds goes to the less loaded of two replicas that the digest of its first page chooses
(rendezvous hashing): so prompts with the same beginning meet in the same two places, whoever is added or leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.schedule.pages import chain
from quintet.inputs.sequence import PreparedSequence

MOST_KNOWN = 1 << 17
"""Digests that are remembered of a replica whose number of pages is not known."""

MOST_PAGES = 1024
"""Pages of a prompt that are looked at, so that a long one does not hold the event loop up: prompts that share so many share enough."""

OVER = 1.25
"""A replica takes more for its pages' sake as long as its load is at most so many times the mean, and ``SLACK`` sequences."""

SLACK = 8


def page_digests(sequence: PreparedSequence, adapter: int = 0) -> list[bytes]:
    """Of a prompt's full pages, each of all tokens up to its end, with the salt and the images: equal ones can be shared.

    Args:
        adapter: id of the LoRA adapter that it is computed with; 0 = none.
    """
    digests: list[bytes] = []
    first = adapter.to_bytes(8, "little") if adapter else b""
    for start in range(0, min(len(sequence.tokens) // PAGE, MOST_PAGES) * PAGE, PAGE):
        end = start + PAGE
        images = b""
        for image in sequence.images:
            image_start, count = image.span
            if image_start < end and start < image_start + count:
                images += image.digest
        digests.append(chain(digests[-1] if digests else first, sequence.tokens[start:end], sequence.salt, images))
    return digests


class Router:
    """What each replica holds, as far as is known here."""

    def __init__(self) -> None:
        self._held: dict[int, OrderedDict[bytes, None]] = {}

    def route(self, digests: Sequence[bytes], loads: Mapping[int, int], count: int, pages: int = 0) -> int:
        """The replica for a request, which holds its pages from now on.

        Args:
            digests: of its prompt's pages.
            loads: sequences of each replica that may be chosen, at least one.
            count: sequences of the request.
            pages: that a replica has; 0 = not known.
        """
        chosen = self._choose(digests, loads, count)
        held = self._held.setdefault(chosen, OrderedDict())
        for digest in reversed(digests):  # the first is used by most, and goes last
            held[digest] = None
            held.move_to_end(digest)
        while len(held) > (pages or MOST_KNOWN):
            held.popitem(last=False)
        return chosen

    def forget(self, replica: int) -> None:
        """It has lost its memory, or is gone."""
        self._held.pop(replica, None)

    def _choose(self, digests: Sequence[bytes], loads: Mapping[int, int], count: int) -> int:
        bound = OVER * (sum(loads.values()) + count) / len(loads) + SLACK
        light = [replica for replica, load in loads.items() if load + count <= bound]
        matched = {replica: self._match(replica, digests) for replica in light}
        if any(matched.values()):
            return min(light, key=lambda replica: (-matched[replica], loads[replica], replica))
        if not digests or not light:
            return min(loads, key=lambda replica: (loads[replica], replica))
        return min(_two(digests[0], light), key=lambda replica: loads[replica])

    def _match(self, replica: int, digests: Sequence[bytes]) -> int:
        """Pages from the first on that it holds."""
        held: Mapping[bytes, None] = self._held.get(replica, {})
        return next((index for index, digest in enumerate(digests) if digest not in held), len(digests))


def _two(digest: bytes, replicas: Sequence[int]) -> list[int]:
    """The first two of the replicas in an order that the digest decides, and that another replica does not change; or the only one."""
    return sorted(replicas, key=lambda replica: blake2b(replica.to_bytes(8, "little"), digest_size=8, key=digest).digest())[:2]
