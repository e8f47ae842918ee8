"""Same request, same bytes, whatever happens around it: load, cancels, preemption, cache, drafts. 4,000 times in ``make test-repeats``."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.support.bundled import bundled_path
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.worker.load import native_loader
from quintet.config import EngineConfig
from quintet.events import TokenEvent
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

REPEATS = int(os.environ.get("QUINTET_TEST_REPEATS", "2"))
PROMPTS = 20 if REPEATS > 20 else 7
PAGES = 14
"""So few that three of these requests fill them. A page of the bundled model is 30 layers of 16 keys and values, and hidden rows."""

TEXTS = (
    "The sky is blue because the light of the sun is scattered by the air, and blue light more than red light. In the evening",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\ndef factorial(n):\n",
    "one two three four five one two three four five one two three",
    "Once upon a time there was a small server. " * 4,
    "A list of fruit: apple, pear, plum, cherry, peach, grape, lemon, orange, banana. A list of animals: cat, dog, cow, horse,",
)
GUIDE = Guide(GuideKind.REGEX, r"[a-z]{3,9}( [a-z]{1,9}){3,9}\.", "grammar")
CONTROLS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "frequency_penalty": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2},
)


def question(number: int) -> SequenceSpec:
    """One of the prompts, with controls of its own."""
    text = f"{TEXTS[number % len(TEXTS)]} {'' if number < len(TEXTS) else number}"
    controls = {"top_p": 1.0, "seed": number, **CONTROLS[number % len(CONTROLS)]}
    guide = GUIDE if number % 7 == 6 else None
    return SequenceSpec(text, 24, Sampling(**controls), 3, echo=number % 3 == 1, guide=guide)  # type: ignore[arg-type]


def told(events: list[TokenEvent]) -> tuple[object, ...]:
    """All that a client gets, log-probabilities to the bit."""
    return tuple((event.token, event.piece, event.logprob, event.top, event.prompt, event.finish) for event in events)


class Crowd:
    """Asks every question many times, in any order and company, and others that are called off.

    Args:
        answers: of each question, all that came back.
    """

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine, self._rng = engine, rng
        self.answers: list[Counter[tuple[object, ...]]] = [Counter() for _ in range(PROMPTS)]

    async def run(self) -> None:
        todo = [number for number in range(PROMPTS) for _ in range(REPEATS)]
        self._rng.shuffle(todo)
        clients = [asyncio.create_task(self._client(todo)) for _ in range(10)]
        strangers = [asyncio.create_task(self._stranger()) for _ in range(3)]
        await asyncio.gather(*clients)
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)

    async def _client(self, todo: list[int]) -> None:
        while todo:
            number = todo.pop()
            salt = self._rng.choice(("", "", f"nobody else's {len(todo)}"))  # from the cache, or not
            asked = replace(question(number), cache_salt=salt)
            others = [replace(asked, sampling=replace(asked.sampling, seed=99 + other)) for other in range(self._rng.choice((0, 0, 2)))]
            prepared = await prepare(self._engine, [asked, *others])
            events = [event async for batch in self._engine.submit(prepared) for event in batch if event.seq == 0]
            self.answers[number][told(events)] += 1

    async def _stranger(self) -> None:
        """Comes, takes room, and goes before it is served."""
        while True:
            text = " ".join(self._rng.choices(["some", "other", "words", "that", "nobody", "asked", "for"], k=self._rng.choice((3, 60))))
            prepared = await prepare(self._engine, [SequenceSpec(text, 60, Sampling(1.0, 1.0, 5), None, echo=False)] * 2)
            stream = self._engine.submit(prepared)
            try:
                async with asyncio.timeout(self._rng.choice((0.01, 0.05, 0.2))):
                    async for _ in stream:
                        pass
            except TimeoutError:
                pass
            finally:
                self._engine.abort(prepared.request_id)


async def ask_all(page_bytes: int, speculation: bool) -> tuple[list[Counter[tuple[object, ...]]], Engine]:
    config = EngineConfig(kv_bytes=PAGES * page_bytes, batch_tokens=64, max_running=12, speculation=speculation)
    engine = Engine(native_loader(bundled_path(), threads=2, context=None), config)
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.01)
        crowd = Crowd(engine, random.Random(REPEATS))
        await crowd.run()
        while engine.live:
            await asyncio.sleep(0.001)
        return crowd.answers, engine
    finally:
        await engine.close()


@pytest.mark.fault("C12", "H01", "H02", "H04")
def test_every_prompt_has_one_answer_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    """10 clients and 3 that come and go, on a KV cache that is too small for them; half of it without drafts."""
    page_bytes = native_loader(bundled_path(), threads=1, context=None)(lambda _: None).runner.page_bytes
    answers, lines = [Counter[tuple[object, ...]]() for _ in range(PROMPTS)], []
    for speculation in (True, False):
        more, engine = asyncio.run(ask_all(page_bytes, speculation))
        for counter, other in zip(answers, more, strict=True):
            counter.update(other)
        health = engine.health()
        counts = health.counts
        assert counts.preempted > 0 and counts.found > 0, "else this shows less than it says"
        assert health.pages.used == 0
        lines.append(f"{counts.steps} steps, {counts.preempted} preemptions, {counts.found} of {counts.queried} prompt tokens cached")
    assert [counter.total() for counter in answers] == [2 * REPEATS] * PROMPTS
    assert [len(counter) for counter in answers] == [1] * PROMPTS, "one answer each"
    assert len({answer for counter in answers for answer in counter}) == PROMPTS
    with capsys.disabled():
        print(f" {PROMPTS} prompts × {2 * REPEATS}: one answer each; {'; '.join(lines)}", end="")
