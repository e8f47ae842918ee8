"""Images of families that vLLM's own processor shows them: as vLLM by itself computes them, over HTTP in Fireworks' dialect."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import PIL.Image
import pytest
from tests.vllm import others
from tests.vllm.models import folder
from tests.vllm.own import by_itself
from tests.vllm.serving import START_S, serving

TOKENS = 8
SIZES = ((50, 40), (30, 64), (20, 20), (200, 10))
STRICTLY = {"context_length_exceeded_behavior": "error"}
PLACEHOLDER = {"llava": "<image>", "mistral3": "[IMG]", "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>"}
"""As vLLM's prompts have it."""

PROMPTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("<image>", (0,)),
    ("What is in <image> here?", (1,)),
    ("First <image>\n\n then <image><image>.", (0, 2, 1)),
    ("A wide one:\n<image>\n", (3,)),
)
"""Texts, and the numbers of their images."""


@pytest.fixture(scope="module", params=others.WORDS)
def model(request: pytest.FixtureRequest) -> str:
    """Its name."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[tuple[str, int]]:
    """Of the model over vLLM: its address without ``/v1``, and the id of its process."""
    with serving(model) as (url, pid):
        yield url.removesuffix("/v1"), pid


def files(within: Path) -> list[str]:
    made = []
    for number, (width, height) in enumerate(SIZES):
        made.append(str(within / f"{number}.png"))
        values = np.random.RandomState(number).randint(0, 256, (height, width, 3)).astype(np.uint8)
        PIL.Image.fromarray(values).save(made[-1])
    return made


def data_url(number: int, size: tuple[int, int] | None = None) -> str:
    """The same as a URL; of another size in one colour."""
    buffer = io.BytesIO()
    width, height = size or SIZES[number]
    values = np.random.RandomState(number).randint(0, 256, (height, width, 3)).astype(np.uint8)
    PIL.Image.fromarray(values if size is None else values * 0).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def ask(server: tuple[str, int], model: str, **fields: Any) -> httpx2.Response:
    body = {"model": model, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **fields}
    return httpx2.post(f"{server[0]}/fireworks/inference/v1/completions", json=body, timeout=START_S)


def tokenized(server: tuple[str, int], model: str, text: str) -> list[int]:
    found: list[int] = httpx2.post(f"{server[0]}/tokenize", json={"model": model, "prompt": text}, timeout=60).json()["tokens"]
    return found


def test_a_model_goes_on_as_vllm_by_itself_does_with_the_same_text_and_files(server: tuple[str, int], model: str, tmp_path: Path) -> None:
    """The prompt's tokens, what follows, and the log-probabilities of both; as a stream it is the same; and text by itself."""
    paths = files(tmp_path)
    theirs = by_itself(
        folder(model),
        [text.replace("<image>", PLACEHOLDER[model]) for text, _ in PROMPTS],
        TOKENS,
        images=[[paths[number] for number in numbers] for _, numbers in PROMPTS],
    )
    (image,) = tokenized(server, model, others.WORDS[model][0])
    for at, (text, numbers) in enumerate(PROMPTS):
        images = [data_url(number) for number in numbers]
        answer = ask(server, model, prompt=text, images=images, logprobs=0, echo=True, return_token_ids=True)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        choice, ids = body["choices"][0], theirs["prompts"][at]
        entries = choice["logprobs"]
        assert choice["prompt_token_ids"] == ids
        assert entries["token_ids"] == ids + theirs["texts"][at]
        assert body["usage"] == {"prompt_tokens": len(ids), "completion_tokens": TOKENS, "total_tokens": len(ids) + TOKENS}
        assert entries["token_logprobs"][len(ids) :] == pytest.approx(theirs["logprobs"][at], abs=1e-3)
        for place, (own, expected) in enumerate(zip(entries["token_logprobs"][1 : len(ids)], theirs["scores"][at], strict=True), 1):
            assert own == (0.0 if ids[place] == image else pytest.approx(expected, abs=1e-3))
        assert choice["text"].startswith(text)
        assert [entries["text_offset"][0], entries["text_offset"][len(ids)]] == [0, len(text)]
        bare = ask(server, model, prompt=text, images=images).json()["choices"][0]["text"]
        assert choice["text"] == text + bare


def test_ids_with_the_models_own_token_are_as_the_text(server: tuple[str, int], model: str) -> None:
    text, numbers = PROMPTS[2]
    images = [data_url(number) for number in numbers]
    asked = {"images": images, "return_token_ids": True}
    told = ask(server, model, prompt=text, **asked).json()
    again = ask(server, model, prompt=tokenized(server, model, text.replace("<image>", PLACEHOLDER[model])), **asked).json()
    assert again["choices"][0]["prompt_token_ids"] == told["choices"][0]["prompt_token_ids"]
    assert again["choices"][0]["text"] == told["choices"][0]["text"]


def test_samples_and_prompts_have_their_own_pictures(server: tuple[str, int], model: str) -> None:
    asked = {"logprobs": 0, "n": 2}
    both = ask(server, model, prompt=["<image>"] * 2, images=[[data_url(0)], [data_url(2)]], **asked).json()
    alone = [ask(server, model, prompt="<image>", images=[data_url(number)], **asked).json() for number in (0, 2)]
    scores = [choice["logprobs"]["token_logprobs"] for choice in both["choices"]]
    own = [choice["logprobs"]["token_logprobs"] for one in alone for choice in one["choices"]]
    for mine, theirs in zip(scores, own, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert scores[0] != pytest.approx(scores[2], abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "<image><image>", "images": [data_url(0)]}, "images"),
        ({"prompt": "x", "images": [data_url(0)]}, "images"),
        ({"prompt": "<image>", "images": ["data:image/png;base64,iVBORw0KGgo="]}, "images[0]"),
        ({"prompt": "<image>" * 9, "images": [data_url(1)] * 9, "max_tokens": 500} | STRICTLY, "max_tokens"),
        ({"prompt": "<image>" * 30 + "word " * 600, "images": [data_url(1)] * 30}, "prompt"),
    ],
)
def test_what_cannot_be_is_a_400_that_names_the_field(server: tuple[str, int], model: str, fields: dict[str, Any], param: str) -> None:
    answer = ask(server, model, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_what_does_not_fit_is_cut_to_the_context_where_that_is_asked_for(server: tuple[str, int], model: str) -> None:
    asked = {"prompt": "<image>", "images": [data_url(0)], "max_tokens": 5000, "context_length_exceeded_behavior": "truncate"}
    usage = ask(server, model, **asked).json()["usage"]
    assert usage["total_tokens"] == 512


def test_a_placeholder_that_stands_for_nothing_is_refused(server: tuple[str, int], model: str) -> None:
    answer = ask(server, model, prompt=f"a {PLACEHOLDER[model]} b")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_clients_that_leave_while_images_are_prepared_hold_up_nobody(server: tuple[str, int], model: str) -> None:
    async def leave() -> None:
        large = data_url(0, (3000, 3000))
        async with httpx2.AsyncClient(timeout=60) as client:
            body = {"model": model, "prompt": "<image>" * 2, "images": [large, large], "max_tokens": 1}
            for seconds in (0.05, 0.2, 0.4, 0.8):
                post = asyncio.create_task(client.post(f"{server[0]}/fireworks/inference/v1/completions", json=body))
                await asyncio.sleep(seconds)
                post.cancel()
                await asyncio.gather(post, return_exceptions=True)

    asyncio.run(leave())
    answer = ask(server, model, prompt="<image>", images=[data_url(0)])
    assert answer.status_code == 200
    until_idle(server)


def until_idle(server: tuple[str, int]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = httpx2.get(f"{server[0]}/metrics", timeout=60).text.splitlines()
        if all(
            float(line.rpartition(" ")[2]) == 0
            for line in lines
            if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
        ):
            return
        time.sleep(0.1)
    raise AssertionError("something is left")


def test_an_engine_that_is_killed_while_images_are_prepared_is_told_or_not_even_noticed(server: tuple[str, int], model: str) -> None:
    """A 503 that says when to come again, if the images were on their way; an answer, if the sequence was."""
    asked = {"prompt": "<image>" * 2, "images": [data_url(0, (3000, 3000)), data_url(1, (2800, 3000))]}
    whole = ask(server, model, **asked).json()
    answers: list[httpx2.Response] = []
    other = {**asked, "images": [data_url(2, (3000, 2900)), asked["images"][1]]}
    thread = threading.Thread(target=lambda: answers.append(ask(server, model, **other)))
    thread.start()
    time.sleep(0.4)
    (child,) = subprocess.run(
        ["pgrep", "-P", str(server[1]), "-f", "backends.vllm.child"], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(child), signal.SIGKILL)
    thread.join()
    assert answers[0].status_code in (200, 503), answers[0].text
    if answers[0].status_code == 503:
        assert float(answers[0].headers["retry-after"]) > 0
    end = time.monotonic() + START_S
    while (again := ask(server, model, **asked)).status_code == 503 and time.monotonic() < end:
        time.sleep(1)
    assert again.json()["choices"][0]["text"] == whole["choices"][0]["text"]
