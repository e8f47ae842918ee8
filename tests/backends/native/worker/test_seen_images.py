"""Requests with images through a worker: about one that was seen before, and with one that cannot be encoded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.native.schedule.harness import prepared
from tests.backends.native.worker.harness import CONFIG, ONE, World

from quintet.backends.native.core.types import F32, U8, Batch, Meanwhile
from quintet.backends.native.wire.messages import EventRow, Pixels, Stepped, Stop, Wanted
from quintet.config import CacheFolder, EngineConfig
from quintet.events import Finish
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import PreparedSequence

ROWS = 64


class Eye:
    """An encoder that is done at once."""

    tokens, work = ROWS, 1

    def begin(self, tile: U8) -> None:
        self._tile = int(tile[0])

    def advance(self, work: int) -> bool:
        return True

    def rows(self) -> F32:
        return np.full((ROWS, 4), self._tile, np.float32)


class Blind(Eye):
    def begin(self, tile: U8) -> None:
        raise MemoryError


def seeing(encoder: Eye, config: EngineConfig = CONFIG) -> World:
    return World(config=config, encoder=encoder, images=ImageTraits("idefics3", 2, 2, ROWS))


def asked(question: bytes) -> PreparedSequence:
    """The prefix of another question about the image ends among its places."""
    pixels = b"x" * 12
    image = PreparedImage(hashlib.sha256(pixels).digest(), ((5, ROWS),), (5, ROWS + 1), (1, 2, 2), pixels)
    return replace(prepared(b"see: " + b"#" * ROWS + b"." + question, 3), images=(image,))


def answered(world: World, request_id: int, one: PreparedSequence) -> list[Any]:
    """What is told of it, until it ends."""
    world.submit(request_id, [one])
    told: list[Any] = []
    while not (told and isinstance(told[-1], EventRow) and told[-1].finish):
        before = len(world.told)
        world.run(1)
        for _, message in world.told[before:]:
            if isinstance(message, Wanted):
                world.inbox.put(Pixels(message.digest, one.images[0].pixels))
            elif isinstance(message, Stepped):
                told += message.events.get(request_id, ())
    return told


def test_a_question_about_an_image_whose_rows_are_gone_while_its_pages_are_there_is_answered(tmp_path: Path) -> None:
    """As after a restart, where the disk has the pages."""
    config = replace(CONFIG, prefixes=CacheFolder(str(tmp_path / "kept"), 1 << 24))
    before = seeing(Eye(), config)
    answered(before, 1, asked(b"what is it?"))
    before.inbox.put(Stop())
    assert list(before.turns) == []
    world, one = seeing(Eye(), config), asked(b"who made it?")
    told = answered(world, 1, one)
    assert told[-1].cached_tokens == ROWS, "the last of them is the image's last but five"
    assert [row.token for row in told] == [row.token for row in answered(seeing(Eye()), 1, one)]
    world.inbox.put(Stop())
    assert list(world.turns) == []


def test_an_image_that_cannot_be_encoded_ends_its_request_before_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should their step take the engine along, it is no suspect."""
    world, ended = seeing(Blind()), list[bool]()
    world.submit(1, [ONE])
    world.run(5)
    computes = world.runner.forward

    def forward(batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        told = (row for _, message in world.told if isinstance(message, Stepped) for row in message.events.get(2, ()))
        ended.append(any(isinstance(row, EventRow) and row.finish is Finish.ERROR for row in told))
        rows: U8 = computes(batch, meanwhile)
        return rows

    monkeypatch.setattr(world.runner, "forward", forward)
    told = answered(world, 2, asked(b"what is it?"))
    assert [row.finish for row in told] == [Finish.ERROR]
    assert ended[-1]
    assert not any(ended[:-1])
