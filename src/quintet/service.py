"""One request: prompts x samples out to a backend, their events joined and counted on the way back.

``prepare`` raises everything that can be refused, before the status line is sent. After that a request ends with exactly one
``Finished`` or ``Failed``, and leaving early (closing ``events()``, or ``cancel()``) stops its work in the backend.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from quintet.backends.base import Backend, Capabilities, Prepared, SequenceSpec, State
from quintet.errors import BadRequest, EngineFailed, Loading, Overloaded
from quintet.events import ChoiceDone, Event, Failed, Finish, Finished, TokenEvent, Usage
from quintet.request import CompletionRequest, Prompt
from quintet.text.choice import Choice
from quintet.text.stop import compile_stops

_log = logging.getLogger(__name__)

_SEEDS = 2**64

_BROKEN = "The engine stopped before the request was complete."


class Service:
    """Runs completion requests on one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def prepare(self, request: CompletionRequest) -> Job:
        """Check and tokenise; nothing is started, and the job may simply be dropped.

        Raises:
            BadRequest: more choices or more log-probabilities than the engine offers, and all that the backend refuses.
            Loading, Overloaded, EngineFailed: the engine takes no work now.
        """
        _require_open(self._backend.health().state)
        capabilities = self._backend.capabilities
        _check(request, capabilities)
        prepared = await self._backend.prepare(_specs(request))
        return Job(self._backend, prepared, _choices(request, capabilities.pieces), request.n)


class Job:
    """A prepared request: iterate over ``events()`` once."""

    def __init__(self, backend: Backend, prepared: Prepared, choices: Sequence[Choice], n: int) -> None:
        self._backend = backend
        self._prepared = prepared
        self._choices = choices
        self._n = n
        self._running = len(choices)  # sequences whose terminal event has not come
        self._cached: dict[int, int] = {}
        self._started = False
        self._ended = False
        self._cancelled = False

    @property
    def usage(self) -> Usage:
        """Tokens so far, valid at any time.

        A prompt counts once, and as cached only what no sample of it had to compute. Completion tokens go up to and include the
        one that ended the choice, be it the end-of-sequence token or the one that completed a stop string.
        """
        prompts = sum(len(sequence.tokens) for sequence in self._prepared.sequences[:: self._n])
        completions = sum(choice.completion_tokens for choice in self._choices)
        return Usage(prompts, completions, sum(self._cached.values()))

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Start the work and give its events, those of an engine step together; never an empty list."""
        if self._started:
            raise RuntimeError("a job runs once")
        self._started = True
        if self._cancelled:
            yield self._never_ran()
            return
        stream = self._backend.submit(self._prepared)
        try:
            async for batch in stream:
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
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def cancel(self) -> None:
        """Stop all work; idempotent. Choices that still run end with ``Finish.ABORT``, if anyone still reads ``events()``."""
        self._cancelled = True
        if self._started:
            self._stop()

    def _step(self, batch: Sequence[TokenEvent]) -> list[Event]:
        events: list[Event] = []
        for event in batch:
            if event.finish is not None:
                self._count_end(event)
            choice = self._choices[event.seq]
            if choice.done:
                continue  # a stop string ended it; these tokens were on their way
            if event.finish is Finish.ERROR:
                return events + self._fail(event.error or _BROKEN)
            new = choice.feed(event)
            events += new
            if event.finish is None and new and isinstance(new[-1], ChoiceDone):
                self._backend.abort(self._prepared.request_id, event.seq)
        if not self._running:
            self._ended = True
            events.append(Finished(self.usage))
        return events

    def _count_end(self, event: TokenEvent) -> None:
        self._running -= 1
        prompt = event.seq // self._n
        self._cached[prompt] = min(event.cached_tokens, self._cached.get(prompt, event.cached_tokens))

    def _fail(self, message: str) -> list[Event]:
        self._ended = True
        return [Failed(message)]

    def _never_ran(self) -> list[Event]:
        events: list[Event] = []
        for seq, choice in enumerate(self._choices):
            events += choice.feed(TokenEvent(seq, -1, finish=Finish.ABORT))
        return [*events, Finished(self.usage)]

    def _stop(self) -> None:
        """Abort what runs; a request whose sequences have all ended is left alone."""
        if self._running:
            self._backend.abort(self._prepared.request_id)


def _require_open(state: State) -> None:
    if state is State.LOADING:
        raise Loading("The model is still loading.")
    if state is State.DEAD:
        raise EngineFailed("The engine has failed.")
    if state is State.CLOSED:
        raise Overloaded("The server is shutting down.")


def _check(request: CompletionRequest, capabilities: Capabilities) -> None:
    """What must hold before prompts x samples are spelled out."""
    most = capabilities.max_sequences
    if len(request.prompts) * request.n > most:
        what = f"{len(request.prompts)} prompts with n = {request.n}"
        raise BadRequest("n" if request.n > most else "prompt", f"must give at most {most} choices (prompts times n)", what)
    if request.logprobs is not None and request.logprobs > capabilities.max_logprobs:
        raise BadRequest("logprobs", f"must be at most {capabilities.max_logprobs}", str(request.logprobs))


def _specs(request: CompletionRequest) -> list[SequenceSpec]:
    """One sequence per choice, each with its own seed."""
    seed = request.sampling.seed
    # Without log-probabilities the echo is the prompt's text, which we have: the engine need not send it back.
    echo = request.echo and request.logprobs is not None
    return [
        SequenceSpec(prompt, request.max_tokens, replace(request.sampling, seed=(seed + index) % _SEEDS), request.logprobs, echo)
        for index, prompt in enumerate(prompt for prompt in request.prompts for _ in range(request.n))
    ]


def _choices(request: CompletionRequest, pieces: Sequence[bytes]) -> list[Choice]:
    patterns = compile_stops(request.stop.strings)
    needs_text = request.echo or request.logprobs is not None
    texts = [_text(prompt, pieces) if needs_text else "" for prompt in request.prompts]
    return [
        Choice(
            index,
            prompt=texts[index // request.n],
            echo=request.echo,
            logprobs=request.logprobs is not None,
            patterns=patterns,
            include=request.stop.include,
            seed=(request.sampling.seed + index) % _SEEDS,
            pieces=pieces,
        )
        for index in range(len(texts) * request.n)
    ]


def _text(prompt: Prompt, pieces: Sequence[bytes]) -> str:
    """A prompt as text; the bytes of token ids are decoded as a whole, so that characters may span tokens."""
    if isinstance(prompt, str):
        return prompt
    return b"".join(pieces[token] for token in prompt).decode("utf-8", "replace")
