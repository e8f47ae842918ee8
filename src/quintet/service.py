"""One request: prompts x samples out to a backend, their events joined and counted on the way back.

``prepare`` raises everything that can be refused, before the status line is sent. After that a request ends with exactly one
``Finished`` or ``Failed``, and leaving early (closing ``events()``, or ``cancel()``) stops its work in the backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

from quintet.backends.base import Backend
from quintet.errors import BadRequest
from quintet.events import NO_DRAFTS, Blame, Event, Failed, Finish, Finished, Timing, TokenEvent, Usage
from quintet.executor import FairExecutor
from quintet.inputs.answer_size import require_answer_size
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.prepare import INLINE_CHARS, Preparer
from quintet.inputs.sequence import Prepared, PreparedSequence, SequenceSpec
from quintet.request import CompletionRequest, Prompt
from quintet.text.best_of import BestOf
from quintet.text.choice import Choice
from quintet.text.entries import Echo
from quintet.text.lines import LineLimit
from quintet.text.stop import compile_stops

_log = logging.getLogger(__name__)

_SEEDS = 2**64
_ids = itertools.count(1)  # of requests, in whichever engine: a client's own names mean nothing there

SETTLE_S = 1.0
"""Seconds that an engine may take to say what became of work that was called off."""

_BROKEN = "The engine stopped before the request was complete."


class Service:
    """Runs completion requests on one backend.

    Args:
        preparer: for the same backend.
        clock: seconds, monotonic.
        max_logprobs: most of an answer; ``None`` = any number.
        executor: for what takes long; ``None`` = it may be done here and now.
    """

    def __init__(
        self,
        backend: Backend,
        preparer: Preparer,
        clock: Callable[[], float],
        max_logprobs: int | None = None,
        executor: FairExecutor | None = None,
    ) -> None:
        self._backend = backend
        self._preparer = preparer
        self._clock = clock
        self._max_logprobs = max_logprobs
        self._executor = executor

    async def prepare(self, request: CompletionRequest, tenant: str = "", weight: int = 1) -> Job:
        """Check and tokenise; nothing is started, and the job may simply be dropped.

        Args:
            tenant, weight: who asks, and what share is theirs; see ``Prepared``.

        Raises:
            BadRequest: more choices than the engine offers, a larger answer than is allowed, and all that the preparer refuses.
            Loading, Overloaded, EngineFailed, TooManyRequests: the engine takes no work now, or none of this tenant.
        """
        watch = _Watch(self._clock)
        self._backend.require_room(1, tenant)  # where not even one sequence fits, nothing need be tokenised
        _check(request, self._backend.capabilities)
        specs = _specs(request)
        sequences = await self._preparer.prepare(specs, tenant)
        if self._max_logprobs is not None:
            require_answer_size(request, sequences, self._max_logprobs)
        make = partial(Job, self._backend, Prepared(next(_ids), sequences, tenant, weight), request, watch)
        executor = self._executor if sum(map(len, request.prompts)) > INLINE_CHARS else None
        job = make() if executor is None else await executor.run(tenant, make)
        job.require_room()  # others may have come meanwhile; nothing can between this and ``start``
        return job


class Job:
    """A prepared request: iterate over ``events()`` once."""

    def __init__(self, backend: Backend, prepared: Prepared, request: CompletionRequest, watch: _Watch) -> None:
        self._backend = backend
        self._prepared = prepared
        self._watch = watch
        self._candidates = _candidates(request)
        pieces = backend.capabilities.pieces
        texts = [_text(prompt, pieces) if request.echo or _entries(request) else "" for prompt in request.prompts]
        echoes = _echoes(request, prepared, texts, pieces)
        self._echoes = _by_first(echoes, prepared, self._candidates)
        self._choices = _choices(request, prepared, texts, echoes, pieces)
        rules = request.stop
        self._limits = [LineLimit(rules.indent, rules.seconds) for _ in self._choices if rules.indent or rules.seconds]
        self._best_of = BestOf(self._candidates, request.n) if self._candidates > request.n else None
        self._scores = request.logprobs is not None
        self._running = len(self._choices)  # sequences whose terminal event has not come
        self._cached: dict[int, int] = {}
        self._computed: dict[int, int] = {}  # tokens of prompts that gave none
        self._drafts = NO_DRAFTS
        self._stream: AsyncIterator[Sequence[TokenEvent]] | None = None
        self._read = False  # someone iterates over the events
        self._ended = False
        self._cancelled = False

    @property
    def usage(self) -> Usage:
        """Tokens so far, valid at any time; of work that was called off final once it is ``settled``.

        A prompt counts once, as far as it was computed, and as cached only what no sample of it had to compute. Completion tokens go
        up to and include the one that ended the choice, be it the end-of-sequence token or the one that completed a stop string; those
        of ``best_of`` candidates that are not returned count too (OpenAI's page: it "can quickly consume your token quota").
        """
        prompts = sum(map(self._prompt_tokens, range(len(self._choices) // self._candidates)))
        completions = sum(choice.completion_tokens for choice in self._choices)
        reasoning = sum(choice.reasoning_tokens for choice in self._choices)
        # Of a draft with which the text went beyond its stop string the part after it was accepted too, and is not in the completion.
        accepted = min(self._drafts.accepted, completions)
        return Usage(prompts, completions, sum(self._cached.values()), reasoning, accepted, self._drafts.rejected)

    @property
    def most_tokens(self) -> int:
        """What ``usage`` may come to at most: the prompts, and all that each choice may be long."""
        sequences = self._prepared.sequences
        prompts = sum(len(sequence.tokens) for sequence in sequences[:: self._candidates])
        return prompts + sum(sequence.max_tokens for sequence in sequences)

    def _prompt_tokens(self, prompt: int) -> int:
        first = prompt * self._candidates
        if any(choice.completion_tokens for choice in self._choices[first : first + self._candidates]):
            return len(self._prepared.sequences[first].tokens)
        return self._computed.get(prompt, 0)

    def require_room(self) -> None:
        """Nothing if the engine would take all of the job now. That holds until the event loop gets its turn.

        Raises:
            Loading, Overloaded, EngineFailed, TooManyRequests: it would not.
        """
        self._backend.require_room(len(self._choices), self._prepared.tenant)

    def start(self) -> None:
        """Start the work; idempotent. If nothing was awaited since ``require_room`` or ``prepare``, there is still room."""
        if self._stream is None and not self._cancelled:
            self._watch.submit()
            self._stream = self._backend.submit(self._prepared)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Start the work, if it has not begun, and give its events, those of an engine step together; never an empty list."""
        if self._read:
            raise RuntimeError("a job runs once")
        self._read = True
        self.start()
        if self._stream is None:
            yield self._never_ran()
            return
        try:
            async for batch in self._stream:
                self._watch.saw(batch)
                if events := self._step(batch):
                    yield events
                if self._ended:
                    return
            yield self._fail(_BROKEN)
        except Exception:  # a broken backend, or a fault of ours: the client is still owed an end
            _log.exception("request %d broke", self._prepared.request_id)
            yield self._fail(_BROKEN)
        finally:
            self._stop()
            if isinstance(self._stream, AsyncGenerator):
                await self._stream.aclose()

    def cancel(self) -> None:
        """Stop all work; idempotent. Choices that still run end with ``Finish.ABORT``, if anyone still reads ``events()``."""
        self._cancelled = True
        if self._stream is not None:
            self._stop()

    async def settled(self) -> None:
        """Wait until the engine says what became of work that was called off: a step, and no longer than ``SETTLE_S``."""
        if self._stream is None or not self._running:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                async for batch in self._stream:
                    self._step(batch)

    def _step(self, batch: Sequence[TokenEvent]) -> list[Event]:
        events: list[Event] = []
        for event in batch:
            if event.prompt:
                self._add_echo(event)
                continue
            self._echoes.pop(event.seq, None)  # it is complete, and its samples have it
            if event.finish is not None:
                self._count_end(event)
            choice = self._choices[event.seq]
            if choice.done:
                continue  # a stop string ended it; these tokens were on their way
            if event.finish is Finish.ERROR:
                return events + self._fail(event.error or _BROKEN, event.blame)
            new = self._feed(event)
            events += new
            if event.finish is None and self._choices[event.seq].done:
                self._backend.abort(self._prepared.request_id, event.seq)
        if not self._running:
            self._ended = True
            events.append(Finished(self.usage, self._watch.timing()))
        return events

    def _add_echo(self, event: TokenEvent) -> None:
        for echo in self._echoes.get(event.seq, ()):
            echo.add(self._shown(event))

    def _shown(self, event: TokenEvent) -> TokenEvent:
        """The ranking of ``best_of`` needs log-probabilities that the client need not have asked for."""
        return event if self._scores or event.logprob is None else event.without_scores()

    def _feed(self, event: TokenEvent) -> Sequence[Event]:
        choice = self._choices[event.seq]
        if self._limits:
            new, ended = self._limits[event.seq].feed(choice.feed(event), self._watch.generating)
            return [*new, choice.end()] if ended else new
        if self._best_of is None:
            return choice.feed(event)
        return self._best_of.feed(event, choice.feed(self._shown(event)))

    def _count_end(self, event: TokenEvent) -> None:
        self._running -= 1
        prompt = event.seq // self._candidates
        called_off = event.finish in (Finish.ABORT, Finish.ERROR)
        computed = event.computed if called_off else len(self._prepared.sequences[event.seq].tokens)
        self._computed[prompt] = max(computed, self._computed.get(prompt, 0))
        self._drafts = self._drafts.plus(event.drafts)
        self._cached[prompt] = min(event.cached_tokens, self._cached.get(prompt, event.cached_tokens))

    def _fail(self, message: str, blame: Blame = Blame.SERVER) -> list[Event]:
        self._ended = True
        return [Failed(message, blame)]

    def _never_ran(self) -> list[Event]:
        events: list[Event] = []
        for seq in range(len(self._choices)):
            events += self._feed(TokenEvent(seq, -1, finish=Finish.ABORT))
        return [*events, Finished(self.usage, self._watch.timing())]

    def _stop(self) -> None:
        """Abort what runs; a request whose sequences have all ended is left alone."""
        if self._running:
            self._backend.abort(self._prepared.request_id)


class _Watch:
    """Takes a request's times.

    Args:
        clock: seconds, monotonic; the request arrives now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrived = self._submitted = self._last = clock()
        self._queue: float | None = None
        self._first: float | None = None

    def submit(self) -> None:
        """The backend has the request now."""
        self._submitted = self._clock()

    def saw(self, batch: Sequence[TokenEvent]) -> None:
        """The backend's next events."""
        self._last = self._clock()
        if self._queue is None and batch:
            self._queue = batch[0].waited
        if self._first is None and any(event.token >= 0 and not event.prompt for event in batch):
            self._first = self._last

    @property
    def generating(self) -> float:
        """Seconds since the first generated token."""
        return 0.0 if self._first is None else self._last - self._first

    def timing(self) -> Timing:
        """See ``Timing``. Without a generated token the prompt took all the time there was."""
        queue = self._queue or 0.0
        first = self._last if self._first is None else self._first
        return Timing(queue, max(0.0, first - self._submitted - queue), self._last - first, self._last - self._arrived)


def _candidates(request: CompletionRequest) -> int:
    """Sequences per prompt."""
    return max(request.best_of, request.n)


def _check(request: CompletionRequest, capabilities: Capabilities) -> None:
    """What must hold before prompts x samples are spelled out."""
    most, samples = capabilities.max_sequences, _candidates(request)
    name = "best_of" if samples > request.n else "n"
    if len(request.prompts) * samples > most:
        what = f"{len(request.prompts)} prompts with {name} = {samples}"
        raise BadRequest(name if samples > most else "prompt", f"must give at most {most} choices (prompts times {name})", what)


def _specs(request: CompletionRequest) -> list[SequenceSpec]:
    """One sequence per candidate, each with its own seed."""
    seed, samples = request.sampling.seed, _candidates(request)
    ranked = request.logprobs is None and samples > request.n  # by their log-probabilities
    first = SequenceSpec(
        prompt="",
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        logprobs=0 if ranked else request.logprobs,
        echo=request.echo and _entries(request),  # else the echo is the prompt's text, which the engine need not send back
        echo_last=request.echo_last,
        suffix=request.suffix,
        truncate=request.truncate,
        guide=request.guide,
        cache_salt=request.cache_salt,
        reasoning=request.reasoning,
        spelled=(*request.spelled, ("logprobs", "best_of")) if ranked else request.spelled,
    )
    return [
        replace(first, prompt=prompt, sampling=replace(request.sampling, seed=(seed + index) % _SEEDS))
        for index, prompt in enumerate(prompt for prompt in request.prompts for _ in range(samples))
    ]


def _entries(request: CompletionRequest) -> bool:
    """The response needs every token, not only text."""
    return request.logprobs is not None or request.token_ids


def _echoes(request: CompletionRequest, prepared: Prepared, texts: Sequence[str], pieces: Sequence[bytes]) -> list[Echo]:
    """What is shown of each prompt; none if nothing is."""
    if not request.echo or request.echo_last == 0:
        return []
    firsts = prepared.sequences[:: _candidates(request)]
    return [_echo(request, sequence, text, pieces) for sequence, text in zip(firsts, texts, strict=True)]


def _echo(request: CompletionRequest, sequence: PreparedSequence, text: str, pieces: Sequence[bytes]) -> Echo:
    own = sequence.tokens[: sequence.prompt_end]
    if request.echo_last is None:
        return Echo(text, own[sequence.echo_from :] if sequence.echo else (), pieces)
    return Echo(text, own, pieces, skip=len(own) - min(request.echo_last, len(own) - sequence.echo_from))


def _by_first(echoes: Sequence[Echo], prepared: Prepared, candidates: int) -> dict[int, list[Echo]]:
    """By the sequence whose events have their tokens: the first of those with equal ones."""
    firsts: dict[tuple[object, ...], int] = {}
    found: dict[int, list[Echo]] = {}
    for number, echo in enumerate(echoes):
        seq = number * candidates
        sequence = prepared.sequences[seq]
        first = firsts.setdefault((sequence.tokens, sequence.echo_from, sequence.prompt_end), seq)
        found.setdefault(first, []).append(echo)
    return found


def _choices(
    request: CompletionRequest, prepared: Prepared, texts: Sequence[str], echoes: Sequence[Echo], pieces: Sequence[bytes]
) -> list[Choice]:
    patterns, samples, entries = compile_stops(request.stop.strings), _candidates(request), _entries(request)
    return [
        Choice(
            index,
            start=len(texts[index // samples]),
            echo=echoes[index // samples] if echoes else None,
            logprobs=entries,
            patterns=patterns,
            include=request.stop.include,
            min_tokens=sequence.max_tokens if request.sampling.min_tokens < 0 else request.sampling.min_tokens,
            seed=sequence.sampling.seed,
            pieces=pieces,
            thinking=sequence.thinking,
            prompt_ids=sequence.tokens[: sequence.prompt_end] if request.prompt_ids else None,
        )
        for index, sequence in enumerate(prepared.sequences)
    ]


def _text(prompt: Prompt, pieces: Sequence[bytes]) -> str:
    """A prompt as text; the bytes of token ids are decoded as a whole, so that characters may span tokens."""
    if isinstance(prompt, str):
        return prompt
    return b"".join(pieces[token] for token in prompt).decode("utf-8", "replace")
