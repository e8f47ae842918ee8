"""What a ledger costs ``quintet serve``: two servers, one with ``--ledger``, under the same load by turns.

    python -m bench.parts.ledger_cost [MODEL] [--clients 32] [--requests 256] [--max-tokens 64] [--rounds 7]

Without a model it is the toy, which computes next to nothing. Told are medians over pairs of rounds, ledger over none: throughput and time
to the first token, which others on the machine disturb, and the CPU time of the front for a request, which they disturb little.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.parts.front_cost import cpu


@dataclass(frozen=True, slots=True)
class Round:
    """One load.

    Args:
        rate: tokens per second.
        first: milliseconds to the first token, median.
        cost: milliseconds of CPU time of the front for a request.
    """

    rate: float
    first: float
    cost: float


@contextmanager
def server(words: list[str]) -> Iterator[tuple[int, str]]:
    """A server's process and its URL."""
    command = [sys.executable, "-m", "quintet", "serve", "--port", "0", "--log-level", "error", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
            assert url, "the server did not start"
            yield process.pid, url[0]
        finally:
            process.terminate()


def measure(pid: int, url: str, args: argparse.Namespace) -> Round:
    """One load on a server."""
    # The toy would end early, and its prompts are bytes.
    extra = {} if args.model else {"prompt": "A story of a small server, told in many characters.", "logit_bias": {"256": -100}}
    words = ["--model", "default" if args.model else "toy", "--extra", json.dumps({**extra, "ignore_eos": True} if args.model else extra)]
    words += [word for name in ("clients", "requests", "max_tokens") for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    before = cpu(pid)
    command = [sys.executable, "-m", "bench.common.load", "--url", f"{url}/v1/completions", *words]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert not done["failed"], done["errors"]
    return Round(done["tokens_per_s"], done["ttft_ms"]["p50"], (cpu(pid) - before) * 1000 / args.requests)


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    for name, default in (("clients", 32), ("requests", 256), ("max-tokens", 64), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    served = [args.model, "--served-model-name", "default"] if args.model else ["--toy"]
    with ExitStack() as stack:
        file = Path(stack.enter_context(TemporaryDirectory(dir="."))) / "ledger.db"
        servers = [stack.enter_context(server(words)) for words in (served, [*served, "--ledger", str(file)])]
        for one in servers:
            measure(*one, args)
        # Each pair in another order: a machine that grows slower must not look like a cost.
        pairs = [[measure(*one, args) for one in (servers if turn % 2 else servers[::-1])] for turn in range(args.rounds)]
    pairs = [pair if turn % 2 else pair[::-1] for turn, pair in enumerate(pairs)]
    rate = median(kept.rate / none.rate - 1 for none, kept in pairs)
    first = median(kept.first - none.first for none, kept in pairs)
    cost = median(kept.cost - none.cost for none, kept in pairs)
    none = median(none.cost for none, _ in pairs), median(none.first for none, _ in pairs), median(none.rate for none, _ in pairs)
    print(
        f"{args.clients} clients, {args.max_tokens} tokens each: throughput {rate:+.1%} (of {none[2]:.0f} tokens/s), "
        f"first token {first:+.1f} ms (of {none[1]:.1f}), front {cost:+.2f} ms of CPU a request (of {none[0]:.2f})"
    )


if __name__ == "__main__":
    main()
