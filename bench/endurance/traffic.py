"""Clients of all kinds: those who wait, those who come at a rate whatever becomes of the others, those who leave, read slowly or lie."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.common.proc import PeerError
from quintet.load.client import Target, Trace

Body = dict[str, object]
WORDS = ("the", "engine", "of", "a", "small", "server", "reads", "prompts", "and", "writes", "what", "comes", "next", "until", "done")
REFUSED = (429, 503)


def story(rng: random.Random, tokens: int, **more: object) -> Body:
    """A stream of exactly ``tokens`` tokens from a prompt that no other request has."""
    prompt = " ".join(rng.choices(WORDS, k=24)) + f" {rng.random()}"
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0.8,
        "seed": rng.randrange(99),
        **more,
    }


@dataclass
class Seen:
    """What became of requests, and when. Times are seconds of ``time.perf_counter``.

    Args:
        tokens: when each event with text came.
        refusals: how long each 429 or 503 took.
        whole: answers that were complete.
        broken: begin, end and error of what failed otherwise.
    """

    tokens: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    whole: int = 0
    broken: list[tuple[float, float, str]] = field(default_factory=list)

    def take(self, trace: Trace, began: float) -> None:
        """Count one request that ended."""
        self.tokens += trace.times
        if trace.status in REFUSED:
            self.refusals.append(trace.end - began)
        elif trace.good:
            self.whole += 1
        else:
            self.broken.append((began, trace.end, trace.error or "no text"))

    def rate(self, start: float, stop: float) -> float:
        """Events with text per second between two times."""
        return sum(start < at <= stop for at in self.tokens) / max(stop - start, 1e-9)


async def one(target: Target, body: Body, seen: Seen) -> Trace:
    """One request from its connection to its end, counted; also what had come when it is cancelled."""
    trace, began = Trace(time.perf_counter()), time.perf_counter()
    try:
        await target.send(target.request(body), trace)
    except asyncio.CancelledError:
        seen.tokens += trace.times
        raise
    seen.take(trace, began)
    return trace


@asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """Tasks that end when the block does, all at once: their connections are cut.

    Raises:
        PeerError: one has failed, so that what was to be seen was not.
    """
    made = Crowd()
    try:
        yield made
    finally:
        for task in list(made.tasks):
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
    if made.failure is not None:
        raise PeerError(f"a client failed: {made.failure!r}") from made.failure


class Crowd:
    """Clients under way, and how the first failed that did."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.failure: BaseException | None = None

    def add(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin a client's work."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            self.failure = self.failure or task.exception()


async def asking(target: Target, rng: random.Random, tokens: int, seen: Seen) -> None:
    """Closed loop: the next request when the last one was answered."""
    while True:
        trace = await one(target, story(rng, tokens), seen)
        if not trace.good:
            await asyncio.sleep(0.1)


async def arriving(rng: random.Random, rate: float, client: Any, among: Crowd) -> None:
    """Open loop: ``client()`` begins at Poisson arrivals of ``rate`` per second, whatever became of those before it."""
    due = time.perf_counter()
    while True:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        among.add(client())


async def leaving(target: Target, body: Body, after: float) -> None:
    """A client that cuts its connection, sooner or later."""
    with suppress(TimeoutError):
        async with asyncio.timeout(after):
            await target.send(target.request(body), Trace(time.perf_counter()))


async def storm(target: Target, count: int, rng: random.Random) -> None:
    """So many connections at once, each cut as soon as its request is sent."""
    await asyncio.gather(*(leaving(target, story(rng, 50), 0.05) for _ in range(count)))


async def trickling(target: Target, rng: random.Random, tokens: int) -> None:
    """A reader that takes a byte of its stream ten times a second, and asks again when it is cut off."""
    at, loop = urlsplit(target.url), asyncio.get_running_loop()
    while True:
        with socket.socket() as sock, suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, (at.hostname, at.port))
            await loop.sock_sendall(sock, target.request(story(rng, tokens)))
            while await loop.sock_recv(sock, 1):
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)


HOSTILE: Sequence[bytes] = (
    *(b"", b"[]", b"null", b'{"prompt":5}', b'{"prompt":"\\ud800"}', b'{"prompt":"x","n":1000000}', b'{"prompt":"x","temperature":NaN}'),
    *(
        b'{"a":' * 5000,
        b'{"prompt":[' + b'"",' * 100_000 + b'""]}',
        b'{"prompt":"' + b"A" * 1_000_000 + b'","max_tokens":1}',
        b"\xff" * 1000,
    ),
    *(b'{"prompt":"x","prompt":"y"}', b'{"prompt":[[-1]]}', b'{"prompt":"x","logit_bias":{"x":1}}', b'{"prompt":"x","stop":[""]}'),
    b'{"prompt":"x","response_format":{"type":"grammar","grammar":"root ::= ' + b"(" * 5000 + b'"}}',
)
"""Bodies that are to be refused; the last one only in a dialect with grammars."""


async def lying(target: Target, rng: random.Random, statuses: list[tuple[float, int]]) -> None:
    """A hostile body; its status and when it came."""
    at, body = urlsplit(target.url), rng.choice(HOSTILE)
    head = f"POST /fireworks/v1/completions HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        first = await reader.readline()
        statuses.append((time.perf_counter(), int(first.split()[1]) if first else 0))
        writer.close()


async def canary(target: Target) -> bytes:
    """What the same request gets; empty while it is refused."""
    body: Body = {"prompt": "The sky is", "max_tokens": 16, "seed": 7, "temperature": 1.0, "logprobs": 2}
    trace = await one(target, body, Seen())
    return json.dumps(json.loads(trace.body)["choices"]).encode() if trace.good else b""
