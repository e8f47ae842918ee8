"""Together's ``safety_model`` through its own SDK in strict mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from together import BadRequestError, NotFoundError, Together

from support import GUARDED, PATHS

ASK: dict[str, Any] = {"model": "toy", "prompt": "Once", "max_tokens": 40, "seed": 1, "safety_model": "Meta-Llama/Llama-Guard-7b"}
UNSAFE, SAFE = {"logit_bias": {"107": 100}}, {"logit_bias": {"107": -100}}
"""The toy's token 107 is ``k``."""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with Together(base_url=GUARDED + PATHS["together"], api_key="local", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 3}, {"echo": True, "n": 2}, {"stop": ["e"]}])
def test_what_is_safe_is_what_it_is_without_a_guard(client: Any, more: dict[str, Any]) -> None:
    judged = client.completions.create(**ASK, **SAFE, **more)
    plain = client.completions.create(**{**ASK, "safety_model": None}, **SAFE, **more)
    assert [choice.model_dump() for choice in judged.choices] == [choice.model_dump() for choice in plain.choices]
    texts = dict.fromkeys(range(len(plain.choices)), "")
    for chunk in client.completions.create(**ASK, **SAFE, **more, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in plain.choices]


def test_an_unsafe_output_ends_its_choice_and_says_why(client: Any) -> None:
    answer = client.completions.create(**ASK, **UNSAFE)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("", "stop")
    assert choice.moderation == {"model": ASK["safety_model"], "flagged": True, "categories": ["S2"]}
    assert "judged unsafe by Meta-Llama/Llama-Guard-7b: S2 (Weapons)" in answer.warnings[0]["message"]
    *_, last = client.completions.create(**ASK, **UNSAFE, stream=True)
    assert (last.finish_reason, last.warnings) == ("stop", answer.warnings)


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsafe_prompt_and_a_name_that_is_none_are_errors_of_the_sdk(client: Any, stream: bool) -> None:
    with pytest.raises(BadRequestError, match="judged unsafe by Meta-Llama/Llama-Guard-7b") as caught:
        client.completions.create(**{**ASK, "prompt": "k"}, stream=stream)
    assert caught.value.body["error"]["code"] == "content_policy_violation"
    with pytest.raises(NotFoundError, match="'nobody' is not served for moderation"):
        client.completions.create(**{**ASK, "safety_model": "nobody"}, stream=stream)
    with pytest.raises(NotFoundError, match="'toy' is not served for moderation"):
        client.completions.create(**{**ASK, "safety_model": "toy"}, stream=stream)
