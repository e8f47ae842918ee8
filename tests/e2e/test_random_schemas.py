"""Random JSON Schemas, generated to the end on the bundled model: what stops is valid, by an independent validator.

A few in ``make test``; ``make test-schemas`` takes 2,000 and prints what became of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.reference.json_schemas import SCHEMAS, Schema
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig
from quintet.errors import BadRequest, Overloaded
from quintet.events import Finish
from quintet.guides.matcher import Compiler
from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

COUNT = int(os.environ.get("QUINTET_SCHEMAS", "30"))
AT_ONCE = 32
MAX_TOKENS = 160
PROMPT = "A short example of JSON.\n\nSchema: {schema}\nExample: "


@dataclass
class Outcomes:
    """What became of the schemas."""

    ends: Counter[str] = field(default_factory=Counter)
    invalid: list[str] = field(default_factory=list)


def schemas(count: int) -> list[Schema]:
    """Distinct ones, the same at each run."""
    found: dict[str, Schema] = {}

    every = settings(database=None, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])

    @settings(every, max_examples=2 * count, phases=[Phase.generate])
    @given(SCHEMAS)
    def collect(schema: Schema) -> None:
        found.setdefault(json.dumps(schema, sort_keys=True), schema)

    collect()
    return list(found.values())[:count]


async def complete(engine: Engine, schema: Schema, seed: int, outcomes: Outcomes) -> None:
    text = json.dumps(schema)
    guide = Guide(GuideKind.JSON_SCHEMA, text, "response_format")
    prompt = PROMPT.format(schema=text[:300])
    try:
        prepared = await prepared_when_there_is_room(
            engine, SequenceSpec(prompt, MAX_TOKENS, Sampling(0.8, 0.95, seed), None, False, guide=guide)
        )
    except BadRequest:
        outcomes.ends["refused"] += 1
        return
    events = [event async for batch in engine.submit(prepared) for event in batch]
    made = b"".join(event.piece for event in events)  # one that max_tokens ended may end within a character
    finish = events[-1].finish
    outcomes.ends[finish.name.lower() if finish else "none"] += 1
    if finish is Finish.EOS and not valid(schema, made):
        outcomes.invalid.append(f"{text}: {made!r}")


async def prepared_when_there_is_room(engine: Engine, spec: SequenceSpec) -> Prepared:
    """As a client that is told to try again does."""
    while True:
        try:
            return await prepare(engine, [spec])
        except Overloaded:
            await asyncio.sleep(1)


def valid(schema: Schema, text: bytes) -> bool:
    try:
        return jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(json.loads(text))
    except ValueError:
        return False


async def complete_all(some: list[Schema]) -> Outcomes:
    outcomes, room = Outcomes(), asyncio.Semaphore(AT_ONCE)
    engine = Engine(native_loader(bundled_path(), threads=2, context=1024), EngineConfig(kv_bytes=1 << 28))

    async def one(seed: int, schema: Schema) -> None:
        async with room:
            await complete(engine, schema, seed, outcomes)

    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(one(seed, schema) for seed, schema in enumerate(some)))
    finally:
        await engine.close()
    return outcomes


@pytest.mark.fault("H10")
@pytest.mark.timeout(3600)
def test_what_the_bundled_model_ends_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = asyncio.run(complete_all(schemas(COUNT)))
    with capsys.disabled():
        print(f"\n{COUNT} schemas: {dict(outcomes.ends)}, invalid {len(outcomes.invalid)}")
    assert outcomes.invalid == []
    assert set(outcomes.ends) <= {"eos", "length", "refused"}
    assert outcomes.ends["eos"] > COUNT / 4
    assert outcomes.ends["refused"] < COUNT / 2


def compile_times(some: list[Schema]) -> list[float]:
    """Processor seconds to check each that is not refused, and to compile it for the model's vocabulary."""
    loaded = native_loader(bundled_path(), threads=1, context=64)(lambda _: None)
    guides = Compiler(loaded.tokenizer.pieces, loaded.tokenizer.eos_ids, loaded.runner.vocab)
    guides.compile(translate(GuideKind.JSON_OBJECT, ""))  # what all share
    taken = []
    for schema in some:
        begin = time.process_time()
        try:
            grammar = translate(GuideKind.JSON_SCHEMA, json.dumps(schema))
            verify(GuideKind.JSON_SCHEMA, grammar)
        except GuideError:
            continue
        assert not guides.compile(grammar).error
        taken.append(time.process_time() - begin)
    return sorted(taken)


def test_compiling_takes_half_a_second_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the processor's time, for 99 of a hundred; longer ones are refused by the process that checks them."""
    taken = compile_times(schemas(COUNT))
    half, most = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    with capsys.disabled():
        print(f"\n{len(taken)} schemas compiled: {half * 1000:.1f} ms at the median, {most * 1000:.1f} ms at the 99th percentile")
    assert most < 0.5
