"""``python -m tests.clients.direct_scores MODEL OUT``: the tasks' answers scored with the native runner, without engine, server or HTTP.

Writes JSON: ``{"loglikelihood": {task: [[[sum, is_greedy], ...one per choice], ...one per document]}, "generate": [text, ...]}``. Each
sequence is one forward pass of its own; what the engine makes of batches, chunks and shared prefixes must not show.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.e2e.paged import logits_of, pages_for, run_alone, whole
from tests.support.bundled import Silent
from tests.support.loading import native_loader

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import Runner
from quintet.backends.native.worker.load import load_tokenizer
from quintet.inputs.tokenizer import Tokenizer
from quintet.models import store

DATA = Path(__file__).parent / "data"
CONTEXT = 512
MOST = 24
UNTIL = ("\n", ".")


def main(model: str, out: str) -> None:
    path = store.resolve(model, Silent(), offline=True).path
    runner = native_loader(path, threads=2, context=CONTEXT)(lambda _: None).runner
    runner.allocate(pages_for(CONTEXT))
    tokenizer = load_tokenizer(path)
    endings = rows("endings")
    pairs = {
        "quintet_facts": [[(f"Question: {row['question']}\nAnswer:", f" {one}") for one in row["choices"]] for row in rows("facts")],
        "quintet_endings": [[(row["start"], one) for one in row["endings"]] for row in endings],
    }
    scores = {task: [[loglikelihood(runner, tokenizer, *pair) for pair in doc] for doc in docs] for task, docs in pairs.items()}
    texts = [greedy(runner, tokenizer, row["start"]) for row in endings]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps({"loglikelihood": scores, "generate": texts}))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def loglikelihood(runner: Runner, tokenizer: Tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """The continuation's summed log-probability, and whether each of its tokens was the likeliest."""
    ids, start = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
    hidden = run_alone(runner, whole(np.array(ids, np.int32)))
    scores = NativeSamplers(Cpu(), tokenizer.pieces, ()).score(
        logits_of(runner, hidden[start - 1 : -1]), np.array(ids[start:], np.int32), 1
    )
    chosen = scores.chosen.tolist()
    return sum(chosen), chosen == scores.top[:, 0].tolist()


def greedy(runner: Runner, tokenizer: Tokenizer, prompt: str) -> str:
    """The likeliest token again and again, up to a stop string, the model's end, or ``MOST`` tokens."""
    ids, text = tokenizer.encode(prompt), b""
    for _ in range(MOST):
        hidden = run_alone(runner, whole(np.array(ids, np.int32)))
        ids.append(int(logits_of(runner, hidden[-1:]).argmax()))
        if ids[-1] in tokenizer.eos_ids:
            break
        text += tokenizer.pieces[ids[-1]]
        if at := [text.index(stop.encode()) for stop in UNTIL if stop.encode() in text]:
            return text[: min(at)].decode()
    return text.decode(errors="ignore")


if __name__ == "__main__":
    main(*sys.argv[1:])
