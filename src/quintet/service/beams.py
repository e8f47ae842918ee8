"""Beam search, above every engine: each step asks for one token after each beam, with the likeliest beside it, and takes what it needs.

vLLM's, to the letter (0.33, entrypoints/generate/beam_search/online.py): of each of ``n`` beams the ``2 n`` likeliest next tokens are
candidates; one that ends the text completes its beam; of the others those ``n`` go on whose sums of log-probabilities are highest; after
``max_tokens`` those that go on count as complete too, and the best ``n`` are the answer, by their sum over their length to the power of
``length_penalty``: of the prompt and the beam, without a token that ended the text (vllm/beam_search.py: "The tokens include the prompt."
"if tokens[-1] == eos_token_id: seq_len -= 1"). The prefix cache makes a step cheap: all but a page of a beam is there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Container, Iterator, Sequence
from dataclasses import dataclass, replace

from quintet.backends.base import Backend
from quintet.backends.retry import until_room
from quintet.errors import BadRequest, QuintetError
from quintet.events import Event, Failed, Finish, Finished, TokenEvent, Usage
from quintet.inputs.capabilities import Capabilities, Control
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.request import Beams, CompletionRequest, Sampling
from quintet.service.job import BROKEN, Job
from quintet.service.watch import Watch

_log = logging.getLogger(__name__)

HEEDED = {Control.TEMPERATURE, Control.SEED, Control.IGNORE_EOS}
"""Controls that may be sent: log-probabilities are the model's own, so the first two change nothing, as in vLLM."""

PORTION = 256
"""Tokens of choices that are told in one turn of the event loop: all of a search are there at once, and others' streams go on meanwhile."""

Top = tuple[tuple[int, float], ...]
"""The likeliest tokens at a place, each with its log-probability; see ``TokenEvent.top``."""


@dataclass(frozen=True, slots=True)
class Step:
    """A token of a beam.

    Args:
        top: the likeliest at its place.
    """

    token: int
    logprob: float
    top: Top


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """One of the texts that a search holds; beams that begin in common share their beginnings.

    Args:
        before: the beam without its last token; ``None`` = it has no token.
        total: sum of its log-probabilities.
        length: in tokens.
        ended: by a token that ends the text, which is its last.
    """

    before: Beam | None = None
    step: Step | None = None
    total: float = 0.0
    length: int = 0
    ended: bool = False

    @property
    def steps(self) -> list[Step]:
        """From its first token on."""
        from_last: list[Step] = []
        beam: Beam | None = self
        while beam is not None and beam.step is not None:
            from_last.append(beam.step)
            beam = beam.before
        return from_last[::-1]


class Search:
    """The search over one prompt. Plain code over values.

    Args:
        width: ``n``.
        prompt: its tokens.
        max_tokens: of a beam.
        ends: tokens that end the text.
    """

    def __init__(self, width: int, prompt: int, max_tokens: int, ends: Container[int], rules: Beams) -> None:
        self._width, self._prompt, self._max_tokens, self._ends, self._rules = width, prompt, max_tokens, ends, rules
        self._complete: list[Beam] = []
        self._steps = 0
        self.live = [Beam()] if max_tokens else []

    def feed(self, tops: Sequence[Top]) -> None:
        """Take a step with the likeliest next tokens of each live beam, likeliest first."""
        self._steps += 1
        going: list[Beam] = []
        for beam, top in zip(self.live, tops, strict=True):
            for token, logprob in top:
                ended = token in self._ends
                longer = Beam(beam, Step(token, logprob, top), beam.total + logprob, beam.length + 1, ended)
                (self._complete if ended else going).append(longer)
        going.sort(key=lambda beam: -beam.total)  # stable: equal ones in the order of their beams
        self.live = going[: self._width]
        ended_early = self._rules.early and len(self._complete) >= self._width
        at_limit = self._steps == self._max_tokens
        if at_limit and not ended_early:
            self._complete += self.live
        if at_limit or ended_early:
            self.live = []
        self._complete = self.best()  # no other can be among the best any more

    @property
    def reached(self) -> int:
        """Tokens of the beams that go on, or else of those that are complete."""
        return sum(beam.length for beam in (self.live or self._complete)[: self._width])

    def best(self) -> list[Beam]:
        """Of those that are complete, once none is live."""
        return sorted(self._complete, key=self._score, reverse=True)[: self._width]

    def _score(self, beam: Beam) -> float:
        length = self._prompt + beam.length - beam.ended
        return float(beam.total / max(length, 1) ** self._rules.length_penalty)


def require_beams(request: CompletionRequest, capabilities: Capabilities, *, moderated: bool) -> None:
    """What does not go with beam search is refused by its name, and not left out.

    Raises:
        BadRequest: there is such a field, or ``n`` is too large for the engine's log-probabilities.
    """
    shown = request.shown
    excluded = {
        "stream": request.stream,  # vLLM: "Streaming is not supported with beam search"
        "best_of": request.best_of > request.n,
        "echo": request.echo,
        "stop": bool(request.stop.strings),
        "response_format" if request.guide is None else request.guide.param: request.guide is not None,
        "reasoning_effort" if request.reasoning is None else request.reasoning.param: request.reasoning is not None,
        "prompt_logprobs": shown is not None and shown.prompt_logprobs is not None,
        "logprob_token_ids": bool(request.logprob_ids),
        "safety_model": moderated,
        "images": any(request.images),
        "logprobs": (request.logprobs or 0) > 2 * request.n,
    }
    spelled = dict(request.spelled)
    controls = [control.param for control in Control if control not in HEEDED and control.turned_on(request.sampling)]
    for name in (*(name for name, asked in excluded.items() if asked), *controls):
        raise BadRequest(spelled.get(name, name), "cannot be combined with use_beam_search")
    if 2 * request.n > capabilities.max_logprobs:
        raise BadRequest("n", f"must be at most {capabilities.max_logprobs // 2} with use_beam_search", str(request.n))


def beam_request(request: CompletionRequest) -> CompletionRequest:
    """What is prepared: one sequence per prompt, with as many log-probabilities as a step needs."""
    sampling = Sampling(0.0, 1.0, request.sampling.seed)  # which changes nothing, and is told with each choice
    spelled = (*request.spelled, ("logprobs", "use_beam_search"))
    return replace(request, n=1, best_of=1, logprobs=2 * request.n, sampling=sampling, beams=None, spelled=spelled)


class BeamJob(Job):
    """See ``Job``. All choices come at the end.

    Args:
        prepared: one sequence per prompt, of ``beam_request``.
        ids: of requests.
    """

    def __init__(self, backend: Backend, prepared: Prepared, request: CompletionRequest, watch: Watch, ids: itertools.count[int]) -> None:
        sequences = tuple(sequence for sequence in prepared.sequences for _ in range(request.n))
        super().__init__(backend, replace(prepared, sequences=sequences), request, watch)
        assert request.beams is not None
        ends = frozenset[int]() if request.sampling.ignore_eos else backend.tokenizer.eos_ids
        self._prompts = prepared.sequences
        self._searches = [  # a middle that is filled in has ends of its own
            Search(request.n, len(prompt.tokens), prompt.max_tokens, ends | frozenset(prompt.sampling.stop_token_ids), request.beams)
            for prompt in self._prompts
        ]
        self._ids = ids
        self._under_way = 0  # the step's request; 0 = none
        self._answered = False  # the choices have their tokens

    @property
    def usage(self) -> Usage:
        """See ``Job``. Of a search that was called off, the tokens of its beams."""
        usage = super().usage
        return usage if self._answered else replace(usage, completion_tokens=sum(search.reached for search in self._searches))

    def start(self) -> None:
        """Nothing: a step begins when it is awaited."""

    def cancel(self) -> None:
        """Stop all work; idempotent. Choices end with ``Finish.ABORT``."""
        self._cancelled = True
        if self._under_way:
            self._backend.abort(self._under_way)

    async def settled(self) -> None:
        """No step is under way once nobody reads the events."""

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """All events once the search is over, some of them at a time; never an empty list."""
        if self._read:
            raise RuntimeError("a job runs once")
        self._read = True
        self._watch.submit(1, 1)
        try:
            while not self._cancelled and any(search.live for search in self._searches):
                failure = await self._advance()
                if failure is not None:
                    yield [failure]
                    return
        except QuintetError as error:
            yield [Failed.by(error)]
            return
        except Exception:
            _log.exception("request %d broke", self._prepared.request_id)
            yield [Failed(BROKEN)]
            return
        finally:
            if self._under_way:
                self._backend.abort(self._under_way)
        drawn = self._drawn()
        while not self._cancelled and (portion := [*itertools.islice(drawn, PORTION)]):
            if events := [new for event in portion for new in self._feed(event)]:
                yield events
            await asyncio.sleep(0)  # others get their turn
        if self._cancelled:
            yield self._never_ran()
        else:
            self._answered = True
            yield [Finished(self.usage, self._watch.timing())]

    async def _advance(self) -> Failed | None:
        """One token after each live beam of each search."""
        beams = [(number, beam) for number, search in enumerate(self._searches) for beam in search.live]
        sequences: list[PreparedSequence] = []
        for start, search in zip(self._prompts, self._searches, strict=True):
            sequences += [_after(start, beam) for beam in search.live]
            await asyncio.sleep(0)  # others get their turn: a hundred searches may have a thousand beams, each with all its tokens
        request_id = next(self._ids)
        await self._room(len(sequences))
        if self._cancelled:
            return None
        tops: list[Top] = [()] * len(beams)
        stream = self._backend.submit(replace(self._prepared, request_id=request_id, sequences=tuple(sequences)))
        self._under_way = request_id
        async for batch in stream:
            self._watch.saw(batch)
            for event in batch:
                if event.finish is Finish.ERROR:
                    return Failed(event.error or BROKEN, event.blame)
                if event.finish is Finish.ABORT:
                    self._cancelled = True
                if event.token >= 0:
                    tops[event.seq] = event.top
                if event.finish is not None:  # of a prompt's first step, which has it alone
                    prompt = beams[event.seq][0]
                    self._cached.setdefault(prompt, event.cached_tokens)
                    self._computed.setdefault(prompt, len(self._prompts[prompt].tokens) if event.token >= 0 else event.computed)
        self._under_way = 0
        if not self._cancelled:
            await self._feed_searches(tops)
        return None

    async def _feed_searches(self, tops: Sequence[Top]) -> None:
        """Give each search its own live beams' part."""
        start = 0
        for search in self._searches:
            count = len(search.live)
            if count:
                search.feed(tops[start : start + count])
                await asyncio.sleep(0)  # as between what comes before a step
            start += count

    async def _room(self, count: int) -> None:
        """Wait until the engine takes a step's sequences: others may have filled its queue, since those of the step before have ended."""

        async def attempt() -> None:
            if not self._cancelled:
                self._backend.require_room(count, self._prepared.tenant, begun=True)

        await until_room(self._backend, attempt)

    def _drawn(self) -> Iterator[TokenEvent]:
        """The best beams' tokens, as if the choices had drawn them."""
        pieces = self._backend.capabilities.pieces
        for number, search in enumerate(self._searches):
            self._computed[number] = len(self._prompts[number].tokens)
            best = search.best()
            missing = [Beam()] * (self._width - len(best))
            for rank, beam in enumerate([*best, *missing]):
                seq = number * self._width + rank
                for position, step in enumerate(beam.steps, 1):
                    last = Finish.EOS if beam.ended else Finish.LENGTH
                    finish = last if position == beam.length else None
                    piece = b"" if finish is Finish.EOS else pieces[step.token]
                    yield TokenEvent(seq, step.token, piece, step.logprob, step.top, finish=finish)
                if not beam.length:
                    yield TokenEvent(seq, -1, finish=Finish.LENGTH)

    @property
    def _width(self) -> int:
        return self._candidates


def _after(prompt: PreparedSequence, beam: Beam) -> PreparedSequence:
    """What computes the token after a beam."""
    tokens = (*prompt.tokens, *(step.token for step in beam.steps))
    return replace(prompt, tokens=tokens, max_tokens=1, echo=False, prompt_end=None, echo_from=0)
