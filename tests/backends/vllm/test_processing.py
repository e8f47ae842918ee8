"""vLLM's own processor of images, played: asked off the event loop, once for all who want the same, and what it makes is kept in bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.backends.vllm.playing import World, one

from quintet.backends.native.wire.messages import Abort, Expand, Expanded, Pixels, Wanted
from quintet.backends.vllm import processing
from quintet.backends.vllm.values import Processed
from quintet.inputs.images.expansion import Expansion, UnprocessableError
from quintet.inputs.images.value import PreparedImage

IMAGE = PreparedImage(b"a", ((2, 3),), (1, 5), (1, 1, 1), b"rgb")
EXPANSION = Expansion((7, 9, 9, 9, 8), (1, 3), ((1, 3),))
TOKENS = (1, 7, 9, 9, 9, 8, 2)
PIXELS = b"pixels"


class Maker:
    """Takes what ``allow`` lets it; images of one digest it does not take at all."""

    def __init__(self) -> None:
        self.made: list[tuple[bytes, ...]] = []
        self.go = threading.Event()
        self.go.set()

    def process(self, images: Sequence[PreparedImage]) -> tuple[Processed, ...]:
        assert self.go.wait(10)
        for number, image in enumerate(images):
            if image.digest == b"bad":
                raise UnprocessableError(number, "too odd")
        assert all(image.pixels for image in images)
        self.made.append(tuple(image.digest for image in images))
        return tuple(Processed(EXPANSION, image.digest.hex(), image.digest, None, 100) for image in images)


def played(scenario: Callable[[World, Maker], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world, maker = World(), Maker()
        world.core.processor = maker
        world.worker.attach(world.core)
        try:
            await scenario(world, maker)
        finally:
            maker.go.set()
            world.sidecar.close()

    asyncio.run(run())


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


def answers(world: World) -> list[Expanded]:
    return [message for message in world.told if isinstance(message, Expanded)]


async def expand(world: World, number: int, *digests: bytes, salt: bytes = b"") -> Expanded:
    world.worker.receive(Expand(number, salt, tuple(replace(IMAGE, digest=digest) for digest in digests)))
    await until(lambda: any(answer.number == number for answer in answers(world)))
    return next(answer for answer in answers(world) if answer.number == number)


def test_what_was_checked_is_not_made_again_for_its_sequences_nor_for_anybody_with_another_salt() -> None:
    async def scenario(world: World, maker: Maker) -> None:
        assert await expand(world, 1, b"a") == Expanded(1, (EXPANSION,))
        prompt = one(TOKENS, images=(replace(IMAGE, pixels=b""),))
        await world.submit(1, prompt, prompt)
        assert maker.made == [(b"a",)]
        assert not any(isinstance(message, Wanted) for message in world.told)
        assert [made.item for asked in world.core.asked.values() for made in asked.processed] == [b"a", b"a"]
        await expand(world, 2, b"a", salt=b"s")
        await expand(world, 3, b"a", salt=b"s")
        assert maker.made == [(b"a",)] * 2

    played(scenario)


def test_a_request_that_another_engine_checked_has_its_pixels_asked_for_and_looked_at_once() -> None:
    async def scenario(world: World, maker: Maker) -> None:
        maker.go.clear()
        prompt = one(TOKENS, images=(replace(IMAGE, pixels=b""),))
        await world.submit(1, prompt, prompt)
        assert [message for message in world.told if isinstance(message, Wanted)] == [Wanted(1, b"a")]
        assert world.core.asked == {}
        world.worker.receive(Pixels(b"a", PIXELS))
        await world.settle()
        world.worker.receive(Abort(1, 0))
        maker.go.set()
        await until(lambda: world.core.asked)
        assert maker.made == [(b"a",)]
        assert [asked.name for asked in world.core.asked.values()] == ["2"], "who left waits for nothing"

    played(scenario)


def test_images_that_are_not_taken_are_told_by_number() -> None:
    async def scenario(world: World, maker: Maker) -> None:
        assert await expand(world, 1, b"a", b"bad") == Expanded(1, refused=(1, "too odd"))
        assert await expand(world, 2, b"a") == Expanded(2, (EXPANSION,))

    played(scenario)


def test_the_worker_goes_on_while_images_are_looked_at() -> None:
    async def scenario(world: World, maker: Maker) -> None:
        maker.go.clear()
        world.worker.receive(Expand(1, b"", (IMAGE,)))
        await world.submit(1, one())
        await world.say("1", 70, 71, 72)
        assert [row.token for row in world.rows(1)] == [70, 71, 72]
        assert answers(world) == []
        maker.go.set()
        await until(lambda: answers(world))

    played(scenario)


def test_what_is_kept_is_bounded_and_what_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_KEPT", 250)

    async def scenario(world: World, maker: Maker) -> None:
        for number, digests in enumerate(((b"a",), (b"b",), (b"a",), (b"c",), (b"a",), (b"d", b"e", b"f"), (b"d", b"e", b"f"), (b"a",))):
            await expand(world, number, *digests)
        assert maker.made == [(b"a",), (b"b",), (b"c",), (b"d", b"e", b"f"), (b"a",)]

    played(scenario)
