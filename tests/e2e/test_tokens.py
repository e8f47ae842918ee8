"""Tokenising on the bundled model and on the engine: what the HTTP side offers is what prompts are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.preparing import prepare, preparer_of

from quintet.backends.base import State
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import ToyTokenizer, toy_loader
from quintet.config import EngineConfig
from quintet.errors import Loading
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import INLINE_CHARS, Model, Preparer
from quintet.inputs.sequence import SequenceSpec
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.gguf import read_metadata
from quintet.models.tokenizer import build_tokenizer
from quintet.models.traits import Traits
from quintet.request import Sampling


def test_the_bundled_models_facts(model_path: Path) -> None:
    tokenizer = build_tokenizer(read_metadata(model_path))
    expected = {"bos": "<|im_start|>", "eos": "<|im_end|>", "pad": "<|im_end|>"}
    assert {role: getattr(tokenizer.traits.roles, role) for role in expected} == expected
    assert "<|im_start|>" in tokenizer.traits.roles.chat_template
    assert tokenizer.encode(tokenizer.traits.roles.eos) == [tokenizer.eos_id]


class Framed(ToyTokenizer):
    """Puts two ids before a prompt and one after it."""

    def __init__(self) -> None:
        self.traits = Traits(added=(2, 1))

    def encode(self, text: str) -> list[int]:
        return [1, 2, *super().encode(text), 3]


@pytest.mark.parametrize("begin", ["", "\1\2"])
@pytest.mark.parametrize("length", [0, 3, INLINE_CHARS + 1])
def test_special_tokens_are_added_as_prepare_adds_them_or_left_out(length: int, begin: str) -> None:
    """``begin``: the text has already what is put before one, which is not put there twice."""

    async def ask() -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        load = toy_loader()
        engine = Engine(lambda progress: _framed(load(progress)), EngineConfig(kv_bytes=1 << 22))
        preparer = preparer_of(engine)
        with pytest.raises(Loading):
            await preparer.tokenize("a", add_special=True)
        try:
            while engine.health().state is not State.READY:
                await asyncio.sleep(0.001)
            text = begin + "a" * length
            spec = SequenceSpec(text, 0, Sampling(0, 1, 0), None, False)
            prepared = (await prepare(engine, [spec])).sequences[0].tokens if length < 4000 else ()
            return await preparer.tokenize(text, True), await preparer.tokenize(text, False), prepared
        finally:
            await engine.close()

    whole, bare, prepared = asyncio.run(ask())
    assert list(bare) == [*begin.encode(), *[97] * length]
    assert list(whole) == [1, 2, *[97] * length, 3]
    assert tuple(whole) == prepared or not prepared


@pytest.mark.parametrize("length", [3, INLINE_CHARS + 1])
def test_nothing_comes_around_a_text_inside_another(length: int) -> None:
    """Nor the space before it, which is there also of a text without special tokens."""

    class Spaced(Framed):
        def encode(self, text: str) -> list[int]:
            return super().encode(f" {text}")

        def encode_inside(self, text: str) -> list[int]:
            return list(text.encode())

    async def ask() -> tuple[Sequence[int], Sequence[int]]:
        executor = FairExecutor()
        about = cast("Model", SimpleNamespace(tokenizer=Spaced()))
        preparer = Preparer(about, GuideCheck(), executor, ImageReader(executor))
        return await preparer.tokenize("a" * length, add_special=False), await preparer.tokenize_inside("a" * length)

    bare, inside = asyncio.run(ask())
    assert (list(bare), list(inside)) == ([32, *[97] * length], [97] * length)


def _framed(loaded: Loaded[Tokenizer]) -> Loaded[Tokenizer]:
    return replace(loaded, tokenizer=Framed())
