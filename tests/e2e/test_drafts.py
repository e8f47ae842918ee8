"""On the bundled model: with drafts and without, the same tokens and the same log-probabilities, and fewer steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

TEXT = "The keeper climbed the stairs, cleaned the glass with a soft cloth, and lit the lamp at half past six, as he did every evening."
COPY = f"{TEXT}\n\nThe same text again, word for word:\n\n{TEXT[:20]}"
KEYS = ("first_name", "family_name", "age_in_years", "is_a_customer")
FIXED = {
    "type": "object",
    "properties": {
        **{key: {"enum": ["Ada", "Grace", "Lovelace", "Hopper"]} for key in KEYS[:2]},
        KEYS[2]: {"type": "integer", "minimum": 1, "maximum": 99},
        KEYS[3]: {"type": "boolean"},
    },
    "required": [*KEYS],
    "additionalProperties": False,
}
GUIDE = Guide(GuideKind.JSON_SCHEMA, json.dumps(FIXED), "response_format")


def spec(prompt: str, max_tokens: int, temperature: float, seed: int = 0, **controls: float) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(temperature, 1.0, seed, **controls), 2, False)  # type: ignore[arg-type]


CASES: dict[str, list[SequenceSpec]] = {
    "copy": [spec(COPY, 40, 0.0)],
    "copy with penalties": [spec(COPY, 40, 0.7, 3, repetition_penalty=1.05, frequency_penalty=0.1, presence_penalty=0.1)],
    "copy with mirostat": [spec(COPY, 30, 1.0, 4, mirostat_target=3.0)],
    "four samples": [spec(COPY, 30, 0.5, seed) for seed in range(4)],
    "fixed keys": [replace(spec("Ada, as JSON: ", 70, 0.0), guide=GUIDE)],
    "fixed keys, four samples": [replace(spec("A person, as JSON: ", 70, 0.9, seed), guide=GUIDE) for seed in range(4)],
}

Told = list[list[tuple[object, ...]]]


async def told(engine: Engine, specs: Sequence[SequenceSpec]) -> Told:
    found: Told = [[] for _ in specs]
    async for batch in engine.submit(await prepare(engine, specs)):
        for event in batch:
            found[event.seq].append((event.token, event.logprob, event.top, event.finish))
    return found


def outcome(*, speculation: bool) -> dict[str, tuple[Told, int, int]]:
    """What each case gives, in how many steps, and how many drafted tokens were accepted."""

    async def go() -> dict[str, tuple[Told, int, int]]:
        engine = Engine(native_loader(bundled_path(), threads=2, context=512), EngineConfig(kv_bytes=64 << 20, speculation=speculation))
        try:
            while engine.health().state is State.LOADING:
                await asyncio.sleep(0.01)
            found = {}
            for name, specs in CASES.items():
                before = engine.health().counts
                told_here = await told(engine, specs)
                after = engine.health().counts
                found[name] = told_here, after.steps - before.steps, after.accepted - before.accepted
            return found
        finally:
            await engine.close()

    return asyncio.run(go())


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, tuple[Told, int, int]], dict[str, tuple[Told, int, int]]]:
    return outcome(speculation=True), outcome(speculation=False)


@pytest.mark.parametrize("name", CASES)
def test_drafts_change_no_token_and_no_log_probability(
    name: str, outcomes: tuple[dict[str, tuple[Told, int, int]], dict[str, tuple[Told, int, int]]]
) -> None:
    (with_drafts, steps, accepted), (without, plain_steps, none) = outcomes[0][name], outcomes[1][name]
    assert with_drafts == without
    assert none == 0 < accepted
    assert steps < plain_steps


@pytest.mark.parametrize(("name", "most"), [("copy", 0.6), ("fixed keys", 0.7)])
def test_what_is_foreseeable_takes_few_steps(
    name: str, most: float, outcomes: tuple[dict[str, tuple[Told, int, int]], dict[str, tuple[Told, int, int]]]
) -> None:
    assert outcomes[0][name][1] <= most * outcomes[1][name][1]


def test_a_clients_prediction_changes_no_token_and_saves_steps_as_far_as_it_is_right() -> None:
    plain = spec("The lamp went out, and the keeper", 40, 0.8, 11)

    async def go() -> None:
        engine = Engine(native_loader(bundled_path(), threads=2, context=512), EngineConfig(kv_bytes=64 << 20))
        try:
            while engine.health().state is State.LOADING:
                await asyncio.sleep(0.01)

            async def steps(prediction: tuple[int, ...]) -> tuple[Told, int]:
                before = engine.health().counts.steps
                return await told(engine, [replace(plain, prediction=prediction)]), engine.health().counts.steps - before

            without, many = await steps(())
            ids = tuple(int(str(token)) for token, *_ in without[0])
            assert len(ids) == 40
            right, few = await steps(ids)
            edited, some = await steps((*ids[:12], 17, 18, *ids[14:]))
            wrong, most = await steps(tuple(reversed(ids)))
            assert right == edited == wrong == without
            assert few <= 0.4 * many, "most steps draw several tokens"
            assert few <= some < many
            assert most <= many
        finally:
            await engine.close()

    asyncio.run(go())
