"""Streaming load on an OpenAI-style ``/v1/completions``: closed loop (N clients) or open loop (arrivals at a rate).

It runs in a process of its own and parses as little as it can, so that on a small machine the client does not compete with the
server: a raw socket per request, a chunked-transfer reader, one time stamp per event. Prints one JSON object (``summary``).

    python bench/load.py --url http://127.0.0.1:8000/v1/completions --clients 8 --prompt-tokens 64 --max-tokens 128
    python bench/load.py --url http://127.0.0.1:8000/v1/completions --rate 20 --requests 400
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast
from urllib.parse import SplitResult, urlsplit

from prompt import prompt

try:
    import uvloop
except ImportError:  # it only costs less
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

EMPTY_TEXT = (b'"text":""', b'"text": ""')
USAGE = (b'"usage":{', b'"usage": {')


@dataclass(slots=True)
class Trace:
    """What happened to one request. Times are seconds of ``time.perf_counter``.

    Args:
        due: when it should have been sent (open loop), else when it was.
        times: arrival of each event that carries text.
        tokens: completion tokens by the server's usage; 0 if it sent none.
        status: HTTP status, 0 if none came.
        error: why it failed; empty if it ended well.
    """

    due: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    status: int = 0
    error: str = ""
    end: float = 0.0

    def event(self, data: bytes, now: float) -> None:
        """Take the payload of one ``data:`` line."""
        if data.startswith(b'{"error"'):
            self.error = data[:300].decode(errors="replace")
        elif b'"text"' in data and not any(empty in data for empty in EMPTY_TEXT):
            self.times.append(now)
        if any(usage in data for usage in USAGE):
            self.tokens = int(json.loads(data)["usage"]["completion_tokens"])

    @property
    def per_event(self) -> float:
        """Tokens per event with text: a server may send several at once, or none for half a character."""
        return (self.tokens or len(self.times)) / max(len(self.times), 1)


class Chunked:
    """Incremental reader of an HTTP/1.1 chunked body."""

    def __init__(self) -> None:
        self._raw = b""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes of every chunk that is complete; the rest is kept."""
        raw, position, body = self._raw + data, 0, b""
        while not self.done and (line := raw.find(b"\r\n", position)) >= 0:
            size = int(raw[position:line].split(b";")[0], 16)
            stop = line + 2 + size
            if len(raw) < stop + 2:
                break
            body += raw[line + 2 : stop]
            position, self.done = stop + 2, size == 0
        self._raw = raw[position:]
        return body


class Exchange(asyncio.Protocol):
    """One request on one connection; ``done`` is set when the stream ended, well or not."""

    def __init__(self, request: bytes, trace: Trace, done: asyncio.Future[None]) -> None:
        self._request, self._trace, self._done = request, trace, done
        self._head = self._tail = b""
        self._chunked: Chunked | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._trace.status:
            data = self._header(data)
        if self._chunked:
            data = self._chunked.feed(data)
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._trace.event(line[5:].strip(), now)
        if self._chunked and self._chunked.done:
            self._transport.close()

    def _header(self, data: bytes) -> bytes:
        """Collect the head; return what follows it, empty while it is incomplete."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return b""
        self._trace.status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in head.lower():
            self._chunked = Chunked()
        return rest

    def connection_lost(self, exc: Exception | None) -> None:
        trace = self._trace
        trace.end = time.perf_counter()
        if trace.status != 200:
            trace.error = f"status {trace.status}: {self._tail[:300].decode(errors='replace')}"
        elif self._chunked and not self._chunked.done:
            trace.error = trace.error or f"the stream broke off: {exc or 'connection closed'}"
        if not self._done.done():
            self._done.set_result(None)


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and what they ask for.

    Args:
        extra: more fields of the body, such as ``{"ignore_eos": true}``.
        serial: number of the first prompt; every request takes the next, so that no prompt is in a server's cache.
        timeout: seconds that one stream may take in all.
    """

    url: str
    model: str
    prompt_tokens: int
    max_tokens: int
    extra: dict[str, object]
    serial: int = 0
    api_key: str = ""
    timeout: float = 300.0

    def requests(self) -> Iterator[bytes]:
        """Raw HTTP requests without end, each with another prompt."""
        at, serial = urlsplit(self.url), self.serial
        while True:
            yield self._request(at, serial)
            serial += 1

    def _request(self, at: SplitResult, serial: int) -> bytes:
        body = {"model": self.model, "prompt": prompt(serial, self.prompt_tokens), "max_tokens": self.max_tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **self.extra}
        payload = json.dumps(body).encode()
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        head = f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\n{key}Content-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload


async def exchange(target: Target, request: bytes, due: float) -> Trace:
    """Send one request and read its stream to the end; a failure is in the trace, never raised."""
    loop, at, trace = asyncio.get_running_loop(), urlsplit(target.url), Trace(due)
    done = loop.create_future()
    try:
        async with asyncio.timeout(target.timeout):
            await loop.create_connection(lambda: Exchange(request, trace, done), at.hostname or "", at.port or 80)
            await done
    except TimeoutError:
        trace.error, trace.end = f"not ended after {target.timeout:g} s", time.perf_counter()
    except OSError as error:
        trace.error, trace.end = f"no connection: {error}", time.perf_counter()
    return trace


async def closed_loop(target: Target, clients: int, requests: int) -> list[Trace]:
    """``clients`` clients, each sending its next request when the last one ended, until ``requests`` were sent."""
    stream = target.requests()
    bodies = iter([next(stream) for _ in range(requests)])  # made before the clock starts

    async def client() -> list[Trace]:
        return [await exchange(target, body, time.perf_counter()) for body in bodies]

    return [trace for traces in await asyncio.gather(*(client() for _ in range(clients))) for trace in traces]


async def open_loop(target: Target, rate: float, requests: int, seed: int) -> list[Trace]:
    """``requests`` requests at Poisson arrivals of ``rate`` per second, whether or not earlier ones have ended."""
    draw, stream = random.Random(seed), target.requests()
    arrivals = accumulate(draw.expovariate(rate) for _ in range(requests))
    schedule = [(at, next(stream)) for at in arrivals]
    begin = time.perf_counter()

    async def arrive(at: float, body: bytes) -> Trace:
        await asyncio.sleep(begin + at - time.perf_counter())
        return await exchange(target, body, begin + at)

    return await asyncio.gather(*(arrive(at, body) for at, body in schedule))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 (nearest rank) of seconds, in milliseconds; empty without values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"p{p}": round(1e3 * ordered[round(last * p / 100)], 2) for p in (50, 95, 99)} if ordered else {}


def steady_rate(traces: Sequence[Trace]) -> float:
    """Tokens per second while every stream was decoding: from the last first token to the first last one.

    0 if there was no such time, as when requests follow one another.
    """
    if not traces or not all(trace.times for trace in traces):
        return 0.0
    start, stop = max(trace.times[0] for trace in traces), min(trace.times[-1] for trace in traces)
    tokens = sum(trace.per_event * sum(start < at <= stop for at in trace.times) for trace in traces)
    return tokens / (stop - start) if stop > start else 0.0


def summary(traces: Sequence[Trace]) -> dict[str, object]:
    """Counts, rates (tokens per second) and latencies (milliseconds); failed requests count in ``failed`` only."""
    good = [trace for trace in traces if not trace.error and trace.times]
    wall = max((trace.end for trace in traces), default=0.0) - min((trace.due for trace in traces), default=0.0)
    tokens = sum(round(trace.per_event * len(trace.times)) for trace in good)
    gaps = [late - early for trace in good for early, late in zip(trace.times, trace.times[1:], strict=False)]
    return {
        "requests": len(traces),
        "failed": len(traces) - len(good),
        "errors": sorted({trace.error or "no text" for trace in traces if trace not in good})[:3],
        "tokens": tokens,
        "wall_s": round(wall, 3),
        "tokens_per_s": round(tokens / wall, 2) if wall else 0.0,
        "steady_tokens_per_s": round(steady_rate(good), 2),
        "ttft_ms": percentiles([trace.times[0] - trace.due for trace in good]),
        "gap_ms": percentiles(gaps),
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--serial", type=int, default=0, help="number of the first prompt")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds one stream may take")
    parser.add_argument("--extra", type=json.loads, default={}, help="more body fields as a JSON object, such as {\"ignore_eos\": true}")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--clients", type=int, help="closed loop with this many clients")
    how.add_argument("--rate", type=float, help="open loop with this many arrivals per second")
    parser.add_argument("--requests", type=int, help="requests in all; default: one per client, or 100")
    parser.add_argument("--seed", type=int, default=0, help="of the arrival times")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run one load and print its summary. Failed requests are in the summary; the exit code is 0."""
    options = parse(argv)
    target = Target(
        options.url, options.model, options.prompt_tokens, options.max_tokens, options.extra, options.serial, options.api_key,
        options.timeout,
    )
    run = (
        closed_loop(target, options.clients, options.requests or options.clients)
        if options.clients
        else open_loop(target, options.rate, options.requests or 100, options.seed)
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        before = time.process_time()
        result = summary(runner.run(run)) | {"client_cpu_s": round(time.process_time() - before, 3)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
