"""vLLM's own processor of images, without an engine: what it does not take is told by number, and who is shown none by reason."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from tests.vllm.models import folder

from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.vllm.arguments import engine_arguments
from quintet.backends.vllm.processor import NOT_TAKEN, Processor, UnseeingError, probe
from quintet.config import EngineConfig, VllmConfig
from quintet.inputs.images.expansion import UnprocessableError
from quintet.inputs.images.value import PreparedImage


def image(width: int, height: int, level: int = 1) -> PreparedImage:
    return PreparedImage(bytes([level]), (), (0, 0), (1, height, width), bytes([level]) * (width * height * 3))


@pytest.fixture(scope="module")
def vllm() -> Any:
    """vLLM's configuration for a model."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    from vllm.engine.arg_utils import AsyncEngineArgs

    options = VllmConfig(dtype="float32", kv_bytes=64 << 20, vllm_arg=("enforce_eager=true",))
    source = VllmSource(path=str(folder("qwen2_5_vl")), name="m", context=512, options=options, vision="processor")
    made = engine_arguments(source, EngineConfig(), "", "quintet.backends.vllm.v1:Choose", cpu=True, sees="processor")
    return AsyncEngineArgs(**made).create_engine_config()


@pytest.fixture(scope="module")
def processor(vllm: Any) -> Processor:
    return Processor(vllm, cpu=True)


def test_an_image_has_all_its_tokens_and_is_known_by_what_the_model_takes_of_it(processor: Processor) -> None:
    first, second, third = processor.process([image(56, 56), image(112, 56, 2), image(56, 56)])
    start, count = first.expansion.core
    assert (start, len(first.expansion.tokens)) == (1, count + 2), "of a text: with what begins and ends it"
    assert first.expansion.places == ((1, 4),)
    assert second.expansion.places == ((1, 8),)
    assert set(second.expansion.tokens[1:9]) == {processor.traits.token}
    assert first.name == third.name != second.name
    assert first.size > 0


def test_one_that_it_does_not_take_is_told_by_its_number(processor: Processor) -> None:
    with pytest.raises(UnprocessableError, match=NOT_TAKEN) as caught:
        processor.process([image(56, 56), image(28 * 300, 28)])
    assert caught.value.index == 1


def test_one_for_which_vllm_has_no_room_is_too_large(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "most_embeddings", 4)
    with pytest.raises(UnprocessableError, match="must take at most 4 tokens, for which vLLM has room, but takes 8") as caught:
        processor.process([image(56, 56), image(112, 56)])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("about", "cpu", "why"),
    [
        ({"is_encoder_decoder": True}, False, "an encoder of prompts"),
        ({"is_encoder_decoder": False, "is_mm_prefix_lm": True}, True, "does not let an image's tokens see each other"),
        (
            {"is_encoder_decoder": False, "is_mm_prefix_lm": False, "is_multimodal_model": False, "served_model_name": "m"},
            True,
            "m is not a",
        ),
    ],
)
def test_what_cannot_be_shown_images_is_told_why(about: dict[str, Any], cpu: bool, why: str) -> None:
    with pytest.raises(UnseeingError, match=why):
        Processor(SimpleNamespace(model_config=SimpleNamespace(**about)), cpu=cpu)


def test_a_processor_that_fails_at_the_start_is_no_way_to_show_images(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Processor, images: Any) -> Any:
        raise RuntimeError("no such pixels")

    monkeypatch.setattr(Processor, "_made", failing)
    with pytest.raises(UnseeingError, match="fails on an image: no such pixels"):
        Processor(vllm, cpu=True)
    assert probe(1).pixels != probe(2).pixels
