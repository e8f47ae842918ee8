"""Speed of a whole model in one tensor type after the other, as ratios to Q8_0 in the same run.

    python -m bench.parts.formats [TYPE ...] [--layers 4] [--rounds 8]

Each is a model of random weights, 2048 wide with 6144 in the feed-forward part. Measured are steps of 1, 8 and 32 sequences that decode at
a context of 16, and of one that reads 256 tokens; the output matrix and sampling are left out. All models do a step in every turn, one
after the other, and what counts is the time that one thread has the CPU, which other processes disturb least. Printed are bits per weight
in memory, the least milliseconds and, for each, the ratio of the least times: above 1 is faster than Q8_0.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.loading import native_loader

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.types import Batch

TYPES = ("Q8_0", "Q4_1", "Q5_0", "Q5_K", "Q6_K", "Q3_K", "Q2_K", "IQ2_XS", "IQ4_NL", "MXFP4")
"""The first is what the others are compared with; after it one or two of each format."""
STEPS = {"decode 1": (1, 1), "decode 8": (8, 1), "decode 32": (32, 1), "prefill 256": (1, 256)}
"""What a step has: sequences, and tokens of each."""
START = 16


def load(name: str, layers: int) -> NativeRunner:
    """A model of that type, with room for all of ``STEPS``."""
    spec = TinySpec(name, layers=layers, hidden=2048, heads=16, kv_heads=4, head_dim=128, ffn=6144, vocab=512, types=(Type[name],))
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(Path(folder) / "model.gguf", spec)
        runner = native_loader(path, threads=1, context=1024)(lambda _share: None).runner
    assert isinstance(runner, NativeRunner)
    runner.allocate(2 * 32)
    return runner


def step(runner: NativeRunner, sequences: int, count: int) -> float:
    """Seconds of one step."""
    pages = (START + count + PAGE - 1) // PAGE
    tables = np.arange(sequences * pages, dtype=np.int32).reshape(sequences, pages)
    tokens = np.arange(sequences * count, dtype=np.int32) % np.int32(runner.vocab)
    rows = np.arange(1, sequences + 1, dtype=np.int32) * np.int32(count) - np.int32(1)
    batch = Batch(tokens, np.full(sequences, count, np.int32), np.full(sequences, START, np.int32), tables, rows)
    begin = time.process_time()
    runner.forward(batch)
    return time.process_time() - begin


def main() -> None:
    """Print a line for every type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", default=TYPES)
    for name, default in (("layers", 4), ("rounds", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    names = [TYPES[0], *(name for name in args.types if name != TYPES[0])]
    runners = {name: load(name, args.layers) for name in names}
    weights = args.layers * (2048 * 2048 * 2 + 2048 * 512 * 2 + 3 * 2048 * 6144) + 2 * 512 * 2048
    print("type    bits " + "".join(f"{what:>20}" for what in STEPS))
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.rounds + 1):
        for name in names[:: 1 if turn % 2 else -1]:
            for what, (sequences, count) in STEPS.items():
                taken = min(step(runners[name], sequences, count) for _ in range(3))
                if turn:  # the first warms up
                    seconds.setdefault((name, what), []).append(taken)
    for name in names:
        line = f"{name:8}{runners[name].weight_bytes * 8 / weights:4.1f} "
        for what in STEPS:
            mine, theirs = seconds[name, what], seconds[TYPES[0], what]
            line += f"{min(mine) * 1e3:9.1f} ms {min(theirs) / min(mine):5.2f} x"
        print(line)


if __name__ == "__main__":
    main()
