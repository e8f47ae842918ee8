"""Images of every kind are decoded as transformers' processors see them; hostile ones are refused, and nothing else happens."""

from __future__ import annotations

import io
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.inputs.images.pictures import FORMATS, file, image, png

from quintet.inputs.images.decode import rgb, upright_size
from quintet.inputs.images.messages import DAMAGED, FORMAT, MAX_PIXELS, PIXELS, RefusedError


def kind_of(blob: bytes) -> bytes:
    """How it is refused; empty = it is not."""
    try:
        upright_size(blob)
        rgb(blob)
    except RefusedError as error:
        return error.kind
    return b""


@pytest.mark.parametrize("form", ["PNG", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_what_is_not_compressed_for_the_eye_has_the_very_pixels(form: str, mode: str) -> None:
    assert rgb(file(21, 13, form, mode)).tobytes() == image(21, 13, mode).convert("RGB").tobytes()


@pytest.mark.fault("A22")
def test_unusual_kinds_are_images_too() -> None:
    """CMYK, 16 bits of grey, a palette, grey with alpha, an animation, a progressive file."""
    kinds = [
        file(9, 7, "JPEG", "CMYK"),
        file(9, 7, "JPEG", progressive=True),
        saved(Image.fromarray((np.arange(63, dtype=np.uint16) * 1040).reshape(7, 9)), "PNG"),
        saved(image(9, 7).convert("P"), "PNG"),
        saved(image(9, 7).convert("1"), "PNG"),
        saved(image(9, 7).convert("LA"), "PNG"),
        saved(image(9, 7), "GIF", save_all=True, append_images=[image(9, 7, "L").convert("RGB")]),
        saved(image(9, 7), "WEBP", save_all=True, append_images=[image(9, 7, "L").convert("RGB")]),
    ]
    for blob in kinds:
        assert upright_size(blob) == rgb(blob).size == (9, 7)
    grey = np.asarray(rgb(kinds[2]))[:, :, 0].reshape(-1)
    assert abs(grey.astype(int) - np.arange(63) * 1040 // 257).max() <= 1


def test_of_an_animation_the_first_frame_is_seen() -> None:
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    assert rgb(saved(red, "GIF", save_all=True, append_images=[blue])).getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_laid_over_white(mode: str) -> None:
    clear = Image.new("RGBA", (6, 600), (10, 20, 30, 0))
    clear.paste((10, 20, 30, 255), (0, 0, 3, 600))
    made = rgb(saved(clear if mode != "P" else clear.convert("P"), "PNG") if mode != "LA" else saved(clear.convert("LA"), "PNG"))
    assert made.getpixel((5, 599)) == (255, 255, 255) and made.getpixel((1, 599)) != (255, 255, 255)


def test_the_colour_of_16_bits_that_is_transparent_is_laid_over_white() -> None:
    row = b"\0" + struct.pack(">6H", *[0x1234] * 3, *[0x3434] * 3)
    made = rgb(png(2, 1, row, bits=16, more=((b"tRNS", struct.pack(">3H", *[0x1234] * 3)),)))
    assert np.asarray(made)[0, :, 0].tolist() == [255, 0x34]


def test_the_one_of_65536_greys_that_is_transparent_is_laid_over_white_and_no_other() -> None:
    grey = np.array([[0x1234, 0x1233, 0x1235, 0x3434, 0x3412, 0xFFFF, 0]], np.uint16)
    made = np.asarray(rgb(saved(Image.fromarray(grey), "PNG", transparency=0x1234)))[0, :, 0]
    assert made.tolist() == [255, 18, 18, 52, 51, 255, 0]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_grey_that_is_transparent_is_that_of_the_file_however_few_bits_it_has(bits: int) -> None:
    most = 2**bits - 1
    row = b"\0" + sum(grey << bits * (7 - at) for at, grey in enumerate((0, 1, most))).to_bytes(bits, "big")
    for clear in range(most):  # the brightest is white anyway
        made = np.asarray(rgb(png(8, 1, row, bits=bits, colour=0, more=((b"tRNS", struct.pack(">H", clear)),))))[0, :3, 0]
        assert made.tolist() == [255 if grey == clear else grey * 255 // most for grey in (0, 1, most)]


@pytest.mark.fault("G07")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_seen_upright(form: str, orientation: int) -> None:
    """As Pillow's own function turns it."""
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    blob = saved(image(9, 7), form, exif=exif)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(blob))).convert("RGB")
    assert rgb(blob).tobytes() == wanted.tobytes() and rgb(blob).size == wanted.size == upright_size(blob)


@pytest.mark.fault("B16")
def test_other_formats_are_not_even_tried() -> None:
    others = [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
        *(saved(image(9, 7), form) for form in ("TIFF", "PPM", "ICO", "TGA", "PDF", "JPEG2000")),
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00avifmif1miaf",
        b"PK\x03\x04", b"", b"\0" * 100, b"BM", b"GIF8", b"\xff\xd8",
    ]  # fmt: skip
    for blob in others:
        assert kind_of(blob) in (FORMAT, DAMAGED), blob[:20]


@pytest.mark.fault("B14", "B15")
def test_sizes_are_looked_at_before_anything_is_decoded() -> None:
    """Files of a few bytes that say that they are huge, or nothing at all."""

    def bmp(width: int, height: int) -> bytes:
        return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, width, height, 1, 24, 0, 6, 0, 0, 0, 0) + b"\0" * 6

    def gif(width: int, height: int) -> bytes:
        return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2\0;"

    huge = [png(2**31 - 1, 2**31 - 1), png(40_000, 1001), bmp(40_000, 1001), bmp(2**31 - 1, 1), gif(65_535, 65_535)]
    for blob in huge:
        with pytest.raises(RefusedError) as caught:
            upright_size(blob)
        assert caught.value.kind == PIXELS
        assert kind_of(blob) == PIXELS
    for blob in (png(0, 5), png(5, 0), bmp(0, 0), bmp(-5, 5), gif(0, 0)):
        assert kind_of(blob) in (FORMAT, DAMAGED, PIXELS)
    assert MAX_PIXELS == 40_000 * 1000 and upright_size(png(40_000, 1000)) == (40_000, 1000)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_cut_off_at_any_byte_is_refused_or_is_the_whole_picture(form: str) -> None:
    """What comes after the pixels may be missing; no part of the pixels may."""
    blob = file(7, 5, form)
    whole = rgb(blob).tobytes()
    kept = []
    for end in range(len(blob)):
        if not kind_of(blob[:end]):
            assert rgb(blob[:end]).tobytes() == whole, end
            kept.append(end)
    assert len(kept) < 30


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_with_other_bytes_is_refused_or_is_a_picture(form: str) -> None:
    """And nothing else is raised, whatever they say."""
    blob, chance = file(7, 5, form), random.Random(form)
    for _ in range(300):
        mutated = bytearray(blob)
        for _ in range(chance.choice((1, 1, 2, 8))):
            mutated[chance.randrange(min(len(blob), chance.choice((40, 10**6))))] = chance.choice(
                (0, 1, 127, 128, 255, chance.randrange(256))
            )
        if not kind_of(bytes(mutated)):
            assert rgb(bytes(mutated)).mode == "RGB"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8 "]))
def test_no_bytes_are_anything_but_refused(data: bytes, start: bytes) -> None:
    assert kind_of(start + data) in (FORMAT, DAMAGED, PIXELS, b"")


def test_exif_data_that_is_broken_harms_nobody() -> None:
    """Some of it Pillow itself stumbles over, and then the file is a broken one."""
    entry = b"\1\x12\0\3\0\0\0\1\0\6\0\0"
    for exif in (b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + entry * 9, b"\0" * 50):
        blob = saved(image(9, 7), "JPEG", exif=exif)
        if (kind := kind_of(blob)) != DAMAGED:
            assert not kind and upright_size(blob) == rgb(blob).size


def saved(picture: Image.Image, form: str, **more: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **more)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def _no_other_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program sets it."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
