"""A key's limits at the door of completions, told in the headers of whatever is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from quintet.dialects.base import Headers
from quintet.errors import OverLimit
from quintet.keys.limits import Lease, Limiter
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.service.job import Job


class Gate:
    """Lets completions in."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def tell(self, call: Call, over: Callable[[], bool] = lambda: False) -> None:
        """Have the answer to a call say where its caller's limits stand.

        Args:
            over: it is refused for them.
        """

        def headers() -> Headers:
            meters = self._limiter.meters(call.caller.key)
            return call.provider.dialect.limits(meters, over()) if meters else ()

        call.http.limits = headers

    @contextlib.contextmanager
    def admit(self, call: Call) -> Iterator[Admission]:
        """Let a completion in, and in the end give back what it did not use.

        Raises:
            OverLimit, TooManyRequests: see ``Limiter.open``, and what the admission's methods raise inside.
        """
        over = False
        self.tell(call, lambda: over)
        try:
            with self._limiter.open(call.caller.key, place=not call.caller.background) as lease:
                yield Admission(call, lease)
        except OverLimit:
            over = True
            raise


class Admission:
    """A completion that was let in."""

    def __init__(self, call: Call, lease: Lease) -> None:
        self._call, self._lease = call, lease

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

    def settle(self, job: Job) -> None:
        """Count what was computed instead."""
        usage = job.usage
        self._lease.settle(usage.prompt_tokens + usage.completion_tokens)
