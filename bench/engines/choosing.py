"""What choosing tokens by our rules costs in vLLM's step, against the step: ``VENV/bin/python -m bench.engines.choosing``.

The step is the matrix products of a Llama of 1.2 billion weights (without attention, norms and vLLM's own sampling, which only makes it
quicker) for as many sequences as decode together, in torch on this CPU, with all threads. Choosing is what our logits processor does with
their rows, in one thread. Both are medians, of wall-clock and of processor time. What must hold: choosing takes at most 5 % of the step's
wall-clock time. The exit code is 3 if it does not. On a GPU the rows are copied to the host besides, which is not measured here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.vllm.choose import Chooser
from quintet.backends.vllm.wire import Choose
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

HIDDEN, INNER, KEYS, LAYERS, VOCAB = 2048, 8192, 512, 16, 128256
SHARE = 0.05
CONTROLS = {
    "greedy": Sampling(0.0, 1.0, 0),
    "drawn, top_p 0.95": Sampling(0.8, 0.95, 1, seeded=True),
    "drawn, with penalties": Sampling(0.8, 0.95, 1, top_k=50, repetition_penalty=1.1, frequency_penalty=0.2),
}
PROMPT = tuple(range(300, 364))


def step(rows: int) -> Callable[[], object]:
    """A forward pass: each layer has the same weights, which no cache holds."""
    shapes = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
    layer = [torch.randn(shape) * 0.02 for shape in shapes]
    head = torch.randn((VOCAB, HIDDEN)) * 0.02
    wide, inner = torch.randn((rows, HIDDEN)), torch.randn((rows, INNER))

    def run() -> object:
        for _ in range(LAYERS):
            for weights in layer:
                torch.nn.functional.linear(inner if weights.shape[1] == INNER else wide, weights)
        return torch.nn.functional.linear(wide, head)

    return run


def choosing(rows: int, sampling: Sampling) -> Callable[[], object]:
    """Draw a token for each row."""
    pieces = [str(token).encode() for token in range(VOCAB)]
    eos = frozenset({0})
    guides = Guides(Compiler(pieces, eos, VOCAB))
    chooser = Chooser(NativeSamplers(Cpu("", 1), pieces, eos), guides, VOCAB, lambda *_: None)
    asked = PreparedSequence(PROMPT, 1000, sampling, None, echo=False)
    batch = [chooser.enter(Choose(key, len(PROMPT), asked), []) for key in range(rows)]
    logits = np.random.default_rng(1).normal(0, 3, (rows, VOCAB)).astype(np.float32)

    def run() -> object:
        tokens = chooser.draw(logits, batch).tolist()
        for row, token in zip(batch, tokens, strict=True):
            row.generated.append(token)
        return tokens

    return run


def timed(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Median milliseconds of a call: on the wall, and of processor time of all threads."""
    work()  # the first pass also pays for memory and code that are new
    found = []
    for _ in range(times):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return median(wall for wall, _ in found) * 1e3, median(processor for _, processor in found) * 1e3


def main() -> int:
    """Measure, print a line for each kind of sampling, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="sequences that decode together (default 64)")
    parser.add_argument("--times", type=int, default=5, help="steps measured (default 5)")
    options = parser.parse_args()
    whole, whole_processor = timed(step(options.rows), options.times)
    print(
        f"step of {options.rows} sequences, {torch.get_num_threads()} threads: {whole:.0f} ms, {whole_processor:.0f} ms of processor time"
    )
    well = True
    for name, sampling in CONTROLS.items():
        own, processor = timed(choosing(options.rows, sampling), options.times * 4)
        fits = own <= SHARE * whole
        well &= fits
        said = f"{own:.1f} ms ({own / whole:.2%}), {processor:.1f} ms of processor time ({processor / whole_processor:.2%})"
        print(f"choosing, {name}: {said}: {'as it must be' if fits else 'MISSED'}")
    return 0 if well else 3


if __name__ == "__main__":
    sys.exit(main())
