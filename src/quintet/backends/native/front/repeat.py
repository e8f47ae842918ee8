"""What a request is told once more because its engine died, and what of it is new. Plain code over values.

Equal requests give equal bytes, so a request of which nobody was shown anything can be computed again from its beginning, and whoever
iterates over its events goes on where it was: of each sequence as many tokens are left out as it had. That they are the same is not taken
on trust, as the engine may have died of broken memory, or be another build by now: a hash of them is compared before the first new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintet.events import Finish, TokenEvent


class Told:
    """How many tokens the sequences of one request were told, and a hash of them: those of a prompt and of its output by themselves."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int]] = {}  # tokens and their hash, by sequence; of a prompt under the complement of its number
        self._now: dict[int, tuple[int, int]] = {}  # the same, by the engine that computes it now
        self.ended: set[int] = set()
        """Sequences that need not be computed again."""
        self.differs = False
        """What is told now is not how it began before."""

    def begin_again(self) -> None:
        """From now on everything comes once more."""
        self._now = {}

    def new(self, events: Sequence[TokenEvent]) -> Sequence[TokenEvent]:
        """Those of the next events that were not told before; what they are worth, ``differs`` says."""
        return [event for event in events if self._is_new(event)]

    def _is_new(self, event: TokenEvent) -> bool:
        seq, finish = event.seq, event.finish
        if not event.prompt and seq in self.ended:
            return False
        key = ~seq if event.prompt else seq
        told = self._told.get(key, _NOTHING)
        count, hashed = self._now.get(key, _NOTHING)
        behind = count < told[0]
        if finish is not None:
            self.differs |= behind and finish in (Finish.EOS, Finish.LENGTH)  # to any other end it may come earlier than before
            self.ended.add(seq)
            return True
        self._now[key] = now = count + 1, hash((hashed, event.token, event.logprob))
        if behind:
            if count + 1 == told[0]:  # as many as before: only then the hashes are of the same tokens
                self.differs |= now != told
            return False
        self._told[key] = now
        return True


_NOTHING = 0, 0
