"""Guided sequences in the engine: beside others, forked, preempted, aborted, stopped, failing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer, toy_loader
from quintet.config import EngineConfig
from quintet.errors import BadRequest
from quintet.events import Finish, TokenEvent
from quintet.guides.matcher import Matcher
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["id", "tags"],
    "additionalProperties": False,
}
JSON = Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA), "response_format")
WORDS = Guide(GuideKind.REGEX, "([a-f]{3} ){2,4}end", "grammar")


@asynccontextmanager
async def running(**config: Any) -> AsyncIterator[Engine]:
    engine = Engine(toy_loader(), replace(EngineConfig(kv_bytes=1 << 20), **config))
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        yield engine
    finally:
        await engine.close()


def spec(seed: int = 0, guide: Guide | None = JSON, prompt: str = "make: ", **wanted: Any) -> SequenceSpec:
    made = SequenceSpec(prompt, 400, Sampling(1.0, 1.0, seed), None, False, guide=guide)
    return replace(made, **wanted)


async def collect(engine: Engine, prepared: Prepared) -> list[list[TokenEvent]]:
    events: list[list[TokenEvent]] = [[] for _ in prepared.sequences]
    async for batch in engine.submit(prepared):
        for event in batch:
            events[event.seq].append(event)
    return events


async def run(engine: Engine, specs: Sequence[SequenceSpec]) -> list[tuple[str, Finish | None]]:
    return [
        (b"".join(event.piece for event in events).decode("utf-8", "replace"), events[-1].finish)
        for events in await collect(engine, await prepare(engine, specs))
    ]


@pytest.mark.fault("C12")
def test_what_stops_conforms_whatever_runs_beside_it() -> None:
    """Samples of one prompt, other guides and unguided ones in one batch, with pages for a few only: each as it is alone."""
    mixed = [spec(seed, guide, max_tokens=most) for guide, most in ((JSON, 900), (WORDS, 90), (None, 60)) for seed in range(4)]

    async def go() -> None:
        for pages in (4096, 70):
            async with running(kv_bytes=pages * 64) as engine:
                alone = [(await run(engine, [one]))[0] for one in mixed]
                assert await run(engine, mixed) == alone
                ended = [text for (text, finish), one in zip(alone, mixed, strict=True) if finish is Finish.EOS and one.guide is JSON]
                assert len(ended) >= 2
                assert all(jsonschema_rs.is_valid(SCHEMA, json.loads(text)) for text in ended)

    asyncio.run(go())


def test_greedy_and_log_probabilities_stay_the_models_own() -> None:
    """A mask changes what is drawn and not what the model thought of it."""

    async def go() -> None:
        async with running() as engine:
            free = spec(guide=None, max_tokens=1, logprobs=20, prompt="make: ")
            bound = spec(max_tokens=1, logprobs=20, prompt="make: ")
            ((unguided,), (guided,)) = await collect(engine, await prepare(engine, [free, bound]))
            assert guided.piece in b"{ \n\r\t" and guided.top == unguided.top

    asyncio.run(go())


@pytest.mark.fault("C08")
def test_a_guide_that_cannot_go_on_ends_its_sequence_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's limits per step end in such a state."""
    fill, calls = Matcher.fill, iter(range(1000))
    monkeypatch.setattr(Matcher, "fill", lambda self, mask: next(calls) < 3 and fill(self, mask))

    async def go() -> None:
        async with running() as engine:
            bound, free = await collect(engine, await prepare(engine, [spec(), spec(guide=None, max_tokens=20)]))
            assert bound[-1].finish is Finish.ERROR and "too complex" in bound[-1].error
            assert free[-1].finish in (Finish.EOS, Finish.LENGTH)
            assert engine.health().state is State.READY

    asyncio.run(go())


def test_aborts_while_a_guide_is_compiled_are_kept() -> None:
    """One sequence, then the rest: each still ends exactly once."""

    async def go() -> None:
        async with running() as engine:
            prepared = await prepare(engine, [spec(seed) for seed in range(3)])
            stream = engine.submit(prepared)
            engine.abort(prepared.request_id, 1)
            engine.abort(prepared.request_id)
            ends = [event.seq async for batch in stream for event in batch if event.finish is not None]
            assert sorted(ends) == [0, 1, 2]
            assert (await run(engine, [spec()]))[0][0].startswith("{")

    asyncio.run(go())


@pytest.mark.fault("A20")
def test_a_bad_guide_is_refused_before_anything_starts() -> None:
    async def go() -> None:
        async with running() as engine:
            before = engine.health()
            for guide in (Guide(GuideKind.REGEX, "(", "grammar"), Guide(GuideKind.JSON_SCHEMA, '{"not": {}}', "response_format")):
                with pytest.raises(BadRequest) as caught:
                    await prepare(engine, [spec(guide=guide)])
                assert caught.value.param == guide.param
            assert engine.health() == before

    asyncio.run(go())


@pytest.mark.parametrize("control", [{"min_tokens": 5}, {"min_tokens": -1}])
def test_controls_that_forbid_the_end_are_refused_beside_a_guide(control: dict[str, object]) -> None:
    async def go() -> None:
        async with running() as engine:
            with pytest.raises(BadRequest, match="combined"):
                await prepare(engine, [spec(sampling=replace(Sampling(1.0, 1.0, 0), **control))])  # type: ignore[arg-type]

    asyncio.run(go())


def test_what_is_complete_ends_though_the_end_of_sequence_is_ignored() -> None:
    """The end-of-sequence token that a guide lets come says that the text conforms: nothing could follow it."""

    async def go() -> None:
        async with running() as engine:
            colour = Guide(GuideKind.CHOICE, '["red", "green"]', "choice")
            plain = await run(engine, [spec(seed, colour) for seed in range(4)])
            ignoring = [spec(seed, colour, sampling=Sampling(1.0, 1.0, seed, ignore_eos=True)) for seed in range(4)]
            assert await run(engine, ignoring) == plain
            assert {finish for _, finish in plain} == {Finish.EOS}

    asyncio.run(go())


def test_an_engine_in_another_process_follows_the_same_guides() -> None:
    """The guide crosses as text and is compiled over there; the bytes are the same."""

    async def go() -> None:
        specs = [spec(seed, guide, max_tokens=200) for guide in (JSON, WORDS, None) for seed in range(2)]
        async with running() as engine:
            wanted = await run(engine, specs)
        config = EngineConfig(kv_bytes=1 << 20)
        engine = Engine(ProcessLink(ModelSource(path="", threads=1, context=None, name="toy"), ToyTokenizer, config), config)
        try:
            while engine.health().state is not State.READY:
                await asyncio.sleep(0.01)
            assert await run(engine, specs) == wanted
        finally:
            await engine.close()

    asyncio.run(go())
