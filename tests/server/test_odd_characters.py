"""Control characters: none ends a text early, and where they can mean nothing they are refused."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import Answer, acall
from tests.server.one import create_app
from tests.support.bundled import bundled_path

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.models.gguf import read_metadata
from quintet.models.tokenizer import build_tokenizer

CONTROLS = "".join(map(chr, [*range(32), *range(0x7F, 0xA0)]))


def asked(body: dict[str, object], dialect: str = "fireworks") -> Answer:
    async def go() -> Answer:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20))) as engine:
            return await acall(create_app(engine, ServerConfig(dialect=dialect), ("toy",)), {"max_tokens": 2, **body})

    return asyncio.run(go())


@pytest.mark.fault("A13")
def test_every_character_of_a_prompt_is_read_and_echoed() -> None:
    prompt = f"before\0{CONTROLS}after"
    answer = asked({"prompt": prompt, "echo": True, "stop": "\0\0"}).json()
    assert answer["usage"]["prompt_tokens"] == len(prompt.encode()), "a token is a byte"
    assert answer["choices"][0]["text"].startswith(prompt)


@pytest.mark.fault("A13")
def test_the_bundled_models_tokenizer_cuts_nothing_at_a_nul() -> None:
    tokenizer = build_tokenizer(read_metadata(bundled_path()))
    alone, whole = tokenizer.encode(" end"), tokenizer.encode("begin\0\x01\x1b\x85 end")
    assert whole[-len(alone) :] == alone
    assert tokenizer.encode("begin\0 end") != tokenizer.encode("begin")


@pytest.mark.fault("A13")
@pytest.mark.parametrize(
    ("field", "status"),
    [
        ({"model": "toy\0"}, 404),
        ({"model": "\x1btoy"}, 404),
        ({"response_format": {"type": "grammar", "grammar": 'root ::= "a"\0 "b"'}}, 400),
        ({"response_format": {"type": "json_\0object"}}, 400),
        ({"logit_bias": {"5\0": 1}}, 400),
    ],
)
def test_where_it_can_mean_nothing_it_is_refused(field: dict[str, object], status: int) -> None:
    answer = asked({"prompt": "x", **field})
    assert answer.status == status
    assert answer.body.isascii() and json.loads(answer.body)["error"]["message"].isprintable()
