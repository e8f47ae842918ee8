"""What each provider's users read from its SDK's objects, beyond what all of them have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from cerebras.cloud.sdk import Cerebras
from fireworks import BadRequestError, Fireworks
from openai import OpenAI
from together import NotFoundError as TogetherNotFoundError
from together import Together

from support import PATHS, TOY

STRICT: dict[str, Any] = {"api_key": "local", "max_retries": 0, "_strict_response_validation": True}
LENIENT: dict[str, Any] = {"api_key": "local", "max_retries": 0}


@pytest.fixture(scope="module")
def together() -> Iterator[Any]:
    with Together(base_url=TOY + PATHS["together"], **STRICT) as client:
        yield client


@pytest.fixture(scope="module")
def fireworks() -> Iterator[Any]:
    with Fireworks(base_url=TOY + PATHS["fireworks"], **STRICT) as client:
        yield client


@pytest.fixture(scope="module")
def cerebras() -> Iterator[Any]:
    with Cerebras(base_url=TOY + PATHS["cerebras"], **STRICT) as client:
        yield client


@pytest.fixture(scope="module")
def novita() -> Iterator[Any]:
    with OpenAI(base_url=TOY + PATHS["novita"], **LENIENT) as client:
        yield client


def test_together_chunks_are_tokens_of_the_answer(together: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Once", "max_tokens": 12, "seed": 4, "logprobs": 1}
    whole = together.completions.create(**asked)
    lists = whole.choices[0].logprobs
    chunks = list(together.completions.create(**asked, stream=True))
    tokens = [chunk.token for chunk in chunks if chunk.token.id >= 0]
    assert [token.id for token in tokens] == lists.token_ids
    assert [token.logprob for token in tokens] == lists.token_logprobs
    assert "".join(token.text for token in tokens) == whole.choices[0].text
    assert [chunk.choices[0].delta.content for chunk in chunks if chunk.token.id >= 0] == [token.text for token in tokens]
    assert (chunks[-1].finish_reason, chunks[-1].usage) == (whole.choices[0].finish_reason, whole.usage)
    assert whole.prompt == []
    assert set(lists.top_logprobs) >= set(lists.tokens)


def test_together_choices_tell_their_seed_and_can_be_had_alone(together: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Once", "max_tokens": 20}
    choices = together.completions.create(**asked, n=3, seed=2**63).choices
    assert len({choice.seed for choice in choices}) == 3
    for choice in choices:
        assert together.completions.create(**asked, seed=choice.seed).choices[0].text == choice.text


def test_together_echo_is_in_prompt(together: Any) -> None:
    answer = together.completions.create(model="toy", prompt="Once", max_tokens=2, echo=True)
    assert answer.prompt[0].text == "Once"
    assert not answer.choices[0].text.startswith("Once")


def test_together_ends_of_the_model_are_eos(together: Any) -> None:
    reasons = {
        together.completions.create(model="toy", prompt="Once", max_tokens=400, seed=seed).choices[0].finish_reason for seed in range(3)
    }
    assert reasons == {"eos"}


def test_fireworks_has_two_forms_of_logprobs_with_the_same_numbers(fireworks: Any) -> None:
    asked: dict[str, Any] = {"model": "accounts/fireworks/models/toy", "prompt": "Once", "max_tokens": 6, "seed": 4}
    old = fireworks.completions.create(**asked, logprobs=2).choices[0].logprobs
    new = fireworks.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert [entry.token for entry in new.content] == old.tokens
    assert [entry.logprob for entry in new.content] == old.token_logprobs
    assert [entry.token_id for entry in new.content] == old.token_ids
    assert [entry.text_offset for entry in new.content] == old.text_offset
    assert all(len(entry.top_logprobs) == 2 for entry in new.content)


def test_fireworks_first_echoed_token_has_no_null(fireworks: Any) -> None:
    choice = fireworks.completions.create(model="toy", prompt="Hi", max_tokens=1, echo=True, logprobs=1).choices[0]
    assert choice.logprobs.token_logprobs[0] == 0.0


def test_fireworks_echo_last_is_the_end_of_the_prompt(fireworks: Any) -> None:
    choice = fireworks.completions.create(model="toy", prompt="Hello", max_tokens=2, echo_last=2, logprobs=1).choices[0]
    assert choice.text.startswith("lo")
    assert choice.logprobs.text_offset[:2] == [3, 4]


def test_fireworks_metrics_and_ids(fireworks: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Hi", "max_tokens": 5, "seed": 1, "perf_metrics_in_response": True}
    raw = fireworks.completions.with_raw_response.create(**asked, return_token_ids=True)
    answer = raw.parse()
    assert raw.headers["fireworks-prompt-tokens"] == "2"
    assert answer.perf_metrics["prompt-tokens"] in (2, "2")
    assert answer.choices[0].prompt_token_ids == [72, 105]
    ids = [token for token in answer.choices[0].token_ids if token < 256]
    assert bytes(ids).decode() == answer.choices[0].text
    *others, last = list(fireworks.completions.create(**asked, stream=True))
    assert [chunk.perf_metrics for chunk in others] == [None] * len(others)
    assert last.perf_metrics
    assert last.usage.prompt_tokens == 2


def test_cerebras_tells_fingerprint_and_times_everywhere(cerebras: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Once", "max_tokens": 5, "seed": 1}
    whole = cerebras.completions.create(**asked)
    chunks = list(cerebras.completions.create(**asked, stream=True))
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert whole.time_info.total_time > 0
    assert chunks[-1].time_info.total_time > 0
    assert whole.object == "text_completion"


def test_cerebras_raw_tokens_take_the_place_of_the_text(cerebras: Any) -> None:
    choice = cerebras.completions.create(model="toy", prompt=[1, 2, 3], max_tokens=8, logprobs=0, return_raw_tokens=True).choices[0]
    assert choice.text is None
    assert len(choice.tokens) == len(choice.logprobs.token_logprobs)
    assert choice.logprobs.top_logprobs is None


def test_novita_text_holds_the_stop_string(novita: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Once", "max_tokens": 200, "seed": 2, "stop": ["d", "h"]}
    whole = novita.completions.create(**asked)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].text.endswith(("d", "h"))
    chunks = list(novita.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    *_, reason, last = list(novita.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert (reason.choices[0].finish_reason, reason.usage, last.choices, last.usage) == ("stop", None, [], whole.usage)


@pytest.mark.parametrize("provider", ["openai", "novita"])
def test_models_through_openais_sdk(provider: str) -> None:
    with OpenAI(base_url=TOY + PATHS[provider], **STRICT) as client:
        assert [model.id for model in client.models.list()] == ["toy"]
        assert client.models.retrieve("toy").id == "toy"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("org/other")


def test_models_through_cerebras_sdk(cerebras: Any) -> None:
    assert [model.id for model in cerebras.models.list().data] == ["toy"]
    assert cerebras.models.retrieve("toy").id == "toy"


@pytest.mark.parametrize("form", ["openrouter", "huggingface"])
def test_models_in_the_forms_of_catalogues_through_cerebras_sdk(cerebras: Any, form: str) -> None:
    (model,) = cerebras.models.list(format=form).data
    assert (model.id, model.context_length) == ("toy", 4096)
    assert cerebras.models.retrieve("toy", format=form).context_length == 4096


def test_fireworks_long_names_mean_the_model_of_the_short_one(fireworks: Any) -> None:
    """As its pages and litellm write them; the server serves the short name alone, and an answer says the name that was asked for."""
    for name in ("accounts/fireworks/models/toy", "accounts/somebody/models/toy"):
        assert fireworks.completions.create(model=name, prompt="a", max_tokens=1).model == name
    with OpenAI(base_url=f"{TOY}/fireworks/inference/v1", **STRICT) as client:
        assert client.models.retrieve("accounts/fireworks/models/toy").id == "accounts/fireworks/models/toy"


@pytest.mark.parametrize("base", ["/fireworks/inference/v1", "/fireworks", "/inference"])
def test_fireworks_aliases(base: str) -> None:
    with Fireworks(base_url=TOY + base, **STRICT) as client:
        assert client.completions.create(model="toy", prompt="a", max_tokens=1).choices


@pytest.mark.parametrize("base", ["/together/v1"])
def test_together_aliases(base: str) -> None:
    with Together(base_url=TOY + base, **STRICT) as client:
        assert client.completions.create(model="toy", prompt="a", max_tokens=1).choices


@pytest.mark.parametrize("base", ["/together", "/together/v1"])
def test_together_models_of_a_project(base: str) -> None:
    with Together(base_url=TOY + base, project_id="p", **STRICT) as client:
        assert [model.id for model in client.models.list()] == ["toy"]
        assert client.models.retrieve("toy").project_id == "p"


@pytest.mark.parametrize("base", ["/novita/openai", "/novita/v3/openai", "/v3/openai"])
def test_novita_aliases(base: str) -> None:
    with OpenAI(base_url=TOY + base, **STRICT) as client:
        raw = client.completions.with_raw_response.create(model="toy", prompt="a", max_tokens=1)
        assert raw.headers["x-completions-dialect"] == "novita"


@pytest.mark.parametrize("provider", ["openai", "together", "cerebras", "fireworks"])
def test_a_header_chooses_the_dialect(provider: str) -> None:
    kind: Any = {"openai": OpenAI, "together": Together, "cerebras": Cerebras, "fireworks": Fireworks}[provider]
    base = TOY + ("/v1" if provider == "openai" else "")
    with kind(base_url=base, default_headers={"X-Completions-Dialect": provider}, **STRICT) as client:
        raw = client.completions.with_raw_response.create(model="toy", prompt="a", max_tokens=1)
        assert raw.headers["x-completions-dialect"] == provider
        assert raw.parse().choices


def test_fireworks_images_are_refused_by_name(fireworks: Any) -> None:
    """The page's example has them; there is no vision model."""
    with pytest.raises(BadRequestError, match="images"):
        fireworks.completions.create(model="toy", prompt="<image>", images=["data:image/png;base64,AA=="])


def test_together_safety_model_that_is_not_served_is_not_found(together: Any) -> None:
    with pytest.raises(TogetherNotFoundError, match="safety_model"):
        together.completions.create(model="toy", prompt="a", safety_model="safety_model_name")
