"""Who asks: requests of every shape, and clients that are patient or not, read slowly, leave, or ask for what kills the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.asked import Asked, asking
from tests.simulation.clock import SimulatedLoop, Violation
from tests.simulation.faults import Chance, Fault
from tests.simulation.invariants import Watch, WatchedEngine
from tests.simulation.model import CONTEXT, CRASHES, LETTERS, NOT_FINITE, RAISES

from quintet.errors import BadRequest, EngineFailed, Overloaded, TooManyRequests
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished
from quintet.request import CompletionRequest, Sampling, StopRules
from quintet.service.job import Job
from quintet.service.service import Service

PATIENCE = (0.2, 1.0, 4.0, 16.0, 64.0)
"""Seconds that a client waits after each refusal, before it gives up."""


class Requests:
    """Makes requests: prompts that begin alike and differ later, short and long, one sample and several, with all that the engine keeps.

    Args:
        tenants: who asks, and their weights.
    """

    def __init__(self, random: Random, tenants: Sequence[tuple[str, int]]) -> None:
        self._random, self._tenants = random, tenants
        self._pool = [self._letters(CONTEXT) for _ in range(random.randint(1, 6))]
        self._poisoned = random.choice([CRASHES, CRASHES, RAISES, NOT_FINITE])
        self._seed = 0
        self._poison = replace(self.make(), prompts=((*self._pool[0][:20], self._poisoned),), echo=False, max_tokens=4, token_ids=False)

    def tenant(self) -> tuple[str, int]:
        """Who asks next: the first as often as all others together."""
        return self._tenants[0] if self._random.random() < 0.5 else self._random.choice(self._tenants)

    def make(self) -> CompletionRequest:
        """The next one."""
        random = self._random
        prompts = tuple(self._prompt() for _ in range(1 if random.random() < 0.95 else 2))
        n = 1 if random.random() < 0.8 else random.randint(2, 4)
        logprobs = random.choice([None, None, None, 0, 3])
        echo = random.random() < 0.08
        max_tokens = 0 if echo and random.random() < 0.5 else random.choice([1, 1, 2, 2, 3, 4, 6, 16])
        stop = (self._letters(2).decode(),) if random.random() < 0.1 else ()
        return self._request(prompts, max_tokens, n, logprobs, echo, stop)

    def poison(self) -> CompletionRequest:
        """Always the same one: it kills the engine, or fails there."""
        return self._poison

    def _request(
        self, prompts: tuple[tuple[int, ...], ...], max_tokens: int, n: int, logprobs: int | None, echo: bool, stop: tuple[str, ...]
    ) -> CompletionRequest:
        self._seed += 16
        sampling = self._sampling() if max_tokens else Sampling(0.0, 1.0, self._seed)
        best_of = n + 1 if n > 1 and not echo and self._random.random() < 0.2 else n
        stream = self._seed % 32 == 0  # every other one, whatever else is drawn
        return CompletionRequest(
            model="m", prompts=prompts, max_tokens=max_tokens, n=n, echo=echo, logprobs=logprobs, sampling=sampling,
            stop=StopRules(stop), stream=stream, include_usage=True, user="", best_of=best_of, token_ids=echo,
            cache_salt=self._random.choice(["", "", "s"]),
        )  # fmt: skip

    def _prompt(self) -> tuple[int, ...]:
        random = self._random
        text = random.choice(self._pool)
        begin = text[: random.choice([0, 3, 16, 20, 32, 40, 90])]
        return (*begin, *self._letters(random.choice([1, 1, 2, 5, 15, 40])))

    def _sampling(self) -> Sampling:
        random = self._random
        if random.random() < 0.4:
            return Sampling(0.0, 1.0, self._seed)
        if random.random() < 0.7:
            return Sampling(0.9, 1.0, self._seed)
        return Sampling(1.0, 0.9, self._seed, top_k=5, repetition_penalty=1.1, frequency_penalty=0.5, ignore_eos=random.random() < 0.5)

    def _letters(self, count: int) -> bytes:
        return bytes(self._random.choices(LETTERS, k=count))


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Those who ask one server or engine.

    Args:
        think_s: seconds between a client's requests, on average.
        left: requests that are still to be asked.
    """

    loop: SimulatedLoop
    chance: Chance
    watch: Watch
    requests: Requests
    random: Random
    think_s: float
    left: int = 0

    async def run(self, count: int, requests: int) -> None:
        """So many at once, who ask so many times together."""
        self.left = requests
        await asyncio.gather(*(self._client() for _ in range(count)))

    async def _client(self) -> None:
        while self.left > 0:
            await asyncio.sleep(self.random.expovariate(1 / self.think_s))
            if self.chance.happens(Fault.POISON):
                await asyncio.gather(*(self._next(self.requests.poison()) for _ in range(self.random.randint(1, 4))))
            elif self.chance.happens(Fault.BURST):
                await asyncio.gather(*(self._next(self.requests.make()) for _ in range(self.random.randint(2, 20))))
            else:
                await self._next(self.requests.make())

    async def _next(self, request: CompletionRequest) -> None:
        if self.left > 0:
            self.left -= 1
            await self.ask(request)

    async def ask(self, request: CompletionRequest) -> None:
        """One request, to its end."""
        raise NotImplementedError


@dataclass(slots=True, kw_only=True)
class Clients(Crowd):
    """Those who ask one engine."""

    engine: WatchedEngine
    service: Service

    async def ask(self, request: CompletionRequest) -> None:
        """See ``Crowd``."""
        tenant, weight = self.requests.tenant()
        for wait in PATIENCE:
            try:
                job = await self.service.prepare(request, tenant, weight)
                break
            except BadRequest as refusal:
                self.watch.ends[type(refusal).__name__] += 1
                return
            except (Overloaded, TooManyRequests, EngineFailed):
                await asyncio.sleep(wait)
        else:
            self.watch.ends["refused"] += 1
            return
        given: list[Asked] = []
        asking.set(given)
        job.start()
        await self._read(job, request, given[0])

    async def _read(self, job: Job, request: CompletionRequest, asked: Asked) -> None:
        patience = self.random.randint(0, 6) if self.chance.happens(Fault.LEAVE) else None
        pause = self.chance.seconds(Fault.READ_SLOWLY, 0.01, 5.0) if self.chance.happens(Fault.READ_SLOWLY) else 0.0
        if self.chance.happens(Fault.CALL_OFF):
            seq, after = self.random.randrange(len(asked.expected)), self.random.random() * 0.2
            self.loop.call_later(after, self.engine.abort, asked.prepared.request_id, seq)
        if patience is not None and patience % 2:  # it stops its request, and listens to what becomes of it
            self.loop.call_later(patience * self.random.random() * 0.1, job.cancel)
        events: list[Event] = []
        async with contextlib.aclosing(job.events()) as batches:
            async for batch in batches:
                events += batch
                if pause:
                    await asyncio.sleep(pause)
                if patience is not None and not patience % 2 and len(events) >= patience:
                    return  # it is gone
        check(request, asked, events)


def check(request: CompletionRequest, asked: Asked, events: Sequence[Event]) -> None:
    """What a client was told is whole, and what the sequences alone make of it.

    Raises:
        Violation: it is not.
    """
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    if len(ends) != 1 or events[-1] is not ends[0]:
        raise Violation(f"client: told of {len(ends)} ends")
    done = {event.index: event for event in events if isinstance(event, ChoiceDone)}
    if isinstance(ends[0], Failed) or request.echo or request.best_of > request.n:
        return
    for choice in range(len(asked.expected)):
        text = "".join(event.text for event in events if isinstance(event, ChoiceDelta) and event.index == choice)
        whole, stop, finish = alone_of(request, asked, choice)
        if done[choice].finish is Finish.ABORT:
            if not whole.startswith(text):
                raise Violation(f"client: choice {choice} begins {text!r}, and alone {whole!r}")
        elif (text, done[choice].finish) != (whole[:stop], finish):
            raise Violation(f"client: choice {choice} is {text!r}, and alone {whole[:stop]!r}")


def alone_of(request: CompletionRequest, asked: Asked, choice: int) -> tuple[str, int | None, Finish | None]:
    """What a choice is alone: all of its text, where its stop string cuts it, and how it ends."""
    whole = b"".join(told[1] for told in asked.expected[choice] if not told[4]).decode()
    stop = min((at for at in (whole.find(one) for one in request.stop.strings) if at >= 0), default=None)
    return whole, stop, asked.expected[choice][-1][5] if stop is None else Finish.STOP
