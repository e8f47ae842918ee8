"""The engine around the scheduler: loading, health, failures, and what crosses between the threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.core.types import U8, Batch, Meanwhile
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.link import ThreadLink
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.toy import VOCAB, ToyRunner, ToyTokenizer
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, Loading, ModelError, Overloaded
from quintet.events import Finish, TokenEvent
from quintet.inputs.prepare import INLINE_CHARS
from quintet.inputs.sequence import SequenceSpec
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.traits import Traits
from quintet.request import Prompt, Sampling

PIECES = ToyTokenizer().pieces
CONFIG = EngineConfig(kv_bytes=1 << 20, batch_tokens=64, max_running=8, max_waiting=8, max_sequences=8)


def spec(prompt: Prompt = "hello", max_tokens: int = 5) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(0.0, 1.0, 0), None, echo=False)


def loader(runner: ToyRunner | None = None, tokenizer: ToyTokenizer | None = None) -> Loader[Tokenizer]:
    return lambda _: Loaded(runner or ToyRunner(), tokenizer or ToyTokenizer(), name="toy", fingerprint="fp")


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gate(ToyRunner):
    """A runner whose steps wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        self.entered.set()
        assert self.open.wait(120)
        return super().forward(batch, meanwhile)


class Allergic(ToyRunner):
    """A runner that rejects every batch with a Z in it."""

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        if (batch.tokens == ord("Z")).any():
            raise ValueError("Z")
        return super().forward(batch, meanwhile)


def play(
    scenario: Callable[[Engine], Awaitable[None]], load: Loader[Tokenizer], config: EngineConfig = CONFIG, clock: Clock | None = None
) -> None:
    """Run a scenario on an engine that has just begun to load."""

    async def whole() -> None:
        async with asyncio.timeout(120):
            engine = Engine(load, config, clock=clock or Clock())
            try:
                await scenario(engine)
            finally:
                await engine.close()

    asyncio.run(whole())


def worker_thread(engine: Engine) -> threading.Thread:
    link = engine._supervisor._link
    assert isinstance(link, ThreadLink)
    assert link.thread is not None
    return link.thread


async def until(engine: Engine, *states: State) -> None:
    while engine.health().state not in states:
        await asyncio.sleep(0.001)


async def answer(engine: Engine, *specs: SequenceSpec) -> list[TokenEvent]:
    return [event async for batch in engine.submit(await prepare(engine, specs)) for event in batch]


# ---- loading


def test_while_it_loads_it_says_so_and_takes_no_work() -> None:
    go_on = threading.Event()

    def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        progress(0.25)
        assert go_on.wait(120)
        return loader()(progress)

    async def scenario(engine: Engine) -> None:
        while engine.health().progress == 0:
            await asyncio.sleep(0.001)
        assert (engine.health().state, engine.health().progress) == (State.LOADING, 0.25)
        with pytest.raises(Loading, match="still loading"):
            await prepare(engine, [spec()])
        with pytest.raises(Loading):
            _ = engine.capabilities
        go_on.set()
        await until(engine, State.READY)
        assert engine.health().progress == 1.0
        assert engine.capabilities.model == "toy"

    play(scenario, load)


def refused(_: Callable[[float], None]) -> Loaded[Tokenizer]:
    raise ModelError("no such file")


@pytest.mark.parametrize(("load", "kv_bytes"), [(refused, 1 << 20), (loader(), 63)], ids=["model", "kv_bytes"])
def test_an_engine_that_could_not_load_is_dead_and_says_so(load: Loader[Tokenizer], kv_bytes: int) -> None:
    async def scenario(engine: Engine) -> None:
        await until(engine, State.DEAD)
        with pytest.raises(EngineFailed):
            await prepare(engine, [spec()])

    play(scenario, load, EngineConfig(kv_bytes=kv_bytes))


def test_closing_calls_a_load_off_at_its_next_report() -> None:
    reports = []

    def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        while True:
            progress(0.5)
            reports.append(0.5)
            assert len(reports) < 10**6

    async def scenario(engine: Engine) -> None:
        while not reports:
            await asyncio.sleep(0.001)
        await engine.close()
        assert engine.health().state is State.CLOSED

    play(scenario, load)


def test_the_context_is_what_the_kv_memory_can_hold() -> None:
    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        assert engine.capabilities.context == 3 * 16
        events = await answer(engine, spec((5,) * 20, 28))
        assert events[-1].finish in (Finish.LENGTH, Finish.EOS)

    play(scenario, loader(), EngineConfig(kv_bytes=3 * 64 + 63))


def test_ids_that_only_the_logits_have_are_valid_and_have_no_text() -> None:
    class Short(ToyTokenizer):
        @property
        def pieces(self) -> Sequence[bytes]:
            return super().pieces[:100]

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        assert len(engine.capabilities.pieces) == VOCAB
        assert {event.piece for event in await answer(engine, spec((250,), 5)) if event.token >= 100} <= {b""}

    play(scenario, loader(tokenizer=Short()))


# ---- failures


@pytest.mark.fault("C06")
def test_a_rejected_batch_ends_its_sequences_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        before = await answer(engine, spec("good"))
        (end,) = await answer(engine, spec("baZd"))
        assert end.finish is Finish.ERROR
        assert end.error
        assert "Z" not in end.error
        assert [event.token for event in await answer(engine, spec("good"))] == [event.token for event in before]
        assert engine.health().state is State.READY

    play(scenario, loader(Allergic()))
    assert "a step of 1 sequence of one request failed" in caplog.text


@pytest.mark.fault("C07")
def test_when_the_engine_itself_breaks_every_stream_ends_and_health_says_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        monkeypatch.setattr(Scheduler, "plan", broken)
        events = await answer(engine, spec(), spec())
        assert [(event.seq, event.finish) for event in events] == [(0, Finish.ERROR), (1, Finish.ERROR)]
        assert engine.health().state is State.DEAD
        with pytest.raises(EngineFailed):
            await prepare(engine, [spec()])
        engine.abort(1)

    play(scenario, loader())
    assert "the engine died" in caplog.text


def test_closing_while_a_step_runs_ends_the_streams_at_once() -> None:
    gate = Gate()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        work = asyncio.create_task(answer(engine, spec(), spec("b")))
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(engine.close())
        assert [(event.seq, event.finish) for event in await work] == [(0, Finish.ABORT), (1, Finish.ABORT)]
        gate.open.set()
        await closing
        assert not worker_thread(engine).is_alive()

    play(scenario, loader(gate))


def test_requests_that_are_tokenised_while_the_queue_fills_are_refused_in_prepare() -> None:
    """Room is checked when tokenising is done as well, with nothing between that and submit."""
    gate = Gate()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        late = asyncio.create_task(prepare(engine, [spec("x" * (INLINE_CHARS - 100))] + [spec("y" * 200)] * 7))
        await asyncio.sleep(0)
        for index in range(2):
            engine.submit(await prepare(engine, [spec(f"{index}")] * 8))
        with pytest.raises(Overloaded):
            await late
        gate.open.set()

    play(scenario, loader(gate), EngineConfig(kv_bytes=1 << 20, batch_tokens=8, max_running=8, max_waiting=8, max_sequences=8))


# ---- crossing threads


def test_equal_texts_are_tokenised_once_and_long_ones_off_the_event_loop() -> None:
    seen: list[tuple[int, str]] = []

    class Watched(ToyTokenizer):
        def __init__(self) -> None:
            self.traits = Traits()  # no text is too long by its bytes alone

        def encode(self, text: str) -> list[int]:
            seen.append((len(text), threading.current_thread().name))
            return [1]

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        await prepare(engine, [spec("short")] * 3)
        await prepare(engine, [spec("x" * (INLINE_CHARS + 1))] * 3)

    play(scenario, loader(tokenizer=Watched()))
    assert seen[0] == (5, "MainThread")
    assert [length for length, _ in seen] == [5, INLINE_CHARS + 1]
    assert seen[1][1] != "MainThread"


def test_the_event_loop_is_woken_once_per_step_however_many_sequences_run() -> None:
    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        loop = asyncio.get_running_loop()
        wakes = 0
        call = loop.call_soon_threadsafe

        def counted(*args: object) -> object:
            nonlocal wakes
            wakes += threading.current_thread().name == "quintet-engine"
            return call(*args)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        prepared = await prepare(engine, [spec(f"{index}", 20) for index in range(8)])
        async for _ in engine.submit(prepared):
            pass
        steps = engine.health().counts.steps
        assert 1 < steps <= 30
        assert steps <= wakes <= steps + 1

    play(scenario, loader())


def test_a_forgotten_engine_ends_with_its_event_loop() -> None:
    """The worker finds nobody to tell and stops; nothing is raised in its thread."""
    gate = Gate()

    async def forget() -> Engine:
        engine = Engine(loader(gate), CONFIG)
        await until(engine, State.READY)
        engine.submit(await prepare(engine, [spec()]))
        return engine

    engine = asyncio.run(forget())
    gate.open.set()
    worker_thread(engine).join(30)
    assert not worker_thread(engine).is_alive()
