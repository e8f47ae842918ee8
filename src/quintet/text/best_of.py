"""``best_of``: of several candidates for a prompt, return the best.

A candidate's rank is the mean log-probability of its generated tokens, the model's own (before bias, penalties and temperature), over the
tokens that usage counts: up to and including the end-of-sequence token or the one that completed a stop string. Equal means rank by
candidate number. OpenAI's page says only "the one with the highest log probability per token".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenEvent


class BestOf:
    """Holds the candidates' events back until all of a prompt's are done, then gives those of the best, renumbered by rank.

    A candidate that was called off ranks before all: nobody is answered with the best of those that were not.

    Args:
        candidates: per prompt; candidate *j* of prompt *p* is sequence ``p * candidates + j``.
        n: of them are returned, as choices ``p * n`` and on.
    """

    def __init__(self, candidates: int, n: int) -> None:
        self._candidates = candidates
        self._n = n
        self._held: dict[int, list[ChoiceDelta | ChoiceDone]] = {}
        self._sums: dict[int, tuple[float, int]] = {}  # sequence -> of its tokens' log-probabilities, and how many tokens
        self._open: dict[int, int] = {}  # prompt -> candidates that are not done

    def feed(self, event: TokenEvent, events: Sequence[ChoiceDelta | ChoiceDone]) -> list[ChoiceDelta | ChoiceDone]:
        """Take an event and what the candidate's ``Choice`` events of it; gives events when a prompt's last candidate is done."""
        seq = event.seq
        if event.logprob is not None:  # it is a token: the prompt's are no candidate's
            total, count = self._sums.get(seq, (0.0, 0))
            self._sums[seq] = total + event.logprob, count + 1
        self._held.setdefault(seq, []).extend(events)
        if not (events and isinstance(events[-1], ChoiceDone)):
            return []
        prompt = seq // self._candidates
        self._open[prompt] = self._open.get(prompt, self._candidates) - 1
        return [] if self._open[prompt] else self._best(prompt)

    def _best(self, prompt: int) -> list[ChoiceDelta | ChoiceDone]:
        mine = range(prompt * self._candidates, (prompt + 1) * self._candidates)
        ranked = sorted(mine, key=lambda seq: (not self._called_off(seq), -self._mean(seq)))  # stable: the lower number first among equals
        best: list[ChoiceDelta | ChoiceDone] = []
        for rank, seq in enumerate(ranked):
            held = self._held.pop(seq)
            if rank < self._n:
                best += [event.numbered(prompt * self._n + rank) for event in _joined(held)]
        return best

    def _called_off(self, seq: int) -> bool:
        last = self._held[seq][-1]
        return isinstance(last, ChoiceDone) and last.finish is Finish.ABORT

    def _mean(self, seq: int) -> float:
        total, count = self._sums.get(seq, (0.0, 1))
        return total / count


def _joined(held: Sequence[ChoiceDelta | ChoiceDone]) -> Sequence[ChoiceDelta | ChoiceDone]:
    """A candidate's events with all its deltas in one but the first, which may be the prompt; nobody has waited for any of them."""
    first, *rest = held
    deltas = [event for event in rest if isinstance(event, ChoiceDelta)]
    if len(deltas) < 2:
        return held
    text, tokens = "".join([delta.text for delta in deltas]), tuple(chain.from_iterable([delta.tokens for delta in deltas]))
    return [first, ChoiceDelta(deltas[0].index, text, tokens), rest[-1]]
