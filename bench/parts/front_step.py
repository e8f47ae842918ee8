"""CPU microseconds of the front per token streamed, without sockets and without an engine: from a step's frame to the last write.

    python -m bench.parts.front_step [--clients 32] [--steps 2000] [--fields '{"logprobs": 1}'] [--path /fireworks/inference/v1/completions]

Frames of steps, each with a token for each of so many streams, are read as if an engine had sent them; transports count what is written
to them. The least of many steps is told, which other programs hardly disturb; to compare two versions, run them in turns. What a
request costs before its first token is told beside it, a mean. What the system does to send a write is in ``front_cost``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from quintet.backends.base import Counts, Pages
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.link import Link
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import EventRow, Events, FromWorker, Ready, Row, ScoredRow, Stepped, Submit, TokenRow, ToWorker
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig, ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.events import Finish
from quintet.listen.crowd import Crowd
from quintet.listen.protocol import Protocol
from quintet.server.app import create_app

LONGEST = 8000
"""Tokens of a stream, at most."""


class NoWorker(Link):
    """A worker that computes nothing; what it is to have said is passed to ``receive``."""

    restarts = False

    def __init__(self) -> None:
        self.tokenizer = ToyTokenizer()
        self.requests: list[int] = []
        self.receive: Callable[[FromWorker], None] = lambda _: None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self.receive = receive
        receive(Ready(model="toy", context=LONGEST + 192, vocab=257, max_logprobs=20, max_sequences=128, fingerprint="fp"))

    def send(self, message: ToWorker) -> None:
        if isinstance(message, Submit):
            self.requests.append(message.request_id)

    def kill(self) -> None:
        """Nothing to kill."""

    async def close(self) -> None:
        """Nothing to end."""


class Counting(asyncio.Transport):
    """Counts writes into a list of one number."""

    def __init__(self, writes: list[int]) -> None:
        super().__init__()
        self._writes = writes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:  # noqa: ARG002 - the transport's
        self._writes[0] += 1

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def pause_reading(self) -> None:
        """Nothing comes."""

    resume_reading = close = abort = pause_reading


def row(step: int, logprobs: int | None) -> Row:
    """A letter, as the first of its stream or a later one."""
    token, top = 97 + step % 20, ((101, -0.5),) * (logprobs or 0)
    if step == 0:
        return EventRow(0, token, None if logprobs is None else -0.5, top, waited=0.1)
    return TokenRow(0, token) if logprobs is None else ScoredRow(0, token, -0.5, top, False)


def open_streams(app: object, request: bytes, clients: int, writes: list[int]) -> ServerState:
    """Connections that have sent their requests; the state knows the tasks that answer them."""
    config = uvicorn.Config(app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False)  # type: ignore[arg-type]
    config.load()
    state, crowd = ServerState(), Crowd[Protocol](clients, time.monotonic)
    for _ in range(clients):
        protocol = Protocol(config, state, {"listener": "public", "crowded": False}, crowd)
        crowd.joined(protocol)
        protocol.connection_made(Counting(writes))
        protocol.data_received(request)
    return state


async def measure(clients: int, steps: int, fields: dict[str, Any], path: str) -> tuple[float, list[float]]:
    """Microseconds per request, and per token of each step."""
    link, writes = NoWorker(), [0]
    models = Registry([Model("toy", lambda: Engine(link, EngineConfig(max_running=clients)))], name_models([("toy",)]))
    body = {"model": "toy", "prompt": "A story of a small server, told in sixty-four characters or more.", "max_tokens": LONGEST}
    sent = json.dumps(body | {"stream": True, "temperature": 0} | fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    app = create_app(models, ServerConfig())
    begin = time.thread_time()
    state = open_streams(app, head.encode() + sent, clients, writes)
    while len(link.requests) < clients:
        await asyncio.sleep(0.001)
    each = (time.thread_time() - begin) / clients * 1e6
    splitter, spent = codec.Splitter(), list[float]()
    for step in range(steps):
        events: Events = {request: [row(step, fields.get("logprobs"))] for request in link.requests}
        frame = bytes(codec.encode(Stepped(clients, 0, Counts(step + 1, clients * (step + 1)), Pages(), events)))
        wanted = writes[0] + (clients if step else 2 * clients)  # the first brings the heads too
        begin = time.thread_time()
        for message in splitter.feed(frame):
            link.receive(codec.decode_from_worker(message))
        while writes[0] < wanted:
            await asyncio.sleep(0)
        spent.append((time.thread_time() - begin) / clients * 1e6)
    ends: Events = {request: [EventRow(0, 97, finish=Finish.LENGTH)] for request in link.requests}
    link.receive(Stepped(0, 0, Counts(steps + 1), Pages(), ends))
    while state.tasks:
        await asyncio.sleep(0.001)
    return each, spent[1:]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--fields", type=json.loads, default={}, help="more of the request's body")
    parser.add_argument("--path", default="/v1/completions")
    args = parser.parse_args()
    if not 1 < args.steps <= LONGEST:
        parser.error(f"--steps must be 2 to {LONGEST}")
    each, spent = uvloop.run(measure(args.clients, args.steps, args.fields, args.path))
    print(f"{args.clients} streams: {min(spent):.2f} us a token at least, {median(spent):.2f} at the median; {each:.0f} us a request")


if __name__ == "__main__":
    main()
