"""LangChain's ``OpenAI`` text-completion model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_openai import OpenAI

from support import TOY

BASE = f"{TOY}/openai/v1"


def model(**options: Any) -> OpenAI:
    return OpenAI(model="toy", base_url=BASE, api_key="local", seed=7, max_tokens=12, max_retries=0, **options)


def test_prompts_times_n_come_in_the_order_of_the_prompts() -> None:
    prompts = ["Once upon", "There was"]
    found = model(n=2).generate(prompts)
    assert [len(generations) for generations in found.generations] == [2, 2]
    alone = [[generation.text for generation in model(n=2).generate([prompt]).generations[0]] for prompt in prompts]
    # Sample j of a prompt draws with seed + j, whatever its place in the list.
    assert [[generation.text for generation in generations] for generations in found.generations] == alone
    assert len({generation.text for generations in found.generations for generation in generations}) == 4
    usage = found.llm_output["token_usage"]
    assert usage["prompt_tokens"] == sum(map(len, prompts))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_each_greedy_answer_is_that_of_its_own_prompt() -> None:
    prompts = [f"{word} was" for word in ("cat", "dog", "owl", "fox", "hen")]
    together = [generations[0].text for generations in model(temperature=0).generate(prompts).generations]
    assert together == [model(temperature=0).invoke(prompt) for prompt in prompts]
    assert len(set(together)) > 1


def test_a_stream_is_the_same_text() -> None:
    assert "".join(model().stream("Once upon")) == model().invoke("Once upon")


def test_async() -> None:
    async def go() -> tuple[str, str, list[str]]:
        made = model()
        parts = [part async for part in made.astream("Once upon")]
        return await made.ainvoke("Once upon"), "".join(parts), await made.abatch(["Once upon", "There"])

    whole, streamed, batch = asyncio.run(go())
    assert whole == streamed == batch[0]


def test_stop_best_of_and_logprobs() -> None:
    assert "e" not in model().invoke("Once upon", stop=["e"])
    assert model(best_of=3).invoke("Once upon")
    found = model(logprobs=2).generate(["Once"]).generations[0][0]
    assert len(found.generation_info["logprobs"]["tokens"]) <= 12
    assert found.generation_info["finish_reason"] in ("length", "stop")


def test_an_error_is_openais() -> None:
    import openai

    with pytest.raises(openai.NotFoundError):
        OpenAI(model="another", base_url=BASE, api_key="x", max_retries=0).invoke("a")


@pytest.mark.parametrize("base", ["/openai/v1", "/together/v1", "/novita/openai/v1"])
def test_the_logprobs_of_a_stream_add_up(base: str) -> None:
    """It adds up what the chunks have, and cannot add numbers, which Together's own SDK gets there."""
    asked = OpenAI(model="toy", base_url=TOY + base, api_key="local", seed=7, max_tokens=5, max_retries=0, logprobs=2, streaming=True)
    (found,) = asked.generate(["Once"]).generations[0]
    lists = found.generation_info["logprobs"]
    assert "".join(lists["tokens"]) == found.text
    assert len(lists["token_logprobs"]) == len(lists["top_logprobs"]) == 5
