"""When what happened to a request. Plain code over values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quintet.events import Timing, TokenEvent
from quintet.inputs.stopwatch import Stopwatch


class Watch:
    """Takes a request's times.

    Args:
        clock: seconds, monotonic.
        arrived: when the request did; ``None`` = now.
    """

    def __init__(self, clock: Callable[[], float], arrived: float | None = None) -> None:
        self.tokenizing = Stopwatch(clock)
        self._clock = clock
        self._submitted = self._last = clock()
        self._arrived = self._last if arrived is None else arrived
        self._queue: float | None = None
        self._firsts: dict[int, float] = {}  # sequence -> when its first token came
        self._sequences, self._samples = 1, 1

    def submit(self, sequences: int, samples: int) -> None:
        """The backend has the request now: so many sequences, each prompt with so many samples."""
        self._submitted, self._sequences, self._samples = self._clock(), sequences, samples

    def saw(self, batch: Sequence[TokenEvent]) -> None:
        """The backend's next events."""
        self._last = self._clock()
        if self._queue is None and batch:
            self._queue = batch[0].waited
        if len(self._firsts) < self._sequences:
            for event in batch:
                if event.token >= 0 and not event.prompt:
                    self._firsts.setdefault(event.seq, self._last)

    @property
    def generating(self) -> float:
        """Seconds since the first generated token."""
        return self._last - min(self._firsts.values(), default=self._last)

    def timing(self) -> Timing:
        """See ``Timing``. Without a generated token the prompt took all the time there was."""
        queue, took = self._queue or 0.0, self.tokenizing
        first = min(self._firsts.values(), default=self._last)
        prompt = max(0.0, first - self._submitted - queue)
        return Timing(
            queue=queue,
            prompt=prompt,
            completion=self._last - first,
            total=self._last - self._arrived,
            tokenizer_queue=took.waited,
            tokenizer=took.worked,
            place=self._place(),
        )

    def _place(self) -> float:
        """See ``Timing.place``: the sample that computed its prompt has one, and draws with the others that have."""
        prompts: dict[int, list[float]] = {}
        for seq, first in self._firsts.items():
            prompts.setdefault(seq // self._samples, []).append(first)
        return max((max(firsts) - min(firsts) for firsts in prompts.values()), default=0.0)
