"""A budget of thinking in the engine: kept, counted alike by both sides, and without effect on what comes before it is used up.

The toy model writes letters; two letters it often writes are taken for its tags, so that it opens and closes blocks by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.support.preparing import service

from quintet.backends.base import State
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import EOS, ToyRunner, ToyTokenizer
from quintet.config import EngineConfig
from quintet.errors import Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Finish, Finished
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import CompletionRequest, Guide, GuideKind, Reasoning, Sampling, StopRules
from quintet.service.service import Service

TAGS = ("t", "he")
ASK = CompletionRequest(
    model="",
    prompts=("say ",),
    max_tokens=120,
    n=6,
    echo=False,
    logprobs=None,
    sampling=Sampling(1.0, 1.0, 7, logit_bias=((EOS, -100.0),)),
    stop=StopRules(),
    stream=False,
    include_usage=True,
    user="",
)


def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
    return Loaded(ToyRunner(), ToyTokenizer(TAGS), name="toy", fingerprint="f")


@asynccontextmanager
async def running(*, process: bool = False, **config: Any) -> AsyncIterator[Service]:
    settings = replace(EngineConfig(kv_bytes=1 << 20), **config)
    link = ProcessLink(ModelSource(path="", threads=1, context=None, name="toy"), lambda: ToyTokenizer(TAGS), settings) if process else load
    engine = Engine(link, settings)
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        yield service(engine)
    finally:
        await engine.close()


async def answer(service: Service, request: CompletionRequest) -> tuple[list[str], list[Finish], int]:
    """Texts, ends, and the thinking tokens of all choices."""
    texts, ends, reasoning = [""] * request.n, [Finish.ERROR] * request.n, -1
    async for events in (await service.prepare(request)).events():
        for event in events:
            match event:
                case ChoiceDelta(index, text):
                    texts[index] += text
                case ChoiceDone(index, finish):
                    ends[index] = finish
                case Finished(usage):
                    reasoning = usage.reasoning_tokens
    return texts, ends, reasoning


def thought(text: str, border: str = "he|h?$") -> int:
    """Tokens in the blocks of a text of one-byte tokens; what may become an end tag is not in one, or with another border it is."""
    return sum(map(len, re.findall(f"t(.*?)(?:{border})", text)))


def go(body: Callable[[Service], Awaitable[object]], **how: Any) -> None:
    async def inner() -> None:
        async with running(**how) as service:
            await body(service)

    asyncio.run(inner())


@pytest.mark.parametrize("process", [False, True])
def test_a_budget_holds_and_changes_nothing_before_it_is_used_up(process: bool) -> None:
    async def body(served: Service) -> None:
        free, _, all_of_it = await answer(served, ASK)
        assert all_of_it == sum(thought(text) for text in free) > 100
        for budget in (0, 1, 5, 17, 1000):
            texts, _, reasoning = await answer(served, replace(ASK, reasoning=Reasoning(budget, "p")))
            spent = [thought(text) for text in texts]
            assert max(spent) <= budget and sum(spent) == reasoning
            for text, before in zip(texts, free, strict=True):
                same = next((at for at, (a, b) in enumerate(zip(text, before, strict=True)) if a != b), len(before))
                if same < len(before):
                    raw, begun = thought(text[:same], "he|$"), "h" if text[:same].endswith("h") else ""
                    assert budget in (raw, raw - len(begun)), "what is forced first may be what the model would have written anyway"
                    assert (begun + text[same:])[:2] in ("he", "h")

    go(body, process=process)


def test_a_budget_is_the_same_beside_others_and_after_preemption() -> None:
    budgets = [None, 0, 3, 9, 40]
    asked = [replace(ASK, n=1, reasoning=None if one is None else Reasoning(one, "p")) for one in budgets]

    async def body(served: Service) -> None:
        alone = [await answer(served, one) for one in asked]
        assert await asyncio.gather(*(answer(served, one) for one in asked)) == alone
        assert len({texts[0] for texts, _, _ in alone}) == len(budgets)

    go(body)
    go(body, kv_bytes=16 * 64)  # 16 pages, of which each needs 8


def test_a_prompt_that_ends_in_a_block_goes_on_in_it() -> None:
    async def body(served: Service) -> None:
        inside = replace(ASK, prompts=("say t",))
        for budget in (0, 4):
            texts, _, _ = await answer(served, replace(inside, reasoning=Reasoning(budget, "p")))
            assert all(thought("t" + text) <= budget and "he" in text[: budget + 2] for text in texts)
        closed, _, _ = await answer(served, replace(ASK, prompts=("say the",), reasoning=Reasoning(0, "p")))
        assert not any(text.startswith("he") for text in closed)

    go(body)


def test_the_end_of_sequence_may_come_inside_a_block() -> None:
    ends = replace(ASK, prompts=("say t",), n=32, max_tokens=300, sampling=Sampling(1.0, 1.0, 7), reasoning=Reasoning(250, "p"))

    async def body(served: Service) -> None:
        texts, finish, _ = await answer(served, ends)
        assert any(end is Finish.EOS and "he" not in text for text, end in zip(texts, finish, strict=True))

    go(body)


def test_thinking_that_a_stop_string_cuts_short_is_counted_up_to_the_token_that_completed_it() -> None:
    async def body(served: Service) -> None:
        request = replace(ASK, n=1, prompts=("say t",), stop=StopRules(("a",)))
        (text,), (finish,), reasoning = await answer(served, request)
        assert finish is Finish.STOP and "he" not in text and reasoning == len(text) + 1

    go(body)


SCHEMA = Guide(GuideKind.JSON_SCHEMA, json.dumps({"enum": ["tathe", "he"]}), "response_format")


def test_a_guide_governs_what_follows_the_block_that_the_prompt_opened() -> None:
    """And nothing ends the sequence before it has done so. In what conforms a tag is only text."""

    async def body(served: Service) -> None:
        for budget in (None, 0, 5):
            asked = replace(ASK, prompts=("say t",), guide=SCHEMA, sampling=Sampling(1.0, 1.0, 3), max_tokens=2000)
            texts, ends, reasoning = await answer(served, replace(asked, reasoning=None if budget is None else Reasoning(budget, "p")))
            parts = [text.partition("he") for text in texts]
            assert all(end is Finish.EOS for end in ends)
            assert all(json.loads(rest) in ("tathe", "he") for _, _, rest in parts)
            assert sum(len(thought) for thought, _, _ in parts) == reasoning <= (2000 if budget is None else budget) * ASK.n

    go(body)


def test_a_guide_governs_the_whole_text_where_no_block_is_open() -> None:
    async def body(served: Service) -> None:
        asked = replace(ASK, guide=SCHEMA, sampling=Sampling(1.0, 1.0, 3), reasoning=Reasoning(0, "p"))
        texts, ends, reasoning = await answer(served, asked)
        assert {json.loads(text) for text in texts} == {"tathe", "he"}
        assert reasoning == 0 and set(ends) == {Finish.EOS}

    go(body)


def test_a_model_without_tags_takes_no_budget_but_none() -> None:
    async def inner() -> None:
        engine = Engine(lambda _: Loaded(ToyRunner(), ToyTokenizer(), name="toy", fingerprint="f"), EngineConfig(kv_bytes=1 << 20))
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        served = service(engine)
        plain = await answer(served, ASK)
        assert plain[2] == 0
        assert await answer(served, replace(ASK, reasoning=Reasoning(0, "p"))) == plain
        with pytest.raises(Unsupported, match="'p' must ask for no thinking, or be left out: toy does not reason, got 8"):
            await served.prepare(replace(ASK, reasoning=Reasoning(8, "p")))
        await engine.close()

    asyncio.run(inner())
