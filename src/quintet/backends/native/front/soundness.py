"""Whether what a worker computes is still numbers. Plain code over values.

One request whose values are not finite ends with an error, and that is all: its prompt may be the cause. Where so many different prompts
in a row came to that, and no token was drawn between them, it is the worker: its memory, and the weights in it, can be broken without
anything crashing. A worker that is started again has them anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintet.events import Blame, TokenEvent

UNSOUND_AT = 4
"""So many different prompts in a row whose values were not finite, and no token meanwhile. One client's alone may be so many, where
nobody else asks."""

Prompts = tuple[tuple[int, ...], ...]


class Soundness:
    """What the last requests came to."""

    def __init__(self) -> None:
        self._failed: set[Prompts] = set()  # by this worker, since the last token
        self.renewed = False
        """The worker was started again for it, and has drawn no token yet."""

    @property
    def doubted(self) -> bool:
        """A token would be news."""
        return self.renewed or bool(self._failed)

    @property
    def unsound(self) -> bool:
        """It is the worker."""
        return len(self._failed) >= UNSOUND_AT

    def see(self, prompts: Prompts, batch: Sequence[TokenEvent]) -> None:
        """Events of a request. Need not be called while nothing is ``doubted``, but for those that end with an error."""
        if any(event.token >= 0 and not event.prompt for event in batch):
            self._failed.clear()
            self.renewed = False
        if batch[-1].blame is Blame.NUMBERS and not self.unsound:
            self._failed.add(prompts)

    def restarted(self, *, unsound: bool) -> None:
        """There will be another worker; because of this, or for another reason."""
        self._failed.clear()
        self.renewed |= unsound
