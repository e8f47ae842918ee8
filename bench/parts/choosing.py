"""Processor time of a batch's choices in vLLM's workers, for vocabularies of some sizes: ``python -m bench.parts.choosing``.

The rows are chosen as there, on one thread, from logits that nobody looked at before. Processor time, so that a busy machine matters less.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.vllm.choose import Chooser
from quintet.backends.vllm.wire import Choose
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

ROWS, STEPS = 64, 12
CONTROLS = {
    "greedy": Sampling(0.0, 1.0, 0),
    "temperature": Sampling(0.8, 1.0, 0),
    "temperature, top_p": Sampling(0.8, 0.95, 0),
    "and penalties, top_k": Sampling(0.8, 0.95, 0, top_k=50, repetition_penalty=1.1, frequency_penalty=0.2),
}


def step_ms(vocab: int, sampling: Sampling) -> float:
    """Milliseconds of a step's choices."""
    pieces, eos = [b"x"] * vocab, frozenset({0})
    chooser = Chooser(NativeSamplers(Cpu("", 1), pieces, eos), Guides(Compiler(pieces, eos, vocab)), vocab, lambda *_: None)
    asked = PreparedSequence((1, 2, 3), 100, sampling, None, echo=False)
    rows = [chooser.enter(Choose(key, 3, asked), []) for key in range(ROWS)]
    random, times = np.random.default_rng(1), []
    for _ in range(STEPS):
        logits = random.normal(0, 3, (ROWS, vocab)).astype(np.float32)
        begin = time.process_time()
        tokens = chooser.draw(logits, rows)
        times.append(time.process_time() - begin)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.generated.append(token)
    return median(times[2:]) * 1e3


def main() -> None:
    """Print a line for each."""
    for vocab in (49_152, 128_256):
        for name, sampling in CONTROLS.items():
            print(f"{ROWS} rows of {vocab}, {name}: {step_ms(vocab, sampling):.1f} ms")


if __name__ == "__main__":
    main()
