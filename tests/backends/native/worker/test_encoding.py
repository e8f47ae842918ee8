"""Images are encoded in pieces of bounded time, of pixels that are asked for when it is their turn."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quintet.backends.native.core.types import F32, U8
from quintet.backends.native.schedule.images import PendingImage
from quintet.backends.native.wire.messages import Pixels, Wanted
from quintet.backends.native.worker.encoding import ALONE_S, PIECE_S, Encoding
from quintet.inputs.images.value import PreparedImage

TILE = 12
"""Bytes."""


class SlowEncoder:
    """Takes a second for so many multiply-adds, and tells which tile it saw."""

    tokens, work = 2, 10**10

    def __init__(self, speed: float) -> None:
        self.now, self._speed, self._left, self._tile = 0.0, speed, 0, 0

    def begin(self, tile: U8) -> None:
        if len(tile) != TILE:
            raise ValueError("of another size")
        self._left, self._tile = self.work, int(tile[0])

    def advance(self, work: int) -> bool:
        done = min(work, self._left)
        self._left -= done
        self.now += done / self._speed
        return not self._left

    def rows(self) -> F32:
        return np.full((self.tokens, 3), self._tile, np.float32)


class World:
    def __init__(self, speed: float = 1e10) -> None:
        self.encoder, self.asked = SlowEncoder(speed), list[Wanted]()
        self.encoding = Encoding(self.encoder, lambda: self.encoder.now, self.asked.append)

    def step(self, job: PendingImage | None, *, alone: bool = False) -> tuple[F32 | None, float]:
        """What came of it, and the seconds that it took."""
        begin = self.encoder.now
        return self.encoding.step(job, alone=alone), self.encoder.now - begin

    def send(self, job: PendingImage) -> None:
        self.encoding.take(Pixels(job.image.digest, job.image.pixels))


def job(name: str, tiles: int, request: int = 1) -> PendingImage:
    pixels = b"".join(bytes([tile + 1] * TILE) for tile in range(tiles))
    image = PreparedImage(hashlib.sha256(name.encode()).digest(), ((0, 2 * tiles),), (0, 2 * tiles), (tiles, 2, 2), pixels)
    return PendingImage((b"", image.digest), request, image)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("speed", [1e10, 4e11])
def test_a_piece_takes_as_long_as_it_may_and_the_tiles_come_in_their_order(speed: float, alone: bool) -> None:
    world, one = World(speed), job("a", 3)
    assert world.step(one) == (None, 0.0)
    assert world.asked == [Wanted(1, one.image.digest)]
    assert world.encoding.waits
    world.send(one)
    times = []
    for _ in range(1000):
        rows, took = world.step(one, alone=alone)
        times.append(took)
        if rows is not None:
            break
    assert rows is not None
    assert rows[:, 0].tolist() == [1, 1, 2, 2, 3, 3]
    assert max(times) < 1.5 * (ALONE_S if alone else PIECE_S)
    assert sum(times) == pytest.approx(3 * SlowEncoder.work / speed)


def test_pixels_are_asked_for_again_of_another_request_if_the_first_is_gone() -> None:
    world = World()
    world.step(job("a", 1, request=1))
    world.step(job("a", 1, request=1))
    world.step(job("a", 1, request=2))
    assert [wanted.request_id for wanted in world.asked] == [1, 2]
    world.send(job("a", 1))
    world.step(job("a", 1, request=3))
    assert len(world.asked) == 2, "once they are there it does not matter whose they were"


def test_pixels_of_another_image_are_not_taken_for_those_of_this() -> None:
    world, one = World(), job("a", 1)
    world.step(job("b", 1))
    world.step(one)
    world.send(job("b", 1))
    assert world.encoding.waits
    world.send(one)
    assert not world.encoding.waits


def test_another_turn_begins_from_the_first_tile() -> None:
    world, one, other = World(1e11), job("a", 2), job("b", 1)
    for each in (one, other, one):
        world.step(each)
        world.send(each)
        for _ in range(3):
            world.step(each)
    found = None
    while found is None:
        found, _ = world.step(one)
    assert found[:, 0].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("broken", ["begin", "advance", "rows"])
@pytest.mark.parametrize("after", [0, 1])
def test_what_cannot_be_encoded_is_given_up_and_the_next_one_with_it_begins_from_the_first_tile(
    broken: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be told the rows of the image before it."""
    world, before, one = World(1e12), job("a", 2), job("b", 2, request=2)
    before = replace(before, image=replace(before.image, pixels=bytes([9] * 2 * TILE)))
    world.step(before)
    world.send(before)
    found, _ = world.step(before)
    assert found is not None
    real, calls = getattr(world.encoder, broken), itertools.count()

    def breaks(*args: Any) -> Any:
        if next(calls) == after:
            raise MemoryError
        return real(*args)

    world.step(one)
    world.send(one)
    with monkeypatch.context() as short:
        short.setattr(world.encoder, broken, breaks)
        with pytest.raises(MemoryError):
            world.step(one)
    again = replace(one, request_id=3)
    assert world.step(again)[0] is None
    assert [wanted.request_id for wanted in world.asked] == [1, 2, 3]
    world.send(again)
    found, _ = world.step(again)
    assert found is not None
    assert found[:, 0].tolist() == [1, 1, 2, 2]


def test_pixels_of_a_wrong_number_are_an_error() -> None:
    world, one = World(), job("a", 1)
    world.step(one)
    world.encoding.take(Pixels(one.image.digest, b"short"))
    with pytest.raises(ValueError, match="of another size"):
        world.step(one)
