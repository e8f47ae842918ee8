"""Images over the real vLLM: as transformers computes them, and over HTTP in Fireworks' dialect."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import PIL.Image
import pytest
from tests.e2e.test_images import sequence
from tests.reference.transformers_vision import GREEDY, models, seen
from tests.vllm.engine import link_to, until_ready
from tests.vllm.models import SEEING, folder
from tests.vllm.serving import serving

from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig
from quintet.events import TokenEvent
from quintet.inputs.sequence import Prepared, PreparedSequence

CONFIG = EngineConfig(max_running=4, max_sequences=8)
TINY = models()["idefics3"]


def generated(*sequences: PreparedSequence) -> list[list[TokenEvent]]:
    """Events of each, on an engine of its own that is shown images."""

    async def scenario() -> list[list[TokenEvent]]:
        engine = Engine(link_to(folder(SEEING), CONFIG, vision="layout"), CONFIG)
        try:
            await until_ready(engine)
            assert engine.capabilities.images is not None
            events: list[list[TokenEvent]] = [[] for _ in sequences]
            async for batch in engine.submit(Prepared(1, sequences)):
                for event in batch:
                    events[event.seq].append(event)
            return events
        finally:
            await engine.close()

    return asyncio.run(scenario())


def test_a_model_that_sees_goes_on_as_transformers_does() -> None:
    """To the token, with its log-probabilities, and none where an image is; another image in the same places is another text."""
    own = seen("idefics3")
    prompt = sequence(TINY)
    other = replace(prompt, images=tuple(replace(image, digest=image.digest[::-1], pixels=image.pixels[::-1]) for image in prompt.images))
    scored = replace(prompt, max_tokens=0, logprobs=1, echo=True)
    told, otherwise, echoed = generated(prompt, other, scored)
    expected = own.tokens[len(prompt.tokens) :].tolist()
    assert [event.token for event in told] == expected[: len(told)]
    assert len(told) == GREEDY or told[-1].finish is not None
    assert [event.token for event in otherwise] != [event.token for event in told]
    rows = own.rows[len(prompt.tokens) - 1 :]
    for event, row in zip(told, rows, strict=False):
        assert event.logprob == pytest.approx(row[event.token], abs=2e-3)
    places = {at for image in prompt.images for first, count in image.places for at in range(first, first + count)}
    for at, event in enumerate(one for one in echoed if one.prompt):
        assert (event.logprob is None) == (at == 0 or at in places)
        if event.logprob is not None:
            assert event.logprob == pytest.approx(own.rows[at - 1][event.token], abs=2e-3)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the model over vLLM, without ``/v1``."""
    with serving(SEEING, "--image-longest-edge", "120") as (url, _):
        yield url.removesuffix("/v1")


def ask(url: str, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/fireworks/inference/v1/completions", json={"model": SEEING, "max_tokens": 6, **fields}, timeout=120)


def picture(seed: int, width: int, height: int) -> str:
    values = np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(values).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_picture_over_http_is_looked_at_and_its_tokens_are_counted(url: str) -> None:
    """Two tiles and the overview; the same answer again, another one for another picture."""
    asked = {"prompt": "a<image>b", "temperature": 0, "ignore_eos": True, "logprobs": 1}
    plain = ask(url, prompt="ab", max_tokens=1).json()["usage"]["prompt_tokens"]
    first, again, other = (ask(url, images=[picture(seed, 80, 40)], **asked).json() for seed in (1, 1, 2))
    places = 3 * TINY.tokens_of_tile
    assert first["usage"]["prompt_tokens"] >= plain + places
    assert first["usage"]["completion_tokens"] == 6
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    logprobs = [one["choices"][0]["logprobs"]["token_logprobs"] for one in (first, again, other)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)
    assert logprobs[0] != pytest.approx(logprobs[2], abs=1e-3)


def test_two_prompts_of_the_same_tokens_with_other_pictures_are_not_taken_for_each_other(url: str) -> None:
    asked = {"temperature": 0, "ignore_eos": True, "logprobs": 1, "echo": True}
    both = ask(url, prompt=["<image>", "<image>"], images=[[picture(1, 50, 50)], [picture(2, 50, 50)]], **asked).json()
    alone = [ask(url, prompt="<image>", images=[picture(seed, 50, 50)], **asked).json() for seed in (1, 2)]
    for choice, own in zip(both["choices"], alone, strict=True):
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(own["choices"][0]["logprobs"]["token_logprobs"], abs=1e-3)
    assert both["choices"][0]["logprobs"]["token_logprobs"] != pytest.approx(both["choices"][1]["logprobs"]["token_logprobs"], abs=1e-3)


def test_a_picture_that_is_none_is_a_400_that_names_it(url: str) -> None:
    answer = ask(url, prompt="<image>", images=["data:image/png;base64,iVBORw0KGgo="])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "images[0]")
