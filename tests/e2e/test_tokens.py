"""Tokenising on the bundled model and on the engine: what the HTTP side offers is what prompts are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quintet.backends.base import SequenceSpec, State, TokenizerInfo
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import INLINE_CHARS, Engine
from quintet.backends.toy import ToyTokenizer, toy_loader
from quintet.config import EngineConfig
from quintet.errors import Loading
from quintet.models.gguf import read_metadata
from quintet.models.tokenizer import build_tokenizer
from quintet.request import Sampling


def test_the_bundled_models_facts(model_path: Path) -> None:
    tokenizer = build_tokenizer(read_metadata(model_path))
    expected = {"bos": "<|im_start|>", "eos": "<|im_end|>", "pad": "<|im_end|>"}
    assert {role: tokenizer.roles[role] for role in expected} == expected
    assert "<|im_start|>" in tokenizer.roles["chat_template"]
    assert tokenizer.encode(tokenizer.roles["eos"]) == [tokenizer.eos_id]


class Framed(ToyTokenizer):
    """Puts two ids before a prompt and one after it."""

    added = (2, 1)
    roles = {"eos": "</s>", "bos": "<s>"}  # noqa: RUF012 -- read only

    def encode(self, text: str) -> list[int]:
        return [1, 2, *super().encode(text), 3]


@pytest.mark.parametrize("length", [0, 3, INLINE_CHARS + 1])
def test_special_tokens_are_added_as_prepare_adds_them_or_left_out(length: int) -> None:
    async def ask() -> tuple[Sequence[int], Sequence[int], Sequence[int], TokenizerInfo]:
        load = toy_loader()
        engine = Engine(lambda progress: _framed(load(progress)), EngineConfig(kv_bytes=1 << 22))
        with pytest.raises(Loading):
            await engine.tokenize("a", add_special=True)
        try:
            while engine.health().state is not State.READY:
                await asyncio.sleep(0.001)
            text = "a" * length
            spec = SequenceSpec(text, 0, Sampling(0, 1, 0), None, False)
            prepared = (await engine.prepare([spec])).sequences[0].tokens if length < 4000 else ()
            return await engine.tokenize(text, True), await engine.tokenize(text, False), prepared, engine.tokenizer
        finally:
            await engine.close()

    whole, bare, prepared, info = asyncio.run(ask())
    assert list(bare) == [97] * length
    assert list(whole) == [1, 2, *bare, 3]
    assert tuple(whole) == prepared or not prepared
    assert info == TokenizerInfo(eos="</s>", bos="<s>")


def _framed(loaded: Loaded) -> Loaded:
    return replace(loaded, tokenizer=Framed())
