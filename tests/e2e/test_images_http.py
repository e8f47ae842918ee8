"""Images over HTTP on a model that sees: the native engine in its process, decoding in another, the page's example under its own name."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import Served, served
from tests.e2e.test_serve_process import child_of
from tests.inputs.images.pictures import data_url, file
from tests.reference.seeing_folder import write_seeing
from tests.reference.transformers_vision import IMAGE, models
from tests.server.test_images import PAGE

PATH = "/fireworks/inference/v1/completions"
PNG, OTHER = data_url(file(90, 60)), data_url(file(60, 90))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_seeing(tmp_path_factory.mktemp("seeing"))
    options = ("-a", PAGE["model"], "--image-longest-edge", "120", "--allow-image-urls", "*", "--quantize", "none", "--offline")
    with served(str(folder), *options, QUINTET_DUMPABLE="1", HF_TOKEN="hf_secret") as server:
        yield server


def ask(one: Served, **fields: Any) -> tuple[int, Any]:
    given = {"max_tokens": 6, "temperature": 0, "logprobs": 1, **fields}
    status, body = one.send(PATH, json.dumps(given).encode(), {"Content-Type": "application/json"})
    return status, json.loads(body)


def test_the_pages_example_works_with_an_image_under_the_name_that_it_asks_for(one: Served) -> None:
    """And again, to the byte, with what was cached of it."""
    first, again = (ask(one, **{**PAGE, "images": [PNG], "seed": 5}) for _ in range(2))
    assert first[0] == again[0] == 200 and first[1]["choices"] == again[1]["choices"]
    assert first[1]["model"] == PAGE["model"]
    assert first[1]["choices"][0]["logprobs"]["content"] and len(first[1]["choices"]) == 1
    assert first[1]["usage"]["prompt_tokens"] > 4 * models()["idefics3"].tokens_of_tile


def test_what_is_answered_depends_on_the_picture_and_nothing_else(one: Served) -> None:
    asked = {"prompt": "a <image> b", "echo": False}
    same = [ask(one, images=[url], **asked)[1]["choices"] for url in (PNG, data_url(file(90, 60, "BMP"), "image/bmp"), PNG)]
    assert same[0] == same[1] == same[2] != ask(one, images=[OTHER], **asked)[1]["choices"]


def test_an_echo_scores_the_text_and_nothing_at_the_places(one: Served) -> None:
    status, body = ask(one, prompt="ab<image>c", images=[PNG], echo=True, return_token_ids=True)
    choice = body["choices"][0]
    assert status == 200 and choice["text"].startswith("ab<image>c")
    entries = choice["logprobs"]
    at_places = [logprob for token, logprob in zip(entries["token_ids"], entries["token_logprobs"], strict=True) if token == IMAGE]
    assert len(at_places) % models()["idefics3"].tokens_of_tile == 0 and set(at_places) == {0.0}
    assert entries["token_logprobs"][len(choice["prompt_token_ids"]) - 1] < 0


@pytest.mark.fault("F10")
def test_hostile_images_and_addresses_are_a_400_and_the_server_goes_on(one: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        inside = [
            f"http://{host}/a.png" for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "0.0.0.0")
        ]
        for url in (*inside, PNG[:-120], "data:image/png;base64,AAAA", data_url(b"%!PS-Adobe-3.0 EPSF-3.0\nshowpage", "image/png")):
            status, body = ask(one, prompt="<image>", images=[url])
            assert status == 400 and body["error"]["param"] == "images[0]", (url, body)
        with pytest.raises(BlockingIOError):
            trap.accept()
    assert ask(one, prompt="<image>", images=[PNG])[0] == 200


@pytest.mark.fault("G09")
def test_the_process_that_decodes_has_no_keys(one: Served) -> None:
    assert ask(one, prompt="<image>", images=[PNG])[0] == 200
    environment = Path(f"/proc/{child_of(one, b'images.decode')}/environ").read_bytes()
    assert b"PATH=" in environment and b"hf_secret" not in environment
