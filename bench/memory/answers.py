"""What the largest answers cost the others: memory of front and engine, and the longest that ``/livez`` waited meanwhile.

    python -m bench.memory.answers [MODEL] [--entries 2000000] [--at-once 1] [--case openai ...]

A prompt that fills the context, echoed with as many alternatives per token as the dialect takes, and as many samples as ``--entries``
allow, as JSON and as a stream. A server of its own for each. Memory is the peak during the requests; the engine's is less what it held
before.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.probe import Prober, ask, engine_of, serving
from bench.memory.echo_memory import MIB, field

CONTEXT = 8192


@dataclass(frozen=True)
class Case:
    """How a dialect is asked.

    Args:
        alternatives: per token.
        fields: that ask for them.
    """

    path: str
    alternatives: int
    fields: dict[str, Any]
    words: bool = False


CASES = {
    "openai": Case("/v1/completions", 5, {"logprobs": 5}),
    "fireworks": Case("/fireworks/inference/v1/completions", 5, {"logprobs": 5}),
    "fireworks-content": Case("/fireworks/inference/v1/completions", 5, {"logprobs": True, "top_logprobs": 5}),
    "together": Case("/together/v1/completions", 20, {"logprobs": 20}, words=True),
    "cerebras": Case("/cerebras/v1/completions", 20, {"logprobs": 20}),
}


def measure(model: str, name: str, entries: int, at_once: int, stream: bool) -> None:
    """Print a line."""
    case = CASES[name]
    n = max(1, min(128, entries // (CONTEXT * (1 + case.alternatives))))
    prompt: Any = " the" * (CONTEXT - 1) if case.words else [1000 + index * 7 % 20_000 for index in range(CONTEXT - 1)]
    body = {"prompt": prompt, "max_tokens": 1, "echo": True, "temperature": 0, "stream": stream, "n": n, **case.fields}
    with serving(model) as (server, address):
        ask(address, case.path, {**body, "prompt": "once" if case.words else [1000, 1007], "n": 1})
        pids = [server.pid, engine_of(server.pid)]
        before = [field(pid, "VmRSS") for pid in pids]
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # the peak counts from now
        prober, begin = Prober(address), time.monotonic()
        prober.start()
        answers: list[tuple[int, int]] = []
        clients = [threading.Thread(target=lambda: answers.append(ask(address, case.path, body))) for _ in range(at_once)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        took, longest = time.monotonic() - begin, prober.stop()
        front, engine = (field(pid, "VmHWM") for pid in pids)
    asked = f"{name}, n {n}, {'stream' if stream else 'JSON'} x {at_once}: {sorted({status for status, _ in answers})}"
    sizes = f"front {front // MIB} MiB, engine +{(engine - before[1]) // MIB} MiB"
    sent = sum(size for _, size in answers) / MIB
    print(f"{asked} {sizes}, /livez {longest * 1000:.0f} ms, {sent:.0f} MiB in {took:.1f} s", flush=True)


def main() -> None:
    """Measure, and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--entries", type=int, default=2_000_000)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    for name in args.case:
        for stream in (False, True):
            measure(args.model, name, args.entries, args.at_once, stream)


if __name__ == "__main__":
    main()
