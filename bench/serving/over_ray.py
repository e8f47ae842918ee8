"""What Ray's HTTP proxy and the way to a replica add to a completion of one token, beside an empty application behind the same proxy.

    .venv-ray/bin/python -m bench.serving.over_ray          after make test-ray has made the environment

Four servers run at once, on this machine, and are asked in turns, one request at a time over a kept connection: an empty ASGI application
behind Ray's proxy, ours with two replicas of the bundled model behind the same proxy, ``quintet cluster`` with two replicas and its own
front, and ``quintet serve``. All with the same number of threads for a model. Milliseconds at p50, p90 and p99.

Of each of ours also what it takes above the empty application, of which its engine computes so much (from the first step to the last token,
the mean of its own metric), and what is left for all else: HTTP, JSON, the way to the replica and back. Part of that is Ray's: an engine
that computes for some milliseconds leaves the caches without the proxy's code and data. So the empty application is asked a second time, to
read memory for about as long as our engine behind the proxy computes, and has a rest too: what ours is above that is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
from ray import serve

from bench.engines.engines import free_port
from quintet.cli.scrape import Between, Scrape

HOST = "127.0.0.1"
BODY = json.dumps({"prompt": "The sky is", "max_tokens": 1, "temperature": 0})
START_S = 300.0
SIZES = ("smollm2", "--kv-cache", "64MiB", "--ctx-size", "1024", "--threads", "1", "--log-level", "warning")
TWO = ("--replicas", "2", "--cpus-per-replica", "0")
EMPTY, COMPUTING = "empty, Ray's proxy", "computing, the same"
PROXIED, CLUSTER, SERVE = "ours, Ray's proxy", "ours, own front", "quintet serve"
COMPUTED = "vllm:request_inference_time_seconds"
OURS = (PROXIED, CLUSTER, SERVE)
WEIGHTS: list[Any] = []


async def empty(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that reads the body and answers 200; after milliseconds of reading memory, if the query says how many."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    if query := scope["query_string"]:
        await asyncio.to_thread(compute, float(query) / 1000)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"{}"})


def compute(seconds: float) -> None:
    """Read as much memory as a small model has, as often as fits: other processes find the caches as an engine leaves them."""
    end = time.perf_counter() + seconds
    if not WEIGHTS:
        WEIGHTS.extend(np.ones((96, 1 << 18), np.float32))
    for part in itertools.cycle(WEIGHTS):
        part.sum()
        if time.perf_counter() >= end:
            return


@contextlib.contextmanager
def quintet(command: str, port: int, *more: str) -> Iterator[None]:
    """A server of ours that is ready."""
    process = subprocess.Popen([sys.executable, "-m", "quintet", command, *SIZES, *more, "--port", str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"quintet {command} does not start")
        end = time.monotonic() + START_S
        while ask(http.client.HTTPConnection(HOST, port), "/v1/completions")[1] != 200:
            if time.monotonic() > end:
                raise SystemExit(f"quintet {command} is not ready")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[float, int]:
    """Seconds, and the status."""
    begin = time.perf_counter()
    connection.request("POST", path, BODY, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return time.perf_counter() - begin, answer.status


def scraped(port: int) -> Scrape:
    """A server's metrics now."""
    connection = http.client.HTTPConnection(HOST, port)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return Scrape.of(page, time.monotonic())


def computed(seen: Between) -> float:
    """Milliseconds that a server's engines have computed for a request meanwhile, on average."""
    return 1000 * (seen.share(f"{COMPUTED}_sum", f"{COMPUTED}_count") or 0.0)


def measure(places: dict[str, tuple[int, str]], rounds: int, requests: int) -> dict[str, list[float]]:
    """Milliseconds of each, asked in turns."""
    found: dict[str, list[float]] = {name: [] for name in places}
    connections = {name: http.client.HTTPConnection(HOST, port) for name, (port, _) in places.items()}
    for _ in range(rounds):
        for name, (_, path) in places.items():
            for _ in range(requests):
                seconds, status = ask(connections[name], path)
                if status != 200:
                    raise SystemExit(f"{name}: status {status}")
                found[name].append(seconds * 1000)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=40, help="of each server in each round")
    options = parser.parse_args()
    ports = {name: free_port() for name in ("ray", "cluster", "serve")}
    context = ray.init(address="local", _node_ip_address=HOST, include_dashboard=False, logging_level="warning")
    serve.start(http_options={"host": HOST, "port": ports["ray"]})
    quiet = serve.deployment(ray_actor_options={"num_cpus": 0}, logging_config={"enable_access_log": False})  # as ours is
    application = quiet(serve.ingress(lambda: empty)()).bind()
    serve.run(application, name="empty", route_prefix="/empty")
    own = context.address_info["address"]
    with (
        quintet("cluster", ports["ray"], *TWO, "--ray-proxy", "--ray-address", own),
        quintet("cluster", ports["cluster"], *TWO, "--ray-address", own),
        quintet("serve", ports["serve"]),
    ):
        places = {
            EMPTY: (ports["ray"], "/empty/"),
            PROXIED: (ports["ray"], "/v1/completions"),
            CLUSTER: (ports["cluster"], "/v1/completions"),
            SERVE: (ports["serve"], "/v1/completions"),
        }
        start = scraped(ports["ray"])
        measure(places, 1, options.requests)
        before = {name: scraped(places[name][0]) for name in OURS}
        read = round(computed(Between(start, before[PROXIED])), 2)
        places[COMPUTING] = (ports["ray"], f"/empty/?{read}")
        measure({COMPUTING: places[COMPUTING]}, 1, options.requests)
        found = measure(places, options.rounds, options.requests)
        after = {name: scraped(places[name][0]) for name in OURS}
    ray.shutdown()
    p50 = {name: statistics.median(times) for name, times in found.items()}
    for name, times in found.items():
        cuts = statistics.quantiles(times, n=100)
        print(f"{name:20} p50 {p50[name]:7.2f}   p90 {cuts[89]:7.2f}   p99 {cuts[98]:7.2f} ms   ({len(times)} requests)")
    print(f"\n{'milliseconds at p50':20} {'above the empty application':>28} {'computed':>10} {'the rest':>10}")
    for name in (COMPUTING, *OURS):
        above, own = p50[name] - p50[EMPTY], read if name == COMPUTING else computed(Between(before[name], after[name]))
        print(f"{name:20} {above:28.2f} {own:10.2f} {above - own:10.2f}")


if __name__ == "__main__":
    main()
