"""A key's limits at the door of completions, told in the headers of whatever is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from quintet.errors import OverLimit
from quintet.keys.limits import Lease, Limiter
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.service import Job


class Gate:
    """Lets completions in."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    @contextlib.contextmanager
    def admit(self, call: Call) -> Iterator[Admission]:
        """Let a completion in, and in the end give back what it did not use.

        Raises:
            OverLimit, TooManyRequests: see ``Limiter.open``, and what the admission's methods raise inside.
        """
        over = False
        try:
            with self._limiter.open(call.caller.key) as lease:
                self._tell(call, over)
                yield Admission(call, lease, self)
        except OverLimit:
            over = True
            raise
        finally:
            if not call.http.started:
                self._tell(call, over)

    def tell(self, call: Call) -> None:
        """Have the answer's headers say where the key stands now."""
        self._tell(call, False)

    def _tell(self, call: Call, over: bool) -> None:
        if meters := self._limiter.meters(call.caller.key):
            call.http.limits = call.provider.dialect.limits(meters, over)


class Admission:
    """A completion that was let in."""

    def __init__(self, call: Call, lease: Lease, gate: Gate) -> None:
        self._call, self._lease, self._gate = call, lease, gate

    def count(self, request: CompletionRequest) -> None:
        """Count its samples, where the provider does.

        Raises:
            OverLimit: more than the key has requests left.
        """
        more = len(request.prompts) * request.n - 1
        if self._call.provider.counts_samples and more:
            self._lease.count(more)

    def reserve(self, job: Job) -> None:
        """Hold back all the tokens that it may come to.

        Raises:
            OverLimit: more than the key has left.
        """
        self._lease.reserve(job.most_tokens)
        self._gate.tell(self._call)

    def settle(self, job: Job) -> None:
        """Count what was computed instead."""
        usage = job.usage
        self._lease.settle(usage.prompt_tokens + usage.completion_tokens)
