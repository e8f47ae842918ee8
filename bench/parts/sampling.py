"""What each sampling control costs: microseconds per token and its share of a step of the model.

    python -m bench.parts.sampling [MODEL.gguf] [--repeats 30]

With a model, logits are its own, of a text that it goes on with, and a step of it is timed in the same run; then a vocabulary of
152,064 (Qwen's) is timed on the same logits with more like the lower half of them. Without a model they are made up: normal,
with a few likely tokens. Every row has a prompt of 200 tokens and 100 of output. The median of the repeats counts; the threads are
the core's own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from tests.support.loading import native_loader

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import F32, I32, Batch, Runner, Sampler, Samplers
from quintet.request import Dry, Sampling

ROWS = (1, 8, 32)
VOCABS = (49_152, 152_064)
PROMPT, OUTPUT = 200, 100

PLAIN = Sampling(0.8, 1.0, 0)
CONTROLS: dict[str, Sampling] = {
    "greedy": replace(PLAIN, temperature=0.0),
    "temperature": PLAIN,
    "top_k 50": replace(PLAIN, top_k=50),
    "top_p 0.95": replace(PLAIN, top_p=0.95),
    "min_p 0.05": replace(PLAIN, min_p=0.05),
    "typical_p 0.9": replace(PLAIN, typical_p=0.9),
    "top_n_sigma 1": replace(PLAIN, top_n_sigma=1.0),
    "xtc": replace(PLAIN, xtc_probability=0.5),
    "mirostat": replace(PLAIN, mirostat_target=5.0),
    "logit_bias, 300": replace(PLAIN, logit_bias=tuple((token, 1.0) for token in range(300))),
    "allowed_token_ids, 1000": replace(PLAIN, allowed_token_ids=tuple(range(1000))),
    "min_tokens": replace(PLAIN, min_tokens=10_000),
    "repetition_penalty": replace(PLAIN, repetition_penalty=1.1),
    "frequency, presence": replace(PLAIN, frequency_penalty=0.2, presence_penalty=0.2),
    "dry": replace(PLAIN, dry=Dry(0.8)),
    "all penalties, top_k, top_p": replace(
        PLAIN, top_p=0.95, top_k=50, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.2, dry=Dry(0.8)
    ),
}


def made_up(rows: int, vocab: int) -> F32:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(rows, vocab)).astype(np.float32) * np.float32(2)
    logits[:, rng.integers(0, vocab, 20)] += np.float32(14)
    return logits


def widened(logits: F32, vocab: int) -> F32:
    """Logits of a wider vocabulary: the same, and more like the unlikely half of them."""
    low = np.sort(logits, axis=1)[:, : logits.shape[1] // 2]
    more = np.tile(low, (1, -(-vocab // low.shape[1])))[:, : max(0, vocab - logits.shape[1])]
    return np.ascontiguousarray(np.concatenate([logits[:, :vocab], more], axis=1))


def timed(work: Callable[[], object], repeats: int) -> float:
    """Microseconds, the median."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e6


def made(samplers: Samplers, sampling: Sampling, row: int) -> Sampler:
    rng = np.random.default_rng(row)
    sampler = samplers.make(replace(sampling, seed=row), (), rng.integers(0, 5000, PROMPT).tolist())
    for token in rng.integers(0, 5000, OUTPUT).tolist():
        sampler.accept(token)
    return sampler


class Stepping:
    """A model with sequences that decode, for logits and the time of a step."""

    def __init__(self, path: Path) -> None:
        loaded = native_loader(path, threads=2, context=512)(lambda _: None)
        self.runner: Runner = loaded.runner
        text = "The history of the city begins with a small village on the river, and every year since then"
        self._prompt = loaded.tokenizer.encode(text)
        pages = 512 // PAGE
        self._tables: I32 = np.arange(max(ROWS) * pages, dtype=np.int32).reshape(max(ROWS), pages)
        self.runner.allocate(self._tables.size)
        for row in range(max(ROWS)):
            self._forward([row], 0, self._prompt[row % 5 :] + self._prompt[: row % 5])

    def _forward(self, rows: list[int], start: int, tokens: list[int]) -> F32:
        each = len(tokens) // len(rows)
        lengths, starts = np.full(len(rows), each, np.int32), np.full(len(rows), start, np.int32)
        ends = np.cumsum(lengths, dtype=np.int32) - np.int32(1)
        return self.runner.logits(self.runner.forward(Batch(np.array(tokens, np.int32), lengths, starts, self._tables[rows], ends)))

    def step(self, rows: int) -> F32:
        """Logits [rows, V] of a decode step after the prompts."""
        tokens = [self._prompt[row % len(self._prompt)] for row in range(rows)]
        return self._forward(list(range(rows)), len(self._prompt), tokens)


def report(name: str, micros: float, rows: int, step: float | None) -> None:
    share = "" if step is None else f"{micros / step:8.1%}"
    print(f"  {name:28} {micros / rows:9.1f} us/token {micros / 1000:8.3f} ms {share}")


def measure(logits: F32, step: float | None, repeats: int) -> None:
    rows, vocab = logits.shape
    print(f"{rows} rows, vocabulary {vocab}" + ("" if step is None else f"; a step takes {step / 1000:.2f} ms"))
    samplers = NativeSamplers(Cpu(threads=2), [b"word"] * vocab, (0,))
    positions = np.arange(PROMPT + OUTPUT, PROMPT + OUTPUT + rows, dtype=np.uint64)
    for name, sampling in CONTROLS.items():
        all_rows = [made(samplers, sampling, row) for row in range(rows)]
        report(name, timed(partial(samplers.draw, logits, all_rows, positions), repeats), rows, step)
    plain = [made(samplers, PLAIN, row) for row in range(rows)]
    masks = np.random.default_rng(1).integers(0, 2**32, (rows, -(-vocab // 32)), dtype=np.uint32)
    report("guide's mask, half", timed(lambda: samplers.draw(logits, plain, positions, masks), repeats), rows, step)
    for k in (0, 5, 20):
        report(f"log-probabilities, top {k}", timed(partial(samplers.score, logits, np.zeros(rows, np.int32), k), repeats), rows, step)
    told = partial(samplers.draw, logits, plain, positions, alternatives=np.full(rows, 5, np.int32))
    report("temperature, with top 5", timed(told, repeats), rows, step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    model = Stepping(args.model) if args.model else None
    for vocab in VOCABS:
        for rows in ROWS:
            own = model.step(rows).copy() if model else made_up(rows, vocab)
            fits = model is not None and own.shape[1] == vocab
            step = timed(partial(model.step, rows), args.repeats) if model and fits else None
            measure(own if own.shape[1] == vocab else widened(own, vocab), step, args.repeats)


if __name__ == "__main__":
    main()
