"""A backend that plays scripts, for the tests of the service, and what those tests share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec import structs
from tests.support.preparing import service

from quintet.backends.base import Health, State, require_open
from quintet.backends.toy import ToyTokenizer
from quintet.errors import QuintetError
from quintet.events import NO_DRAFTS, ChoiceDelta, ChoiceDone, DraftCounts, Event, Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.sampling import Limits
from quintet.inputs.sequence import Prepared, PreparedSequence, SequenceSpec, Urgency
from quintet.inputs.supported import require_supported
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import CompletionRequest, Prompt, Sampling, StopRules
from quintet.service.job import Job

T = TypeVar("T")

EOS = 256
PIECES = [*(bytes([byte]) for byte in range(256)), b""]


@dataclass
class Script:
    """What one sequence generates."""

    text: bytes
    finish: Finish = Finish.EOS
    cached: int = 0
    logprob: float = -0.5
    waited: float = 0.0
    drafts: DraftCounts = NO_DRAFTS


@dataclass
class Running:
    """A submitted sequence inside the fake."""

    seq: int
    events: list[TokenEvent]
    aborted_in: int | None = None  # steps until an abort takes effect


@dataclass
class ScriptedBackend:
    """Plays one script per sequence, with random steps, late aborts, and a death if told so."""

    scripts: Sequence[Script]
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    step_budget: Sequence[int] = (0, 1, 1, 3)  # tokens of a sequence in one step
    state: State = State.READY
    refuse: QuintetError | None = None
    dies_after: int | None = None  # steps; then the iterator just ends, or raises
    raises: bool = False
    abort_lag: int = 1
    specs: list[SequenceSpec] = field(default_factory=list)
    submitted: int = 0
    request_id: int = 0
    urgency: Urgency = Urgency.NOW
    shown: bool = True
    aborts: list[tuple[int, int | None]] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    echo: list[TokenEvent] = field(default_factory=list)
    closed_iterators: int = 0

    @property
    def capabilities(self) -> Capabilities:
        assert self.state in (State.READY, State.STALLED), "capabilities are valid only once loaded"
        return Capabilities(
            model="m", context=4096, vocab=257, pieces=PIECES, max_logprobs=5, max_sequences=8, fingerprint="f", supported=EVERYTHING
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return ToyTokenizer()

    async def tokenize(self, text: str, add_special: bool, quoted: bool = False, tenant: str = "") -> Sequence[int]:
        return encode(text)

    live = 0
    failure = None

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        require_open(self.state)

    def drain(self) -> None:
        """The service never drains a backend."""
        raise AssertionError

    async def run(self, _tenant: str, _size: int, work: Callable[[], T]) -> T:
        return work()

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "", watch: object = None) -> tuple[PreparedSequence, ...]:
        """It is the preparer too."""
        if self.refuse:
            raise self.refuse
        require_supported(specs, self.capabilities)
        self.specs = list(specs)
        return tuple(self._prepare(spec, spec.max_tokens or 99) for spec in specs)

    def _prepare(self, spec: SequenceSpec, most: int) -> PreparedSequence:
        least = Limits(most, asked=2**31).resolve(spec.sampling.min_tokens)
        return PreparedSequence(encode(spec.prompt), most, replace(spec.sampling, min_tokens=least), spec.logprobs, spec.echo)

    async def stop_tokens(self, strings: Sequence[str], tenant: str = "") -> dict[int, str]:
        """No token of its has a text of its own."""
        return {}

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        self.submitted += 1
        self.request_id, self.urgency, self.shown = prepared.request_id, prepared.urgency, prepared.shown
        self.running = {seq: Running(seq, self._plan(seq, item)) for seq, item in enumerate(prepared.sequences)}
        firsts = {item.tokens: seq for seq, item in reversed([*enumerate(prepared.sequences)]) if item.echo}
        self.echo = [event for tokens, seq in firsts.items() for event in self._echo(seq, tokens, prepared.sequences[seq].logprobs)]
        return self._steps()

    def _plan(self, seq: int, item: PreparedSequence) -> list[TokenEvent]:
        script = self.scripts[seq % len(self.scripts)]
        logprob = None if item.logprobs is None else script.logprob
        events = [TokenEvent(seq, byte, bytes([byte]), logprob) for byte in script.text]
        if script.finish is Finish.EOS:
            events.append(TokenEvent(seq, EOS, b"", logprob))
        if not events or script.finish in (Finish.ERROR, Finish.ABORT):
            events.append(TokenEvent(seq, -1))
        error = "The engine failed." if script.finish is Finish.ERROR else ""
        events[-1] = structs.replace(events[-1], finish=script.finish, cached_tokens=script.cached, error=error, drafts=script.drafts)
        return [structs.replace(events[0], waited=0.0 if item.echo else script.waited), *events[1:]]

    def _echo(self, seq: int, tokens: Sequence[int], logprobs: int | None) -> list[TokenEvent]:
        """A prompt's tokens, for all its samples."""
        script = self.scripts[seq % len(self.scripts)]
        logprob = None if logprobs is None else script.logprob
        made = [TokenEvent(seq, token, PIECES[token], logprob if at else None, prompt=True) for at, token in enumerate(tokens)]
        return [structs.replace(made[0], waited=script.waited), *made[1:]]

    async def _steps(self) -> AsyncIterator[Sequence[TokenEvent]]:
        steps = 0
        try:
            while self.running:
                await asyncio.sleep(0)
                if steps == self.dies_after:
                    if self.raises:
                        raise OSError("the pipe broke")
                    return
                steps += 1
                yield self._step()
        finally:
            self.closed_iterators += 1

    def _step(self) -> list[TokenEvent]:
        if self.echo:
            count = self.rng.choice((1, 2, 5))
            batch, self.echo = self.echo[:count], self.echo[count:]
            return batch
        batch = []
        for item in self.rng.sample(list(self.running.values()), len(self.running)):
            if item.aborted_in == 0:
                script = self.scripts[item.seq % len(self.scripts)]
                batch.append(TokenEvent(item.seq, -1, finish=Finish.ABORT, cached_tokens=script.cached, drafts=script.drafts))
                del self.running[item.seq]
                continue
            item.aborted_in = item.aborted_in and item.aborted_in - 1
            for _ in range(self.rng.choice(self.step_budget)):
                if item.seq in self.running:
                    batch.append(item.events.pop(0))
                    if batch[-1].finish:
                        del self.running[item.seq]
        return batch

    def abort(self, request_id: int, seq: int | None = None) -> None:
        self.aborts.append((request_id, seq))
        for item in self.running.values():
            if seq in (None, item.seq) and item.aborted_in is None:
                item.aborted_in = self.abort_lag

    def health(self) -> Health:
        return Health(self.state)

    async def close(self) -> None:
        """The service never closes a backend."""
        raise AssertionError


def encode(prompt: Prompt) -> tuple[int, ...]:
    return tuple(prompt.encode()) if isinstance(prompt, str) else prompt


def request(
    *prompts: Prompt, n: int = 1, logprobs: int | None = None, echo: bool = False, seed: int = 5, stop: tuple[str, ...] = ()
) -> CompletionRequest:
    return CompletionRequest(
        model="m",
        prompts=prompts or ("p",),
        max_tokens=None,
        n=n,
        echo=echo,
        logprobs=logprobs,
        sampling=Sampling(1.0, 1.0, seed),
        stop=StopRules(stop),
        stream=False,
        include_usage=False,
        user="",
    )


async def collect(job: Job) -> list[Event]:
    return [event for batch in [batch async for batch in job.events()] for event in batch]


def serve(backend: ScriptedBackend, asked: CompletionRequest) -> list[Event]:
    async def go() -> list[Event]:
        return await collect(await service(backend).prepare(asked))

    return asyncio.run(go())


def texts(events: Sequence[Event]) -> dict[int, str]:
    """Text per choice."""
    out: dict[int, str] = {}
    for event in events:
        if isinstance(event, ChoiceDelta):
            out[event.index] = out.get(event.index, "") + event.text
    return out


def done(events: Sequence[Event]) -> dict[int, ChoiceDone]:
    return {event.index: event for event in events if isinstance(event, ChoiceDone)}
