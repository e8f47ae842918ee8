"""What stands for images among a prompt's tokens is what tokenising transformers' text gives; a data URL holds its bytes, or is a 400."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.images.pictures import data_url, file
from tests.support.preparing import prepare
from tests.support.seeing import GEMMA, IDEFICS, IDS, SeeingBackend, SeeingTokenizer

from quintet.errors import BadRequest, Unsupported
from quintet.inputs.images.data_url import decoded
from quintet.inputs.images.expansion import ProcessorTraits
from quintet.inputs.images.layout import WORDS, Cut, ImageTraits
from quintet.inputs.images.places import Picture, placer_of
from quintet.inputs.sequence import SequenceSpec
from quintet.models.special import Specials
from quintet.request import Image, Sampling

TOKENIZER = SeeingTokenizer()
SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300))
TEXTS = st.text("ab\n <é", max_size=12)


def picture(cut: Cut) -> Picture:
    return Picture(cut, b"", b"")


def whole(cut: Cut, traits: ImageTraits) -> str:
    """With a word for each place, as transformers' processors write it: ``get_image_prompt_string``, ``full_image_sequence``."""
    places = WORDS[traits.family].image * traits.tokens_per_tile
    if traits.family == "gemma3":
        return f"\n\n<start_of_image>{places}<end_of_image>\n\n"
    fake, text = "<fake_token_around_image>", ""
    for row in range(cut.rows):
        text += "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{places}" for column in range(cut.columns)) + "\n"
    return text + ("\n" if cut.rows else "") + f"{fake}<global-img>{places}{fake}"


@pytest.mark.parametrize("traits", [IDEFICS, GEMMA])
@given(st.lists(st.tuples(TEXTS, SIZES), min_size=1, max_size=4), TEXTS)
def test_tokens_are_those_of_the_text_with_all_its_places(traits: ImageTraits, parts: list[tuple[str, tuple[int, int]]], end: str) -> None:
    cuts = [traits.cut(*size) for _, size in parts]
    pictures = [picture(cut) for cut in cuts]
    placer = placer_of(TOKENIZER, traits, "m")
    prompt = "".join(f"{text}<image>" for text, _ in parts) + end
    tokens, images = placer.place(TOKENIZER.encode(placer.text(prompt, pictures)), pictures, "prompt")
    theirs = "".join(text + whole(cut, traits) for (text, _), cut in zip(parts, cuts, strict=True)) + end
    assert list(tokens) == TOKENIZER.encode(theirs)
    places = [at for image in images for first, count in image.places for at in range(first, first + count)]
    assert places == [at for at, token in enumerate(tokens) if token == placer.image]
    for image, cut in zip(images, cuts, strict=True):
        start, count = image.span
        assert len(image.places) == cut.tiles == image.shape[0]
        assert tokens[start] == placer.first and tokens[start + count - 1] == placer.last
        assert start < image.places[0][0] and sum(image.places[-1]) < start + count
    ends = [image.span[0] + image.span[1] for image in images]
    assert all(end <= image.span[0] for end, image in zip(ends, images[1:], strict=False))


def test_ids_are_laid_out_as_text_is() -> None:
    placer = placer_of(TOKENIZER, IDEFICS, "m")
    one = picture(IDEFICS.cut(40, 30))
    laid = TOKENIZER.encode_inside(placer.laid(one))
    given = placer.ids([97, placer.image, 98], [laid])
    assert placer.place(given, [one], "prompt") == placer.place(TOKENIZER.encode(placer.text("a<image>b", [one])), [one], "prompt")


def poor() -> SeeingTokenizer:
    """Of a vocabulary without the token that stands for an image."""
    made = SeeingTokenizer()
    made._specials = Specials([(text, token) for text, token in IDS.items() if text != "<image>"])
    return made


def test_a_vocabulary_without_the_words_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"has no <image>\.$") as caught:
        placer_of(poor(), IDEFICS, "m")
    assert caught.value.param == "images"


@pytest.mark.parametrize("traits", [IDEFICS, ProcessorTraits(IDS["<image>"], "<image>", 3)])
def test_texts_are_completed_where_images_could_not_be_placed(
    traits: ImageTraits | ProcessorTraits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeeingBackend, "tokenizer", poor())
    plain = SequenceSpec("a<image>", 4, Sampling(0.0, 1.0, 0), None, echo=False)
    seeing = replace(plain, images=(Image(data_url(file(4, 4)), "images[0]"),))

    async def go(spec: SequenceSpec) -> tuple[int, ...]:
        return (await prepare(SeeingBackend(traits), [spec])).sequences[0].tokens

    assert asyncio.run(go(plain)) == tuple(b"a<image>")
    with pytest.raises(Unsupported) as caught:
        asyncio.run(go(seeing))
    assert caught.value.param == "images"


@given(st.binary(max_size=60), st.sampled_from(["data:image/png;base64,", "DATA:IMAGE/JPEG;BASE64,", "data:image/x;charset=a;base64,"]))
def test_a_data_url_holds_its_bytes(data: bytes, head: str) -> None:
    assert decoded(Image(head + base64.b64encode(data).decode(), "images[0]")) == data


@given(
    st.text(max_size=40),
    st.sampled_from(["", "data:", "data:image/png;base64,", "data:image/png;base64", "data:image/png,", "data:text/plain;base64,"]),
)
def test_any_other_is_refused_by_name_and_none_of_it_is_told(text: str, head: str) -> None:
    try:
        data = decoded(Image(head + text, "images[3]"))
    except BadRequest as error:
        assert error.param == "images[3]" and (len(text) < 9 or text not in str(error))
    else:
        assert base64.b64encode(data).decode() == (head + text).partition(",")[2]
