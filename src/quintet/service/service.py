"""Makes jobs of requests, after everything that can be refused was."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from quintet.backends.base import Backend
from quintet.inputs.answer_size import require_answer_size
from quintet.inputs.prepare import SEQUENCE_CHARS, Preparer
from quintet.inputs.sequence import Adapter, Prepared, Urgency
from quintet.moderation.judge import Judge, Moderator
from quintet.request import CompletionRequest
from quintet.service.beams import BeamJob, beam_request, require_beams
from quintet.service.fan_out import candidates_of, require_choices, specs_of, text_of
from quintet.service.job import Job
from quintet.service.moderated import ModeratedJob, require_safe
from quintet.service.watch import Watch
from quintet.text.labels import Labels

_ids = itertools.count(1)  # of requests, in whichever engine: a client's own names mean nothing there


def spelling_size(request: CompletionRequest) -> int:
    """What spelling out its sequences comes to, in characters that are tokenised."""
    return SEQUENCE_CHARS * len(request.prompts) * candidates_of(request)


class Service:
    """Runs completion requests on one backend.

    Args:
        preparer: for the same backend.
        clock: seconds, monotonic.
        max_logprobs: most of an answer; ``None`` = any number.
        moderator: judges prompts and outputs; ``None`` = nothing is judged.
    """

    def __init__(
        self,
        backend: Backend,
        preparer: Preparer,
        clock: Callable[[], float],
        max_logprobs: int | None = None,
        moderator: Moderator | None = None,
    ) -> None:
        self._backend = backend
        self._preparer = preparer
        self._clock = clock
        self._max_logprobs = max_logprobs
        self._moderator = moderator

    async def prepare(
        self,
        request: CompletionRequest,
        tenant: str = "",
        weight: int = 1,
        adapter: Adapter | None = None,
        arrived: float | None = None,
    ) -> Job:
        """Check and tokenise; nothing is started, and the job may simply be dropped.

        Args:
            tenant, weight, adapter: see ``Prepared``.
            arrived: seconds on the clock, for what the answer tells of its times; ``None`` = now.

        Raises:
            BadRequest: more choices than the engine offers, a larger answer than is allowed, a prompt that was judged unsafe, and all that
                the preparer refuses.
            Loading, Overloaded, EngineFailed, TooManyRequests: the engine takes no work now, or none of this tenant.
        """
        watch = Watch(self._clock, arrived)
        self._backend.require_room(1, tenant)  # where not even one sequence fits, nothing need be tokenised
        require_choices(request, self._backend.capabilities)
        size = spelling_size(request)
        if request.beams is not None:
            require_beams(request, self._backend.capabilities, moderated=self._moderator is not None)
        else:
            self._backend.require_room(len(request.prompts) * candidates_of(request), tenant)  # nor where not all fit
        specs = await self._preparer.run(tenant, size, partial(specs_of, request if request.beams is None else beam_request(request)))
        sequences = await self._preparer.prepare(specs, tenant, watch.tokenizing)
        if self._max_logprobs is not None:
            answered = sequences if request.beams is None else [beam for beam in sequences for _ in range(request.n)]
            require_answer_size(request, answered, self._max_logprobs)
        stops = await self._preparer.stop_tokens(request.stop.strings, tenant) if request.stop.strings else {}
        prepared = Prepared(
            next(_ids),
            sequences,
            tenant=tenant,
            weight=weight,
            stop_tokens=stops,
            adapter=adapter,
            urgency=self._urgency(request),
            shown=request.stream,
        )
        make = await self._maker(request, prepared, watch)
        job = await self._preparer.run(tenant, size + sum(map(len, request.prompts)), make)
        job.require_room()  # others may have come meanwhile; nothing can between this and ``start``
        return job

    async def _maker(self, request: CompletionRequest, prepared: Prepared, watch: Watch) -> Callable[[], Job]:
        """What makes a job of the kind that is asked for. Of one that is moderated, the prompts are judged first."""
        if request.beams is not None:
            return partial(BeamJob, self._backend, prepared, request, watch, _ids)
        if self._moderator is None:
            return partial(Job, self._backend, prepared, request, watch)
        judge = Judge(self._moderator, _ids, self._clock, prepared.tenant, prepared.weight, request.cache_salt)
        labels = Labels(self._backend.capabilities.pieces)
        texts = [text_of(prompt, labels) for prompt in request.prompts]
        await require_safe(judge, texts)
        return partial(ModeratedJob, self._backend, prepared, request, watch, judge, texts)

    def _urgency(self, request: CompletionRequest) -> Urgency:
        """What is decided by the text must not wait: where it ends, how a search goes on, whether it may be shown."""
        rules = request.stop
        if rules.strings or rules.indent or rules.seconds or request.beams is not None or self._moderator is not None:
            return Urgency.NOW
        return Urgency.SOON if request.stream else Urgency.END
