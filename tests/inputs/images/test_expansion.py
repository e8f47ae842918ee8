"""Images that an engine's own processor shows its model: where what it has made of them goes, and what crosses to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.inputs.images.pictures import data_url, file, image
from tests.support.preparing import prepare
from tests.support.seeing import IDS, ROWS, SeeingBackend, SeeingTokenizer

from quintet.errors import BadRequest, Overloaded, Unsupported
from quintet.executor import FairExecutor
from quintet.inputs.images import reader
from quintet.inputs.images.expansion import Expansion, ProcessorTraits, expansion_placer_of
from quintet.inputs.images.layout import Cut
from quintet.inputs.images.places import Picture
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Image, Prompt, Sampling

SOFT, START, END, BREAK = (IDS[text] for text in ("<image_soft_token>", "<start_of_image>", "<end_of_image>", "<global-img>"))
PNG = Image(data_url(file(40, 17)), "images[0]")


def spec(prompt: Prompt, *images: Image, salt: str = "") -> SequenceSpec:
    own = tuple(replace(image) for image in images)
    return SequenceSpec(prompt, 4, Sampling(0.0, 1.0, 0), None, echo=False, images=own, cache_salt=salt)


def prepared(*specs: SequenceSpec, traits: ProcessorTraits = ROWS) -> SeeingBackend:
    """After it was given such sequences."""

    async def go() -> SeeingBackend:
        backend = SeeingBackend(traits)
        try:
            backend.submitted.append(await prepare(backend, specs))
        finally:
            await backend.close()
        return backend

    return asyncio.run(go())


def test_all_that_stands_for_an_image_is_where_its_mark_was_and_its_places_are_told() -> None:
    backend = prepared(spec("a<image>b", PNG, salt="s"))
    (sequence,) = backend.submitted[0].sequences
    rows = [SOFT] * 5 + [BREAK]
    assert sequence.tokens == (ord("a"), START, *rows, *rows, END, ord("b"))
    (seen,) = sequence.images
    assert (seen.places, seen.span, seen.shape) == (((2, 5), (8, 5)), (1, 14), (1, 17, 40))
    assert backend.expanded == [((40, 17), sequence.salt)] and sequence.salt, "of the caches that the sequence may use"
    assert seen.pixels == image(40, 17).tobytes()


def test_in_a_prompt_of_ids_the_models_token_becomes_what_the_processor_puts_for_it() -> None:
    backend = prepared(spec((START, SOFT, END), PNG))
    (sequence,) = backend.submitted[0].sequences
    rows = (*[SOFT] * 5, BREAK)
    assert sequence.tokens == (START, *rows, *rows, END)
    assert (sequence.images[0].places, sequence.images[0].span) == (((1, 5), (7, 5)), (1, 12))


@pytest.mark.fault("A21")
@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        (spec("<image><image>", PNG), "images", "as many as <image> in prompt"),
        (spec("<image>" * 4, *[PNG] * 4), "images", "at most 3"),
        (spec("<image><image_soft_token>", PNG), "prompt", "must not hold the model's own token for images"),
        (spec("<image_soft_token>"), "prompt", "must not hold the model's token for images"),
        (spec((65, SOFT)), "prompt", "must not hold the model's token for images"),
        (spec("<image><image>", PNG, Image(data_url(file(7, 9)), "images[1]")), "images[1]", "8 pixels wide"),
    ],
)
def test_what_cannot_be_is_refused_by_name(asked: SequenceSpec, param: str, told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        prepared(asked)
    assert caught.value.param == param and told in str(caught.value)


def test_a_token_for_images_that_no_text_gives_is_no_place_for_them() -> None:
    with pytest.raises(Unsupported, match="no token in a text"):
        expansion_placer_of(SeeingTokenizer(), ProcessorTraits(SOFT, "soft", 1), "m")


@pytest.mark.parametrize(
    "wrong",
    [((1, 3), ((0, 1),)), ((1, 3), ((3, 2),)), ((1, 9), ((1, 1),)), ((1, 3), ((2, 1), (1, 1))), ((1, 3), ((1, 0),)), ((1, 3), ())],
)
def test_places_that_are_not_where_they_can_be_are_not_believed(wrong: tuple[tuple[int, int], tuple[tuple[int, int], ...]]) -> None:
    with pytest.raises(ValueError, match="place"):
        Expansion((1, 2, 3, 4, 5), *wrong)


def read(traits: ProcessorTraits, *images: Image) -> list[Picture]:
    async def go() -> list[Picture]:
        made = ImageReader(FairExecutor())
        try:
            found = await made.read(images, traits)
        finally:
            made.close()
        return [found[one.url] for one in images]

    return asyncio.run(go())


def test_an_image_is_left_whole_and_smaller_only_if_that_was_asked_for() -> None:
    wide = Image(data_url(file(60, 20)), "images[1]")
    turned = Image(data_url(file(20, 60)), "images[2]")
    whole = read(ROWS, PNG, wide, turned)
    assert [one.cut.sizes for one in whole] == [((40, 17),), ((60, 20),), ((20, 60),)]
    assert whole[1].pixels == image(60, 20).tobytes()
    small = read(ProcessorTraits(SOFT, "", 3, longest_edge=30), wide, turned)
    assert [one.cut for one in small] == [Cut(((30, 10),)), Cut(((10, 30),))]
    theirs = np.asarray(image(60, 20).resize((30, 10), 3))
    assert np.array_equal(np.frombuffer(small[0].pixels, np.uint8).reshape(10, 30, 3), theirs)
    assert len({one.digest for one in (*whole, *small)}) == 5


def test_the_same_bytes_in_another_form_are_another_image() -> None:
    grey = Image(data_url(_grey(40, 10)), "images[0]"), Image(data_url(_grey(10, 40)), "images[1]")
    first, second = read(ROWS, *grey)
    assert first.pixels == second.pixels and first.digest != second.digest


@pytest.mark.fault("B17")
def test_pixels_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_BYTES", 3 * 700)
    with pytest.raises(BadRequest, match="become at most 700 pixels together") as caught:
        read(ROWS, PNG, Image(data_url(file(11, 5)), "images[1]"))
    assert caught.value.param == "images[1]"


@pytest.mark.fault("B17")
def test_pixels_are_counted_while_the_engine_is_asked_and_once_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40 * 17 * 3
    monkeypatch.setattr(reader, "MOST_HELD", 2 * size)

    async def go() -> None:
        backend, other = SeeingBackend(ROWS), Image(data_url(file(40, 17, "JPEG"), "image/jpeg"), "images[0]")
        backend.answer = asyncio.Event()
        try:
            waiting = [asyncio.create_task(prepare(backend, [spec("<image>", one)])) for one in (PNG, other)]
            while len(backend.expanded) < len(waiting):
                await asyncio.sleep(0.001)
            with pytest.raises(Overloaded, match="no room for more images"):
                await prepare(backend, [spec("<image>", Image(data_url(file(40, 17, "BMP")), "images[0]"))])
            backend.answer.set()
            made = [await one for one in waiting]
            with pytest.raises(Overloaded):
                await prepare(backend, [spec("<image>", PNG)])
            del made, waiting
            await prepare(backend, [spec("<image>", PNG)])
        finally:
            await backend.close()

    asyncio.run(go())


@pytest.mark.fault("B15")
def test_a_line_is_no_image_for_a_processor_that_would_widen_it() -> None:
    read(ROWS, Image(data_url(file(50, 1)), "images[0]"), Image(data_url(file(2, 100)), "images[1]"))
    for size in ((51, 1), (2, 101)):
        with pytest.raises(BadRequest, match="at most 50 times as long as wide") as caught:
            read(ROWS, PNG, Image(data_url(file(*size)), "images[1]"))
        assert caught.value.param == "images[1]"


def _grey(width: int, height: int) -> bytes:
    import io

    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.new("RGB", (width, height), (128, 128, 128)).save(buffer, "PNG")
    return buffer.getvalue()
