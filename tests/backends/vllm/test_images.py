"""Images on their way to vLLM: pixels as its processors leave them, places, names in caches, and when pixels are asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.backends.vllm.playing import World, one, played
from tests.reference.seeing_folder import write_seeing

from quintet.backends.native.wire.messages import Abort, FromWorker, Pixels, Wanted
from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.vllm.images import Pictures, normalised, salted, sight_of, taken
from quintet.backends.vllm.wire import decode_choose
from quintet.config import VllmConfig
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.models.vision.spec import VisionSpec

SPEC = VisionSpec("idefics3", 2, 1, 8, 1, 8, 1, 1, 8, 1e-6, (0.5, 0.4, 0.3), (0.5, 0.2, 0.1), 4)
TOKENS = (1, 2, 9, 9, 3, 9, 9, 4)


def image(name: bytes = b"a", pixels: bytes = b"") -> PreparedImage:
    """Of two tiles."""
    return PreparedImage(name, ((2, 2), (5, 2)), (1, 7), (2, 2, 2), pixels)


def wanted(told: list[FromWorker]) -> list[Wanted]:
    return [message for message in told if isinstance(message, Wanted)]


def test_gemma_3_is_shown_images_where_vllm_lets_their_tokens_see_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gemma = VllmSource(path=str(write_seeing(tmp_path / "gemma", "gemma3")), name="gemma", context=0, options=VllmConfig(), vision="layout")
    smolvlm = VllmSource(path=str(write_seeing(tmp_path / "smolvlm")), name="smolvlm", context=0, options=VllmConfig(), vision="layout")
    seen = sight_of(gemma, cpu=False)
    assert seen is not None
    assert seen.traits == ImageTraits("gemma3", 112, seen.traits.longest_edge, 16)
    assert sight_of(gemma, cpu=True) is None
    assert "gemma takes no images" in caplog.text
    assert (there := sight_of(smolvlm, cpu=True)) is not None
    assert there.traits == ImageTraits("idefics3", 60, 240, 4)
    assert sight_of(replace(smolvlm, vision="processor"), cpu=True) is None


def test_pixels_are_scaled_and_normalised_and_their_colours_come_first() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    found = normalised(image(pixels=pixels.tobytes()), SPEC)
    assert found.shape == (2, 3, 2, 2)
    assert found.dtype == np.float32
    for (tile, row, column, colour), value in np.ndenumerate(pixels):
        assert found[tile, colour, row, column] == pytest.approx((value / 255 - SPEC.mean[colour]) / SPEC.std[colour], abs=1e-5)


def test_places_are_told_apart_from_what_is_between_them() -> None:
    start, mask = taken(image())
    assert (start, mask.tolist()) == (2, [True, True, False, True, True])


def test_nobody_with_another_salt_finds_an_image() -> None:
    names = {salted(b"a", ""), salted(b"a", "01"), salted(b"a", "02"), salted(b"b", "01")}
    assert len(names) == 4
    assert salted(b"a", "01") == salted(b"a", "01")


def test_pixels_are_asked_for_once_for_all_samples_of_a_request_and_let_go_of_with_the_last() -> None:
    async def scenario(world: World) -> None:
        prompt = one(TOKENS, images=(image(),))
        await world.submit(1, prompt, prompt)
        assert wanted(world.told) == [Wanted(1, b"a")]
        assert world.core.asked == {}, "vLLM is given nothing before they are there"
        world.worker.receive(Pixels(b"a", b"pixels"))
        await world.settle()
        assert [asked.images for asked in world.core.asked.values()] == [(image(pixels=b"pixels"),)] * 2
        for name in ("1", "2"):
            await world.say(name, 70, 71, 72)
        await world.submit(2, prompt)
        assert wanted(world.told) == [Wanted(1, b"a"), Wanted(2, b"a")]

    played(scenario)


def test_who_leaves_while_pixels_are_on_their_way_does_not_take_anothers_along() -> None:
    async def scenario(world: World) -> None:
        prompt = one(TOKENS, images=(image(),))
        await world.submit(1, prompt)
        await world.submit(2, prompt)
        world.worker.receive(Abort(1, None))
        world.worker.receive(Pixels(b"a", b"pixels"))
        await world.settle()
        assert [asked.images[0].pixels for asked in world.core.asked.values()] == [b"pixels"]

    played(scenario)


def test_one_of_several_who_wait_for_the_same_pixels_may_leave() -> None:
    async def scenario() -> None:
        asked: list[Wanted] = []
        pictures = Pictures(asked.append)

        async def see() -> bytes:
            async with pictures.held(1, (image(),)) as images:
                return images[0].pixels

        first, second = asyncio.create_task(see()), asyncio.create_task(see())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        pictures.take(Pixels(b"b", b"others"))
        pictures.take(Pixels(b"a", b"pixels"))
        assert await second == b"pixels"
        assert asked == [Wanted(1, b"a")]

    asyncio.run(scenario())


def test_places_are_neither_scored_nor_counted_by_penalties() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(TOKENS, images=(image(),), echo=True, logprobs=0))
        world.worker.receive(Pixels(b"a", b"pixels"))
        await world.settle()
        choose = decode_choose(world.core.asked["1"].choose)
        assert (choose.start, choose.sequence.tokens, choose.sequence.images) == (8, (1, 2, 3, 4), ())
        await world.say("1", 70, scored=((-1.0, ()),), prompt=tuple((-float(at), ()) for at in range(1, 8)))
        events = [row.event([b"x"] * 300) for row in world.rows(1)]
        assert [event.logprob for event in events if event.prompt] == [None, -1.0, None, None, -4.0, None, None, -7.0]

    played(scenario)


def test_the_same_tokens_with_another_image_are_another_prompt() -> None:
    async def scenario(world: World) -> None:
        echoed = one(TOKENS, images=(image(),), echo=True, logprobs=0)
        await world.submit(1, echoed, echoed, replace(echoed, images=(image(b"b"),)))
        for name in (b"a", b"b"):
            world.worker.receive(Pixels(name, name))
        await world.settle()
        assert [asked.images[0].digest for asked in world.core.asked.values()] == [b"a", b"b"], "each echo has its own leader"

    played(scenario)
