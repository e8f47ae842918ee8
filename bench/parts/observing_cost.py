"""What it costs ``quintet serve`` to be observed: servers of the toy model under the same load by turns, each with one thing more.

    python -m bench.parts.observing_cost [--clients 32] [--requests 256] [--max-tokens 16] [--rounds 7]

They are: a log of errors alone; a line for each request; ``/metrics`` read four times a second; spans and metrics to a collector; the
same to one that is not there. Told is the CPU time of the front for a request, which other programs disturb little: medians of what each
has more than the first in the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from urllib.request import urlopen

from bench.parts.ledger_cost import measure, server

SCRAPE_S = 0.25


class _Taker(BaseHTTPRequestHandler):
    """A collector that throws away what it gets."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as taker:
        threading.Thread(target=taker.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{taker.server_port}"
        taker.shutdown()


@contextmanager
def scraped(url: str) -> Iterator[None]:
    """As by Prometheus, only oftener."""
    done = threading.Event()

    def scrape() -> None:
        while not done.wait(SCRAPE_S):
            with urlopen(f"{url}/metrics", timeout=60) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 32), ("requests", 256), ("max-tokens", 16), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    args.model = ""
    with ExitStack() as stack:
        to = stack.enter_context(collector())
        more = {
            "errors alone": (),
            "a line each": ("--log-level", "info"),
            "/metrics read": (),
            "a collector": ("--otlp-endpoint", to),
            "one that is away": ("--otlp-endpoint", "http://127.0.0.1:9"),
        }
        servers = {name: stack.enter_context(server(["--toy", *words])) for name, words in more.items()}
        costs: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(args.rounds + 1):
            # Each round in another order: a machine that grows slower must not look like a cost.
            for name, (pid, url) in sorted(servers.items(), key=lambda one: one[0], reverse=bool(turn % 2)):
                with scraped(url) if name == "/metrics read" else contextlib.nullcontext():
                    cost = measure(pid, url, args).cost
                if turn:  # the first one warms up
                    costs[name].append(cost)
    plain = costs["errors alone"]
    print(f"{args.clients} clients, {args.max_tokens} tokens each; milliseconds of CPU of the front for a request")
    for name, found in costs.items():
        print(f"{name:>17}: {median(found):.3f} ({median(one - other for one, other in zip(found, plain, strict=True)):+.3f})")


if __name__ == "__main__":
    main()
