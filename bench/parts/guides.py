"""What a JSON schema costs: tokens per second with and without one, at 32 sequences and at one, and the processor's time per mask.

    python -m bench.parts.guides MODEL.gguf [--tokens 128] [--repeats 5]

The schema asks for a list that is too long to end within the tokens, so that all decode the same number. Rounds alternate, and the
median of the repeats counts. One sequence alone also shows what drafting the text that has only one way on is worth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.support.loading import native_loader
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.worker.load import load_tokenizer
from quintet.config import EngineConfig
from quintet.guides.matcher import Compiler
from quintet.guides.translate import translate
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

ROWS = (32, 1)
PROMPT = "Ten people and where they live, as JSON: "
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "minLength": 3, "maxLength": 12},
        "last_name": {"type": "string", "minLength": 3, "maxLength": 12},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "city": {"enum": ["Amsterdam", "Berlin", "Lisbon", "Oslo"]},
    },
    "required": ["first_name", "last_name", "age", "city"],
    "additionalProperties": False,
}
SCHEMA = Guide(GuideKind.JSON_SCHEMA, json.dumps({"type": "array", "items": PERSON, "minItems": 500}), "response_format")
ANSWER = (
    '[{"first_name": "Anna", "last_name": "Johansson", "age": 42, "city": "Oslo"}, {"first_name": "Joao", "last_name": "Silva", "age": 37,'
)


def spec(seed: int, guide: Guide | None, tokens: int) -> SequenceSpec:
    sampling = Sampling(0.8, 0.95, seed, top_k=50, ignore_eos=guide is None)
    return SequenceSpec(PROMPT, tokens, sampling, None, False, guide=guide)


async def rate(engine: Engine, guide: Guide | None, rows: int, tokens: int) -> float:
    """Tokens per second from the first token of the batch to the last."""
    prepared = await prepare(engine, [spec(seed, guide, tokens) for seed in range(rows)])
    count, begin = 0, 0.0
    async for batch in engine.submit(prepared):
        begin = begin or time.perf_counter()
        count += sum(event.token >= 0 for event in batch)
    return count / (time.perf_counter() - begin)


async def measure(path: Path, threads: int, tokens: int, repeats: int) -> None:
    engine = Engine(native_loader(path, threads=threads, context=1024), EngineConfig(kv_bytes=1 << 28))
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.01)
        for rows in ROWS:
            rates: dict[Guide | None, list[float]] = {None: [], SCHEMA: []}
            for guide in [*rates, *list(rates) * repeats]:  # the first round warms up
                rates[guide].append(await rate(engine, guide, rows, tokens))
            free, bound = (statistics.median(found[1:]) for found in rates.values())
            print(f"{rows:3} rows: {free:7.1f} tokens/s unconstrained, {bound:7.1f} by a JSON schema: {bound / free:.1%}")
    finally:
        await engine.close()


def mask_costs(path: Path, repeats: int) -> None:
    """Of the processor, in a thread alone, for a text that a model might write."""
    tokenizer = load_tokenizer(path)
    pieces = [bytes(piece) for piece in tokenizer.pieces]
    guides = Compiler(pieces, tokenizer.eos_ids, len(pieces))
    grammar, tokens = translate(SCHEMA.kind, SCHEMA.text), tokenizer.encode_inside(ANSWER)
    each = [walk(guides, grammar, tokens) for _ in range(repeats)]
    fill, consume = (statistics.median(part) / len(tokens) * 1e6 for part in zip(*each, strict=True))
    print(f"a mask of {len(pieces)} tokens: {fill:.1f} us of the processor to compute, {consume:.1f} us to go on by a token")


def walk(guides: Compiler, grammar: str, tokens: Sequence[int]) -> tuple[float, float]:
    """Seconds in which masks were computed, and in which the text went on."""
    matcher, mask = guides.compile(grammar), np.zeros(-(-len(guides.pieces) // 32), np.uint32)
    fill = consume = 0.0
    for token in tokens:
        begin = time.thread_time()
        matcher.fill(mask)
        between = time.thread_time()
        if not matcher.consume(token):
            raise ValueError("the text does not conform")
        fill, consume = fill + between - begin, consume + time.thread_time() - between
    return fill, consume


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    mask_costs(args.model, args.repeats)
    asyncio.run(measure(args.model, args.threads, args.tokens, args.repeats))


if __name__ == "__main__":
    main()
