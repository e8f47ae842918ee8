"""CPU time of ``quintet serve`` per 1,000 tokens that many clients get: the front's, the engine's and the load generator's.

    python -m bench.parts.front_cost [--model smollm2] [--clients 32] [--requests 256] [--max-tokens 128] [--rounds 3] [--whole]

The toy, which is the default, computes next to nothing, so this is what all but the model costs; with a model it is told what
share of all that is. CPU time and not wall time: other programs disturb it less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench.common.probe import engine_of, url_of

TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> float:
    """Seconds so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def load(url: str, args: argparse.Namespace) -> tuple[int, float]:
    """Tokens that the clients got, and CPU seconds that they took."""
    numbers = {"clients": args.clients, "requests": args.requests, "max-tokens": args.max_tokens}
    # A text, as the toy's vocabulary is bytes; and it would end early.
    extra = {"prompt": "A story of a small server, told in sixty-four characters or more.", "ignore_eos": True}
    if args.whole:
        extra |= {"stream": False, "stream_options": None}
    words = ["--model", args.model, "--extra", json.dumps(extra)]
    words += [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "bench.common.load", "--url", f"{url}/fireworks/inference/v1/completions", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    summary = json.loads(done.stdout)
    tokens = args.requests * args.max_tokens if args.whole else int(summary["tokens"])
    return tokens, float(summary["client_cpu_s"])


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 32), ("requests", 256), ("max-tokens", 128), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", default="toy", help="what is served (default: the toy)")
    parser.add_argument("--whole", action="store_true", help="answers in one piece, no streams")
    args = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "quintet",
        "serve",
        "--toy" if args.model == "toy" else args.model,
        "--port",
        "0",
        "--log-level",
        "error",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = url_of(server)
            engine = engine_of(server.pid)
            rounds = []
            for _ in range(args.rounds):
                before = cpu(server.pid), cpu(engine)
                tokens, clients = load(url, args)
                spent = cpu(server.pid) - before[0], cpu(engine) - before[1], clients
                rounds.append([seconds / tokens * 1000 for seconds in spent])
        finally:
            server.terminate()
    front, worker, generator = (median(each) * 1000 for each in zip(*rounds, strict=True))
    told = f"front {front:.1f} ms, engine {worker:.1f} ms, load generator {generator:.1f} ms of CPU time per 1,000 tokens"
    print(f"{args.clients} {'answers' if args.whole else 'streams'}: {told}; the front {front / (front + worker + generator):.1%} of it")


if __name__ == "__main__":
    main()
