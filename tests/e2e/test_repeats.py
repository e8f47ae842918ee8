"""Same request, same bytes, whatever happens around it: load, cancels, preemption, cache, drafts. 4,000 times in ``make test-repeats``."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from hashlib import blake2b

import pytest
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader
from tests.support.preparing import prepare

from quintet.backends.base import Health, State
from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig
from quintet.errors import PromptTooLong
from quintet.events import TokenEvent
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

REPEATS = int(os.environ.get("QUINTET_TEST_REPEATS", "4"))
"""Answers to each prompt."""

SEED = int(os.environ.get("QUINTET_REPEATS_SEED", "1"))
"""Of who asks what when, beside whom."""

MANY = REPEATS >= 100
PROMPTS = 20 if MANY else 7


@dataclass(frozen=True, slots=True)
class Load:
    """An engine, and who asks it.

    Args:
        share: of all answers.
        pages: of the KV cache. One of the bundled model is 30 layers of 16 keys and values, and hidden rows.
        clients: who wait for an answer at the same time.
        tokens: of an answer.
    """

    share: float
    pages: int
    batch_tokens: int
    max_running: int
    clients: int
    tokens: int
    speculation: bool


LOADS = (
    Load(0.01, 14, 64, 12, 10, 24, True),  # three of these requests fill its pages
    Load(0.01, 14, 64, 12, 10, 24, False),
    Load(0.03, 200, 128, 8, 4, 24, True),  # so few that tokens are drafted
    Load(0.95, 600, 256, 64, 48, 8, False),
)

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


def question(number: int, tokens: int) -> SequenceSpec:
    """One of the prompts, with controls of its own."""
    text = f"{TEXTS[number % len(TEXTS)]} {'' if number < len(TEXTS) else number}"
    controls = {"top_p": 1.0, "seed": number, **CONTROLS[number % len(CONTROLS)]}
    guide = GUIDE if number % 7 == 6 else None
    return SequenceSpec(text, tokens, Sampling(**controls), 3, echo=number % 4 == 1, guide=guide)  # type: ignore[arg-type]


def told(events: list[TokenEvent]) -> tuple[object, ...]:
    """All that a client gets, log-probabilities to the bit."""
    return tuple((event.token, event.piece, event.logprob, event.top, event.prompt, event.finish) for event in events)


class Crowd:
    """Asks every question many times, in any order and company, and others that are called off.

    Args:
        answers: of each question, all that came back.
    """

    def __init__(self, engine: Engine, load: Load) -> None:
        self._engine, self._load, self._rng = engine, load, random.Random(f"{SEED}/{load}")
        self.answers: list[Counter[tuple[object, ...]]] = [Counter() for _ in range(PROMPTS)]

    async def run(self, repeats: int) -> None:
        todo = [number for number in range(PROMPTS) for _ in range(repeats)]
        self._rng.shuffle(todo)
        await asyncio.gather(*(self._client(todo) for _ in range(self._load.clients)))

    async def _client(self, todo: list[int]) -> None:
        while todo:
            number = todo.pop()
            if self._happens(24):
                await self._stranger()
            salt = f"nobody else's {len(todo)}" if self._happens(16) else ""  # from the cache, or not
            asked = replace(question(number, self._load.tokens), cache_salt=salt)
            others = [replace(asked, sampling=replace(asked.sampling, seed=99 + other)) for other in range(2 * self._happens(16))]
            prepared = await prepare(self._engine, [asked, *others])
            events = [event async for batch in self._engine.submit(prepared) for event in batch if event.seq == 0]
            self.answers[number][told(events)] += 1

    def _happens(self, once_in: int) -> bool:
        return self._rng.randrange(once_in) == 0

    async def _stranger(self) -> None:
        """Comes, takes room, and goes before it is served, or soon after."""
        words = self._rng.choice((3, 3, 3, 60, 60, 60, 60, 400))
        text = " ".join(self._rng.choices(["some", "other", "words", "that", "nobody", "asked", "for"], k=words))
        try:
            prepared = await prepare(self._engine, [SequenceSpec(text, 60, Sampling(1.0, 1.0, 5), None, echo=False)] * 2)
        except PromptTooLong:  # for the smallest of the caches
            return
        await self._leave(prepared, after=self._rng.randrange(6))

    async def _leave(self, prepared: Prepared, after: int) -> None:
        try:
            async for _ in self._engine.submit(prepared):
                if not after:
                    break
                after -= 1
        finally:
            self._engine.abort(prepared.request_id)


async def ask_all(page_bytes: int, load: Load, repeats: int) -> tuple[list[Counter[tuple[object, ...]]], Health]:
    """The answers to so many of each question."""
    config = EngineConfig(
        kv_bytes=load.pages * page_bytes, batch_tokens=load.batch_tokens, max_running=load.max_running, speculation=load.speculation
    )
    engine = Engine(native_loader(bundled_path(), threads=2, context=None), config)
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.01)
        crowd = Crowd(engine, load)
        await crowd.run(repeats)
        while engine.live:
            await asyncio.sleep(0.001)
        return crowd.answers, engine.health()
    finally:
        await engine.close()


@pytest.mark.fault("C12", "H01", "H02", "H04")
def test_every_prompt_has_one_answer_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside others that come and go, some on a KV cache that is too small for them, some with drafts, most in a large batch."""
    page_bytes = native_loader(bundled_path(), threads=1, context=None)(lambda _: None).runner.page_bytes
    answers: dict[tuple[int, int], Counter[tuple[object, ...]]] = defaultdict(Counter)  # by prompt and length
    counts, lines = Counter[str](), [f"seed {SEED}"]
    for load, repeats in ((load, round(load.share * REPEATS)) for load in LOADS) if MANY else ((load, REPEATS // 2) for load in LOADS[:2]):
        more, health = asyncio.run(ask_all(page_bytes, load, repeats))
        for number, counter in enumerate(more):
            answers[number, load.tokens] += counter
        assert [counter.total() for counter in more] == [repeats] * PROMPTS
        assert health.pages.used == 0
        counts.update(health.counts._asdict())
        seen = health.counts
        lines.append(
            f"{repeats} each in {seen.steps} steps, {seen.preempted} preemptions, {seen.found} of {seen.queried} prompt tokens cached"
        )
    assert counts["preempted"] > 0 and counts["found"] > 0, "else this shows less than it says"
    assert counts["accepted"] > 0 or not MANY
    assert {len(counter) for counter in answers.values()} == {1}, "one answer each"
    assert len({answer for counter in answers.values() for answer in counter}) == len(answers)
    digest = blake2b(repr(sorted((place, *counter) for place, counter in answers.items())).encode(), digest_size=8).hexdigest()
    with capsys.disabled():
        print(f" {PROMPTS} prompts × {REPEATS}: one answer each, {digest} in all; {'; '.join(lines)}", end="")
