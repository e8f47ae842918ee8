"""How long others wait while a batch is computed beside them: the same arrivals with a batch and without, in turns, on one server.

    python -m bench.serving.batch_beside                      # the bundled model, about three minutes on quiet cores
    python -m bench.serving.batch_beside --rate 4 --rounds 5

The exit code is 1 if the 99th percentile of the time to the first token, of the gaps between tokens, or of whole answers is more than 10 %
longer beside the batch: the median over the rounds of the ratio of a round's two figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.load import streaming
from bench.common.probe import serving
from bench.common.prompt import prompt
from quintet.load.client import Target
from quintet.load.figures import summary
from quintet.load.play import Job, Load, arrivals, over_http

ALLOWED = 1.10
FIGURES = ("ttft_ms", "gap_ms", "whole_ms")
_BOUNDARY = "bench"
_LINES = 20_000  # more than there is time for
_POLL_S = 0.05


def begin(url: str) -> str:
    """A batch that outlasts a round; its id."""
    asks = {"method": "POST", "url": "/v1/completions"}
    bodies = ({"prompt": prompt(10_000_000 + number, 128), "max_tokens": 64} for number in range(_LINES))
    lines = (json.dumps({"custom_id": str(number), **asks, "body": body}) for number, body in enumerate(bodies))
    head = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    body = f"{head}{chr(10).join(lines)}\r\n--{_BOUNDARY}--\r\n".encode()
    file = post(f"{url}/v1/files", body, f"multipart/form-data; boundary={_BOUNDARY}")["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(post(f"{url}/v1/batches", json.dumps(asked).encode())["id"])


def post(url: str, body: bytes | None, media: str = "application/json") -> dict[str, Any]:
    """What is answered; GET without a body."""
    with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": media}), timeout=300) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def done(url: str, batch: str) -> int:
    """Lines of a batch that are computed."""
    return int(post(f"{url}/v1/batches/{batch}", None)["request_counts"]["completed"])


def round_of(url: str, options: argparse.Namespace, serial: int) -> dict[str, object]:
    """One load of arrivals, always at the same moments, with prompts that nothing has cached."""
    ids = [prompt(serial + number, options.prompt_tokens) for number in range(options.requests)]
    times = arrivals(options.rate, options.requests, 1)
    jobs = [Job(streaming(one, options.max_tokens, {}), at) for one, at in zip(ids, times, strict=True)]
    model = post(f"{url}/v1/models", None)["data"][0]["id"]
    found = summary(asyncio.run(over_http(Target(f"{url}/v1/completions", model), Load(jobs))))
    if found["failed"]:
        raise SystemExit(f"{found['failed']} of {options.requests} requests failed: {found['errors']}")
    return found


class Round(NamedTuple):
    """The figures without a batch, those beside one, and the lines a second that were computed meanwhile."""

    calm: Mapping[str, Any]
    beside: Mapping[str, Any]
    lines: float


def compare(url: str, options: argparse.Namespace) -> list[Round]:
    """One round after the other."""
    found = []
    round_of(url, options, 1_000_000)  # the first steps tell the engine how long they take
    for number in range(options.rounds):
        calm = round_of(url, options, 2 * number * options.requests)
        batch = begin(url)
        while not (before := done(url, batch)):
            time.sleep(_POLL_S)
        since = time.monotonic()
        beside = round_of(url, options, (2 * number + 1) * options.requests)
        lines = (done(url, batch) - before) / (time.monotonic() - since)
        post(f"{url}/v1/batches/{batch}/cancel", b"")
        while post(f"{url}/v1/batches/{batch}", None)["status"] != "cancelled":
            time.sleep(_POLL_S)
        found.append(Round(calm, beside, lines))
    return found


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rate", type=float, default=2.0, help="arrivals per second")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=248)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, serving(options.model, "--batch-dir", str(Path(folder) / "kept")) as (_, address):
        url = f"http://{address}"
        found = compare(url, options)
    worst = 0.0
    for name in FIGURES:
        ratio = statistics.median(one.beside[name]["p99"] / one.calm[name]["p99"] for one in found)
        worst = max(worst, ratio)
        calm_ms, beside_ms = [one.calm[name]["p99"] for one in found], [one.beside[name]["p99"] for one in found]
        print(f"{name} p99: without {calm_ms}, beside a batch {beside_ms}, ratio {ratio:.3f}")
    print(f"lines a second beside it: {[round(one.lines, 2) for one in found]}")
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
