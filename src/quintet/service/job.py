"""A request under way: its work is started, what comes back is joined and counted, and what nobody wants any more is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from quintet.backends.base import Backend
from quintet.events import NO_DRAFTS, Blame, Event, Failed, Finish, Finished, TokenEvent, Usage
from quintet.inputs.answer_size import held_size
from quintet.inputs.sequence import Prepared
from quintet.request import CompletionRequest
from quintet.service.fan_out import by_first, candidates_of, choices_of, echoes_of, text_of, wants_entries, wants_scores
from quintet.service.watch import Watch
from quintet.text.best_of import BestOf
from quintet.text.entries import Scores
from quintet.text.labels import Labels
from quintet.text.lines import LineLimit

_log = logging.getLogger(__name__)

SETTLE_S = 1.0
"""Seconds that an engine may take to say what became of work that was called off."""

MOST_ENTRIES = 4096
"""Log-probabilities of an engine step that are made entries of at once: so many take a few milliseconds, and a step may bring a hundred
thousand."""

BROKEN = "The engine stopped before the request was complete."


class Job:
    """A prepared request: iterate over ``events()`` once."""

    def __init__(self, backend: Backend, prepared: Prepared, request: CompletionRequest, watch: Watch) -> None:
        self._backend = backend
        self._prepared = prepared
        self._watch = watch
        self._candidates = candidates_of(request)
        as_ids = request.shown is not None and request.shown.as_ids
        labels = Labels(backend.capabilities.pieces, backend.tokenizer.spelling, as_ids)
        texts = [text_of(prompt, labels) if request.echo or wants_entries(request) else "" for prompt in request.prompts]
        echoes = echoes_of(request, prepared, texts, labels, backend.capabilities.images)
        scores = [Scores(replace(labels, as_ids=False)) for _ in request.prompts] if wants_scores(request) else []
        self._echoes = by_first(echoes, prepared, self._candidates)
        self._scored = by_first(scores, prepared, self._candidates)
        self._choices = choices_of(request, prepared, texts, echoes, scores, labels)
        rules = request.stop
        self._limits = [LineLimit(rules.indent, rules.seconds) for _ in self._choices if rules.indent or rules.seconds]
        self._best_of = BestOf(self._candidates, request.n) if self._candidates > request.n else None
        # The engine was asked for as many as any of them needs.
        self._top, self._top_echoed = request.alternatives, request.logprobs
        self._top_scored = request.shown.prompt_logprobs if request.shown else None
        self._at_once = max(1, MOST_ENTRIES // (1 + max(self._top or 0, self._top_scored or 0)))  # events of a step
        self.held = held_size(request, prepared.sequences)
        """Log-probabilities that may have to be held until the answer, or a choice of it, is complete."""
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
        predicted = [choice.predicted for choice in self._choices]
        return Usage(
            prompts,
            completions,
            cached_tokens=sum(self._cached.values()),
            reasoning_tokens=reasoning,
            accepted_tokens=sum(accepted for accepted, _ in predicted),
            rejected_tokens=sum(rejected for _, rejected in predicted),
        )

    @property
    def longest(self) -> int:
        """Tokens of the choice that has the most, so far."""
        return max(choice.completion_tokens for choice in self._choices)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a choice: what was asked for, or what fits the context."""
        return max(sequence.max_tokens for sequence in self._prepared.sequences)

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
            self._watch.submit(len(self._choices), self._candidates)
            self._stream = self._backend.submit(self._prepared)

    @property
    def submitted(self) -> bool:
        """The engine has all of the work, and is asked for nothing more, but to stop."""
        return self._stream is not None

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Start the work, if it has not begun, and give its events, those of an engine step together, or as many as others can wait for;
        never an empty list."""
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
                if len(batch) > self._at_once:
                    async for events in self._in_turns(batch):
                        yield events
                elif events := self._step(batch):
                    yield events
                if self._ended:
                    return
            yield self._fail(BROKEN)
        except Exception:  # a broken backend, or a fault of ours: the client is still owed an end
            _log.exception("request %d broke", self._prepared.request_id)
            yield self._fail(BROKEN)
        finally:
            self._stop()
            if isinstance(self._stream, AsyncGenerator):
                await self._stream.aclose()

    async def _in_turns(self, batch: Sequence[TokenEvent]) -> AsyncGenerator[list[Event], None]:
        """The events of a large engine step, between which others get their turn."""
        for first in range(0, len(batch), self._at_once):
            if events := self._step(batch[first : first + self._at_once]):
                yield events
            if self._ended:
                return
            await asyncio.sleep(0)

    def cancel(self) -> None:
        """Stop all work; idempotent. Choices that still run end with ``Finish.ABORT``, if anyone still reads ``events()``."""
        self._cancelled = True
        if self._stream is not None:
            self._stop()

    def _cut(self, index: int, tokens: int) -> None:
        """End a choice that is not wanted any further; so many of its tokens count. Of ``best_of`` candidates all have ended by then."""
        if self._best_of is not None:
            return
        choice = self._choices[index]
        if not choice.done:
            self._backend.abort(self._prepared.request_id, index)
        choice.cut(tokens)

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
            self._echoes.pop(event.seq, None)  # they are complete, and its samples have them
            self._scored.pop(event.seq, None)
            choice, finish = self._choices[event.seq], event.finish
            if finish is not None:
                self._count_end(event)
            if choice.done:
                continue  # a stop string ended it; these tokens were on their way
            if finish is Finish.ERROR:
                return events + self._fail(event.error or BROKEN, event.blame)
            events += self._feed(event)
            if finish is None and self._choices[event.seq].done:
                self._backend.abort(self._prepared.request_id, event.seq)
        if not self._running:
            self._ended = True
            events.append(Finished(self.usage, self._watch.timing(), self._drafts))
        return events

    def _add_echo(self, event: TokenEvent) -> None:
        for echo in self._echoes.get(event.seq, ()):
            echo.add(event.with_top(self._top_echoed))
        for score in self._scored.get(event.seq, ()):
            score.add(event.with_top(self._top_scored))

    def _feed(self, event: TokenEvent) -> Sequence[Event]:
        choice = self._choices[event.seq]
        new = choice.feed(event.with_top(self._top))
        if self._limits:
            limited, ended = self._limits[event.seq].feed(new, self._watch.generating)
            return [*limited, choice.end()] if ended else limited
        return new if self._best_of is None else self._best_of.feed(event, new)

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
        for seq, choice in enumerate(self._choices):
            if not choice.done:
                events += self._feed(TokenEvent(seq, -1, finish=Finish.ABORT))
        return [*events, Finished(self.usage, self._watch.timing())]

    def _stop(self) -> None:
        """Abort what runs; a request whose sequences have all ended is left alone."""
        if self._running:
            self._backend.abort(self._prepared.request_id)
