"""Sequences that wait for a slot: first come first served inside a request, requests take turns. Plain code over values."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from quintet.backends.native.sequence import Sequence


class WaitingQueue:
    """After a sequence was taken, its request goes behind the others: a request with many sequences delays nobody for long."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, deque[Sequence]] = OrderedDict()

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for queue in self._turns.values() for seq in queue)

    def push(self, seq: Sequence) -> None:
        """Add behind the sequences of its request."""
        self._turns.setdefault(seq.request_id, deque()).append(seq)

    def push_front(self, seq: Sequence) -> None:
        """Add before everything: it ran already, or continues work that was begun."""
        self._turns.setdefault(seq.request_id, deque()).appendleft(seq)
        self._turns.move_to_end(seq.request_id, last=False)

    def head(self) -> Sequence | None:
        """The sequence whose turn it is."""
        return next(iter(self._turns.values()))[0] if self._turns else None

    def pop(self) -> Sequence:
        """Take the head; its request's next turn comes after those of all others."""
        request_id, queue = next(iter(self._turns.items()))
        seq = queue.popleft()
        if queue:
            self._turns.move_to_end(request_id)
        else:
            del self._turns[request_id]
        return seq

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        queue = self._turns[seq.request_id]
        queue.remove(seq)
        if not queue:
            del self._turns[seq.request_id]
