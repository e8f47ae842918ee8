"""A key's limits at the door of completions, told in the headers of whatever is answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from quintet.config import ServerConfig
from quintet.dialects.base import Headers
from quintet.errors import OverLimit
from quintet.inputs.room import Room
from quintet.keys.limits import Lease, Limiter
from quintet.request import CompletionRequest
from quintet.server.call import Call
from quintet.service.job import Job

LARGE = 50_000
"""Log-probabilities of an answer that are held until it, or a choice of it, is complete, from which on it takes room; some 2 MB."""

LARGE_AT_ONCE = 5
"""Answers as large as they may be that there is room for at once: some 300 MB."""

LARGE_BYTES = 128 * 1024
"""A request from this size on takes room until it is answered: its texts stay with it, in whatever number requests wait for a model."""

ID_BYTES = 36
"""Memory of a token id of a prompt, beside its digits in the body: an ``int`` of 28 bytes, and 8 in a list. The digits may be four bytes,
so a body's size alone says little of what its ids take."""

MOST_BYTES = 128 * 1024 * 1024
"""Of all large requests; at least two of the largest."""


class Gate:
    """Lets completions in.

    Args:
        config: bounds an answer's log-probabilities, and a body's bytes.
    """

    def __init__(self, limiter: Limiter, config: ServerConfig) -> None:
        self._limiter = limiter
        self._requests = Room(max(MOST_BYTES, 2 * config.max_body_bytes), "large requests")
        self._answers = Room(LARGE_AT_ONCE * config.max_logprobs, "large answers")

    def tell(self, call: Call, over: Callable[[], bool] = lambda: False) -> None:
        """Have the answer to a call say where its caller's limits stand.

        Args:
            over: asked when the answer begins: whether it is refused for them.
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
            with self._limiter.open(call.caller.key, place=not call.caller.background) as lease, contextlib.ExitStack() as held:
                yield Admission(call, lease, self._requests, self._answers, held)
        except OverLimit:
            over = True
            raise


class Admission:
    """A completion that was let in.

    Args:
        held: gives back what it takes of the rooms.
    """

    def __init__(self, call: Call, lease: Lease, requests: Room, answers: Room, held: contextlib.ExitStack) -> None:
        self._call, self._lease, self._requests, self._answers, self._held = call, lease, requests, answers, held
        self._held_by_images = held.enter_context(contextlib.ExitStack())  # until they are read

    def count(self, request: CompletionRequest) -> None:
        """Count its samples, where the provider does.

        Raises:
            OverLimit: more than the key has requests left.
        """
        more = len(request.prompts) * request.n - 1
        if self._call.provider.counts_samples and more:
            self._lease.count(more)

    def hold(self, request: CompletionRequest) -> None:
        """Hold back the memory of a large request. Its body's own is given back by now, and may have been a thousandth of it, compressed.

        Raises:
            TooManyRequests, Overloaded: there is no room for it.
        """
        tenant, ids = self._call.caller.tenant, sum(len(prompt) for prompt in request.prompts if not isinstance(prompt, str))
        size = self._call.http.unpacked + ID_BYTES * ids
        if size > LARGE_BYTES:
            images = sum(len(image.url) for images in request.images for image in images)
            self._requests.take(tenant, size)
            self._held.callback(self._requests.give, tenant, size - images)
            self._held_by_images.callback(self._requests.give, tenant, images)

    def reserve(self, job: Job) -> None:
        """Hold back all the tokens that it may come to, and the memory of a large answer. Its images have been read, and are forgotten.

        Raises:
            OverLimit: more than the key has left.
            TooManyRequests, Overloaded: there is no room for such an answer.
        """
        self._held_by_images.close()
        self._lease.reserve(job.most_tokens)
        if job.held > LARGE:
            self._held.enter_context(self._answers.held(self._call.caller.tenant, job.held))

    def start(self, job: Job) -> None:
        """Start its work. From here on its requests are used, whatever becomes of it."""
        self._lease.begin()
        job.start()

    def leave(self, job: Job) -> None:
        """Give back what it has not used: whoever has read the end of an answer may send the next request before this one is put away."""
        self.settle(job)
        self._lease.leave()

    def settle(self, job: Job) -> None:
        """Count what was computed, so far, for what was held back."""
        usage = job.usage
        self._lease.settle(usage.prompt_tokens + usage.completion_tokens)
