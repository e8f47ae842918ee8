"""What is followed of each completion, and the one log line of a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Timing, Usage
from quintet.request import CompletionRequest
from quintet.server.metrics import ModelMetrics

ACCESS = logging.getLogger("quintet.access")
"""One line per request, at INFO. Never a prompt, a text, a key, a path or anything else that a client may write freely."""

# vLLM counts end-of-sequence tokens and stop strings as one.
_REASON = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "abort",
    Finish.ERROR: "error",
    Finish.FILTER: "content_filter",
}


class Observer:
    """Follows one completion.

    Args:
        arrived: seconds, on the metrics' clock.
    """

    def __init__(self, metrics: ModelMetrics, request: CompletionRequest, arrived: float) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self.request = request
        self._last = 0.0  # when text last came; 0 = not yet
        self.first_s: float | None = None
        self.usage = Usage(0, 0)
        self.timing: Timing | None = None
        self.per_token_s: float | None = None
        self.reasons: list[str] = []
        """Why choices ended, in that order."""
        metrics.n.observe(request.n)
        if request.max_tokens is not None:
            metrics.max_tokens.observe(min(request.max_tokens, 2**63))  # it may have thousands of digits, which no float can hold

    def saw(self, batch: Sequence[Event]) -> None:
        """The next events of an engine."""
        first, texts = -1, 0  # the choice that has the first text among them, and how many it has
        for event in batch:
            match event:
                case ChoiceDelta(index=index):
                    if texts == 0:
                        first = index
                    texts += index == first
                case ChoiceDone(finish=finish):
                    self._count_end(_REASON[finish])
                case Finished(timing=timing):
                    self.timing = timing
                    self._metrics.queue.observe(timing.queue)
                    self._metrics.inference.observe(timing.prompt + timing.completion)
                    self._metrics.prefill.observe(timing.prompt)
                    self._metrics.decode.observe(timing.completion)
                case Failed():
                    self._end_others("error")
        if texts:
            self._saw_text(self._metrics.clock(), texts)

    def _saw_text(self, now: float, texts: int) -> None:
        if not self._last:
            self.first_s = now - self._arrived
            self._metrics.first.observe(self.first_s)
        elif self.request.beams is None:  # a search's tokens are there all at once, and only told one after the other
            self._metrics.gap.observe((now - self._last) / texts, texts)  # an engine may tell several tokens together
        self._last = now

    def ended(self, usage: Usage, longest: int) -> None:
        """The answer is over, complete or not.

        Args:
            usage: what was computed.
            longest: tokens of the longest choice.
        """
        metrics = self._metrics
        self.usage = usage
        self._end_others("abort")  # the client left before they were done
        metrics.latency.observe(metrics.clock() - self._arrived)
        metrics.prompted(usage.prompt_tokens, usage.cached_tokens)
        metrics.generation_tokens.inc(usage.completion_tokens)
        metrics.generation.observe(usage.completion_tokens)
        metrics.longest.observe(longest)
        if self.timing is not None and longest > 1:
            self.per_token_s = self.timing.completion / (longest - 1)
            metrics.per_token.observe(self.per_token_s)

    @property
    def reason(self) -> str:
        """Why the choice ended that ended first; empty while none has."""
        return self.reasons[0] if self.reasons else ""

    def facts(self) -> dict[str, str | float | None]:
        """For the access log."""
        first = None if self.first_s is None else round(self.first_s * 1000, 1)
        usage = self.usage
        return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "finish": self.reason, "ttft_ms": first}

    def _end_others(self, reason: str) -> None:
        """All choices end that have not."""
        for _ in range(len(self.request.prompts) * self.request.n - len(self.reasons)):
            self._count_end(reason)

    def _count_end(self, reason: str) -> None:
        self.reasons.append(reason)
        self._metrics.done(reason)


def log_access(**facts: str | float | None) -> None:
    """Write the line of a request."""
    ACCESS.info("", extra={"facts": facts})
