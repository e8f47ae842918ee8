"""A load on a server: clients that wait for their answers (closed loop), arrivals at a rate whatever becomes of the others (open loop).

Latency counts from when a request was due: a server that is slow must not slow the load that it is measured by.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from quintet.load.client import Target, Trace

Body = dict[str, object]


AGAIN_S = 0.1
"""Seconds until a client of a closed loop tries again where nobody answers."""

_LOOK_S = 0.002
"""Seconds between two looks whether every client has had text."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    Args:
        at: seconds after the start when it arrives; ``None`` = as soon as a client is free.
    """

    body: Body
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests and when they are sent.

    Args:
        clients: how many clients take the jobs without a time, in order, each the next when its last one was answered.
        after_clients: the times of the others count from when every client has had text.
        keep: the answers' bytes are wanted, not only their times.
    """

    jobs: Sequence[Job]
    clients: int = 0
    after_clients: bool = False
    keep: bool = False

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Load:
        """Of an object with these members."""
        values = dict(document)
        jobs = values.pop("jobs")
        assert isinstance(jobs, list)
        return cls([Job(**job) for job in jobs], **values)  # type: ignore[arg-type]


Send = Callable[[Body, Trace], Awaitable[None]]


async def perform(load: Load, send: Send) -> list[Trace]:
    """The whole load; traces in the order of its jobs."""
    begin = time.perf_counter()
    traces = [Trace(begin + (job.at or 0.0), load.keep) for job in load.jobs]
    waiting = iter([index for index, job in enumerate(load.jobs) if job.at is None])
    first = [trace for job, trace in zip(load.jobs, traces, strict=True) if job.at is None][: load.clients]

    async def client() -> None:
        for index in waiting:
            traces[index].due = time.perf_counter()
            await send(load.jobs[index].body, traces[index])

    async def arrive(index: int, at: float) -> None:
        while load.after_clients and not all(trace.times or trace.end for trace in first):
            await asyncio.sleep(_LOOK_S)
        zero = time.perf_counter() if load.after_clients else begin
        traces[index].due = zero + at
        await asyncio.sleep(max(zero + at - time.perf_counter(), 0.0))
        await send(load.jobs[index].body, traces[index])

    due = [(job.at, index) for index, job in enumerate(load.jobs) if job.at is not None]
    timed = [arrive(index, at) for at, index in sorted(due)]  # what is late already goes in this order
    await asyncio.gather(*(client() for _ in range(load.clients)), *timed)
    return traces


async def over_http(target: Target, load: Load) -> list[Trace]:
    """The load on a server. Requests are encoded before the clock starts."""
    encoded = {id(job.body): target.request(job.body) for job in load.jobs}
    return await perform(load, lambda body, trace: target.send(encoded[id(body)], trace))


async def sustained(target: Target, bodies: Iterator[Body], clients: int, seconds: float) -> list[Trace]:
    """A closed loop for so long: what was sent by then is waited for. Traces in the order of sending."""
    end = time.perf_counter() + seconds
    traces: list[Trace] = []

    async def client() -> None:
        while time.perf_counter() < end:
            request, trace = target.request(next(bodies)), Trace(time.perf_counter())
            traces.append(trace)
            await target.send(request, trace)
            if not trace.status:  # where nobody is, that is told at once, and each time makes a trace
                await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(client() for _ in range(clients)))
    return traces


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds of ``count`` Poisson arrivals of ``rate`` per second."""
    draw = random.Random(seed)  # noqa: S311 -- the same load each time
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))
