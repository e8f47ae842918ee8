"""Whatever is sent to ``POST /completions``: an answer as the dialect's document describes it, and the same bytes for everybody else.

``QUINTET_HOSTILE_BODIES`` says how many requests per dialect, ``QUINTET_HOSTILE_SEED`` which ones; ``make test-fuzz`` sends 100,000 others
each time, in as many processes as there are CPUs. A failure names its request: the same number of the same seed is always the same request
(``tests/tools/hostile.py``).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.documents import completions
from tests.server.goldens import chunks
from tests.server.one import create_app
from tests.server.toy import MODEL
from tests.tools.hostile import Bodies, Hostile, described

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.events import TokenEvent
from quintet.inputs.sequence import Prepared
from quintet.server.asgi import ASGIApp, Receive, Scope, Send

COUNT = int(os.environ.get("QUINTET_HOSTILE_BODIES", "1000"))
SEED = int(os.environ.get("QUINTET_HOSTILE_SEED", "1"))
AT_ONCE = 200
SHARE = 50_000
"""Requests that one server gets, at most."""
CPU_S = 0.1 if COUNT >= 100_000 else 1.0
"""Most processor time until a refusal. A test of every day only notices what grows out of all proportion: its machine may be slow."""

ONLY_BY_RUNNING = b"ban every token that could come next"
"""Of the one refusal that nobody can know before the engine has begun: where a guide and a request's own bans leave nothing."""

NEIGHBOUR = {"model": MODEL, "prompt": "The sky is", "max_tokens": 24, "n": 2, "seed": 3, "logprobs": 2, "stream": True}


@dataclass
class Seen:
    """What became of one request.

    Args:
        cost: seconds on the event loop's thread, where everything that a request may cost is done here; by the clock that was given.
        started: submissions to the engine.
    """

    answer: Answer = field(default_factory=Answer)
    cost: float = 0.0
    started: int = 0
    error: BaseException | None = None


CURRENT: contextvars.ContextVar[Seen] = contextvars.ContextVar("CURRENT")


class Watched(Engine):
    """Counts the submissions of each request."""

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        CURRENT.get().started += 1
        return super().submit(prepared)


class OnTheSpot(ThreadPoolExecutor):
    """Runs what is meant for a thread at once, so that its processor time counts for the request that it belongs to."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Timed:
    """An awaitable that adds up the seconds of its steps."""

    def __init__(self, work: Awaitable[Any], seen: Seen, clock: Callable[[], float]) -> None:
        self._work, self._seen, self._clock = work, seen, clock

    def __await__(self) -> Generator[Any, Any, Any]:
        clock, seen = self._clock, self._seen
        steps = self._work.__await__()
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            began = clock()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                seen.cost += clock() - began
            try:
                yield waits_for
                step = lambda: next(steps)  # noqa: E731
            except BaseException as error:  # cancelled
                step = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731


async def asked(app: ASGIApp, request: Hostile, gone: asyncio.Event, clock: Callable[[], float] = time.perf_counter) -> Seen:
    """One hostile request and what became of it. Its client leaves when ``gone`` is set: some would run to the end of the context."""
    seen = Seen()
    CURRENT.set(seen)

    async def timed(scope: Scope, receive: Receive, send: Send) -> None:
        await Timed(app(scope, receive, send), seen, clock)

    try:
        await acall(timed, request.body, headers=request.headers, gone=gone, into=seen.answer)
    except Exception as error:
        seen.error = error
    return seen


APART = ("obfuscation", "usage", "time_info")
"""What a chunk has by its place in the stream: padding, and what some dialects put to the end of the choice that ends last."""


async def neighbour(app: ASGIApp, others: Sequence[asyncio.Event] = ()) -> list[object]:
    """A request that has nothing to do with the others, who leave when it is answered: its usage and chunks, choice by choice.

    How its choices take turns may differ: one of them starts a step later where the batch is full.
    """
    CURRENT.set(Seen())
    answer = await acall(app, NEIGHBOUR)
    for gone in others:
        gone.set()
    told = chunks(answer.body)
    told.sort(key=lambda chunk: [choice["index"] for choice in chunk.get("choices", ())])
    usage = [chunk["usage"] for chunk in told if chunk.get("usage")]
    return [answer.complete, usage, *({name: each for name, each in chunk.items() if name not in APART} for chunk in told)]


def faults(seen: Seen) -> list[str]:
    """What is wrong with an answer."""
    answer, found = seen.answer, []
    if seen.error is not None:
        return [f"raised {seen.error!r}"]
    if not answer.status:  # left before there was one
        return [] if not answer.parts else ["a body without a head"]
    if answer.status == 200:
        return good_faults(answer)
    expected = completions(str(answer.header("x-completions-dialect"))).errors  # a header may have chosen another
    if answer.status >= 500 or answer.status not in expected:
        found.append(f"status {answer.status}")
    elif not expected[answer.status].is_valid(answer.json()):
        found.append("not the dialect's error")
    if answer.header("content-type") != "application/json" or answer.header("content-length") != str(len(answer.body)):
        found.append("headers of the error")
    if not answer.complete or not answer.body.isascii() or len(answer.body) > 2000:
        found.append("body of the error")
    if seen.started and ONLY_BY_RUNNING not in answer.body:
        found.append("refused, yet started")
    return found


def good_faults(answer: Answer) -> list[str]:
    document = completions(str(answer.header("x-completions-dialect")))
    if answer.header("content-type") == "application/json":
        return [] if not answer.complete or document.answer.is_valid(answer.json()) else ["not the dialect's answer"]
    if answer.complete and not answer.body.endswith(b"\n\ndata: [DONE]\n\n"):
        return ["a stream without an end"]
    return [] if all(map(document.chunk.is_valid, chunks(answer.body))) else ["a frame that is not the dialect's chunk"]


@dataclass
class Campaign:
    """The hostile requests of one dialect and what came of them."""

    dialect: str
    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, other: Campaign) -> None:
        """More of them."""
        self.sent += other.sent
        self.statuses += other.statuses
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)

    async def run(self, numbers: range) -> None:
        """Send those of these numbers to a server of their own."""
        bodies = Bodies(PROVIDERS[self.dialect], MODEL, SEED)
        config = EngineConfig(kv_bytes=16 << 20, max_waiting=100_000, speculation=False)  # see toy_app
        async with ready(Watched(toy_loader(), config, clock=lambda: 0.0)) as engine:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("quintet.executor.ThreadPoolExecutor", OnTheSpot)
                app = create_app(engine, ServerConfig(dialect=self.dialect), (MODEL,), source=SOURCE, keep_alive=600)
            expected = await neighbour(app)
            for first in range(numbers.start, numbers.stop, AT_ONCE):
                some = range(first, min(first + AT_ONCE, numbers.stop))
                requests, gone = [bodies.number(number) for number in some], [asyncio.Event() for _ in some]
                seeing = asyncio.gather(*map(asked, repeat(app), requests, gone))
                beside, all_seen = await asyncio.gather(neighbour(app, gone), seeing)
                if beside != expected:
                    self.failures.append(f"seed {SEED}, numbers {some}: the neighbour's answer changed")
                for number, request, seen in zip(some, requests, all_seen, strict=True):
                    await self._judge(app, number, request, seen)
                self.sent += len(some)
                if len(self.failures) > 20:
                    break
            assert (engine.health().running, engine.health().waiting) == (0, 0)

    async def _judge(self, app: ASGIApp, number: int, request: Hostile, seen: Seen) -> None:
        self.statuses[seen.answer.status] += 1
        found = faults(seen)
        if seen.answer.status >= 400:
            cost = seen.cost
            for wait in (0, 0.1, 0.5, 1, 2, 4):  # the collector's work for all may have come in its time, and others use this machine
                if cost > CPU_S:
                    await asyncio.sleep(wait)
                    cost = min(cost, (await asked(app, request, asyncio.Event(), time.thread_time)).cost)
            self.slowest = max(self.slowest, cost)
            found += [f"took {cost:.3f} s of processor time"] if cost > CPU_S else []
        if found:
            self.failures.append(f"seed {SEED}, number {number}: {', '.join(found)}; status {seen.answer.status}; {described(request)}")


def campaign(dialect: str, numbers: range) -> Campaign:
    """What came of the requests of these numbers."""
    one = Campaign(dialect)
    asyncio.run(one.run(numbers))
    return one


def lighten() -> None:
    """Have the collector look less often, and not at what was imported: it takes a sixth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def campaigns(dialect: str) -> Iterator[Campaign]:
    """All requests, side by side where there are many."""
    shares = [range(first, min(first + SHARE, COUNT)) for first in range(0, COUNT, SHARE)]
    if len(shares) == 1:
        yield campaign(dialect, shares[0])
        return
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), lighten) as pool:
        yield from pool.map(campaign, repeat(dialect), shares)


@pytest.mark.fault("A01", "A02", "A06", "A10", "A26", "B02", "G04")
@pytest.mark.timeout(max(3600, COUNT // 100))
@pytest.mark.parametrize("dialect", PROVIDERS)
def test_hostile_requests_get_the_documented_answer_and_harm_nobody(dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole, began = Campaign(dialect), time.monotonic()
    for some in campaigns(dialect):
        whole.add(some)
        if whole.sent > SHARE or whole.failures:
            line = f"{dialect}: seed {SEED}, {whole.sent} sent, {len(whole.failures)} failures, {time.monotonic() - began:.0f} s, "
            with capsys.disabled():
                print(f"{line}slowest refusal {whole.slowest * 1000:.0f} ms, {dict(whole.statuses)}", file=sys.stderr, flush=True)
    assert not whole.failures, "\n".join(whole.failures[:20])
    assert whole.sent == COUNT
    assert whole.statuses[400] > COUNT / 2
    assert whole.statuses[200] + whole.statuses[0] > COUNT / 50  # answered, and left by the client before that
