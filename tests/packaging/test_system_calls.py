"""The service under the filter of system calls that its unit has: the engine, and what decodes images and checks schemas apart."""

from __future__ import annotations

import base64
import ctypes
import io
import json
import signal
from pathlib import Path

import PIL.Image
import pytest
from tests.e2e.test_images import WORDS, name_tokens
from tests.e2e.test_serve_command import served
from tests.packaging.filtered import LIBRARY, calls_of
from tests.packaging.tools import PACKAGING
from tests.reference.as_gguf import write_gguf
from tests.reference.folders import Source, write_tokenizer
from tests.reference.transformers_vision import models

NAME = "idefics3"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PATH = "/fireworks/inference/v1/completions"
RUN = "import runpy; from tests.packaging.filtered import restrict; restrict({calls!r}); runpy.run_module('quintet', run_name='__main__')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees."""
    tiny = models()[NAME]
    made = tiny.write(tmp_path_factory.mktemp(NAME))
    write_tokenizer(made, Source(write_gguf(tmp_path_factory.mktemp("tokens") / "tokens.gguf", tiny.text())))
    name_tokens(made, WORDS[NAME])
    return made


@pytest.fixture(scope="module")
def calls() -> set[str]:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        pytest.skip(f"{LIBRARY} is not installed")
    return calls_of(PACKAGING / "systemd/quintet.service")


def asked(folder: Path, calls: set[str], bodies: list[dict[str, object]]) -> list[tuple[int, bytes]]:
    """What a server that makes only these calls answers; it must stop when it is told to."""
    words = str(folder), "--threads", "2", "--kv-cache", "4MiB", "--image-longest-edge", str(models()[NAME].tile)
    with served(*words, code=RUN.format(calls=sorted(calls))) as one:
        answers = [one.send(PATH, json.dumps(body).encode(), {"Content-Type": "application/json"}) for body in bodies]
        assert one.end(signal.SIGTERM)[0] == 0
    return answers


def picture(form: str) -> str:
    made = io.BytesIO()
    PIL.Image.new("RGB", (40, 30), (200, 10, 60)).save(made, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(made.getvalue()).decode()}"


SCHEMA = {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def test_images_are_decoded_and_schemas_checked_under_the_unit_s_filter(folder: Path, calls: set[str]) -> None:
    bodies: list[dict[str, object]] = [
        {"prompt": "See <image>", "images": [picture(form)], "max_tokens": 2, "ignore_eos": True} for form in FORMATS
    ]
    answers = asked(folder, calls, [*bodies, {"prompt": "a", "max_tokens": 40, "response_format": SCHEMA}])
    assert [status for status, _ in answers] == [200] * len(answers), answers
    assert all(json.loads(said)["usage"]["prompt_tokens"] > models()[NAME].tokens_of_tile for _, said in answers[:-1])


def test_without_a_call_that_the_decoder_makes_no_image_is_seen(folder: Path, calls: set[str]) -> None:
    """It bounds its time with ``setitimer``, which nothing else of a server does at its start."""
    assert "setitimer" in calls
    [(status, _), (blind, _)] = asked(
        folder,
        calls - {"setitimer"},
        [{"prompt": "See <image>", "images": [picture("PNG")], "max_tokens": 1}, {"prompt": "a", "max_tokens": 1}],
    )
    assert (status, blind) == (500, 200)
