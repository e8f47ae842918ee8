"""Where images are decoded: a program of ``forks``, since a decoder may crash, or be led astray by a file.

Three kinds of work: ``sizes`` reads no more than the files' heads; ``tiles`` decodes the images, resizes them and cuts them, as ``layout``
has it; ``whole`` leaves them in one piece. A piece of work is done in a process that can open no file, connect to nothing and start
nothing, whatever a file makes of it.
"""

from __future__ import annotations

import io
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Any

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageChops,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from quintet.forks import child
from quintet.inputs.images.layout import Cut
from quintet.inputs.images.messages import (
    DAMAGED,
    DECODE_WALL_S,
    DONE,
    END,
    FORMAT,
    MAX_PIXELS,
    PAIR,
    PIXELS,
    RefusedError,
    frame,
    unpacked,
)

BOUNDS = child.Bounds(cpu_s=8.0, wall_s=DECODE_WALL_S, memory=1 << 30)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Nothing else is tried on a file: Pillow knows some formats that start other programs."""

_LOADED = (PngImagePlugin, JpegImagePlugin, MpoImagePlugin, WebPImagePlugin, GifImagePlugin, BmpImagePlugin, TiffImagePlugin)
"""The last one reads Exif data."""

_FILTERS = {"lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""CIPA DC-008 (Exif), tag Orientation."""

_SIDEWAYS = (5, 6, 7, 8)
_PNG_BITS = 24  # where a PNG says how many bits a channel has
_STRIP = 256  # rows that are laid over white at once: a large image need not be there four times over


def main() -> None:
    """See ``child.serve``."""
    Image.MAX_IMAGE_PIXELS = None  # ours is looked at instead
    for form in FORMATS:  # loads what each of them needs, which nothing can later
        sample = io.BytesIO()
        Image.new("P", (1, 1)).convert("RGB").save(sample, form)
        upright_size(sample.getvalue())
        rgb(sample.getvalue())
    child.serve(_work, BOUNDS)


def _work(client: socket.socket) -> None:
    with client.makefile("rb") as file:
        about, blobs = unpacked(file.read())
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    for number, blob in enumerate(blobs):
        for part in answer(_what(about, number), blob):
            client.sendall(part)
    client.sendall(b"".join(frame(END)))


def _what(about: dict[str, Any], number: int) -> Callable[[bytes], Iterator[bytes]]:
    if about["work"] == "sizes":
        return lambda blob: iter([PAIR.pack(*upright_size(blob))])
    cut = Cut(**about["cuts"][number])
    if about["work"] == "whole":
        return lambda blob: whole(blob, cut)
    tile, resample = about["tile"], _FILTERS[about["filter"]]
    return lambda blob: tiles(blob, cut, tile, resample)


def answer(work: Callable[[bytes], Iterator[bytes]], blob: bytes) -> list[bytes]:
    """The frame about one image, in parts."""
    try:
        return frame(DONE, *work(blob))
    except RefusedError as error:
        return frame(error.kind, error.payload)


def upright_size(blob: bytes) -> tuple[int, int]:
    """Width and height of an image as it is to be seen, read off the file's head.

    Raises:
        RefusedError: not one of ``FORMATS``, broken, or of too many pixels.
    """
    image = _opened(blob)
    width, height = image.size
    return (height, width) if _orientation(image) in _SIDEWAYS else (width, height)


def tiles(blob: bytes, cut: Cut, tile: int, resample: Image.Resampling) -> Iterator[bytes]:
    """Bytes of each tile, uint8 RGB [tile, tile, 3], the overview last.

    Raises:
        RefusedError: as ``upright_size``; or what follows the head is broken.
    """
    image = rgb(blob)
    for width, height in cut.sizes:
        image = image.resize((width, height), resample)
    made = []
    for row in range(cut.rows):
        for column in range(cut.columns):
            left, top = column * tile, row * tile
            made.append(image.crop((left, top, left + tile, top + tile)).tobytes())
    made.append(image.resize((tile, tile), resample).tobytes())
    return iter(made)


def whole(blob: bytes, cut: Cut) -> Iterator[bytes]:
    """Bytes of the image in one piece, uint8 RGB [height, width, 3], of the size that ``cut`` tells.

    Raises:
        RefusedError: as ``tiles``.
    """
    image = rgb(blob)
    ((width, height),) = cut.sizes
    return iter([(image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)).tobytes()])


def rgb(blob: bytes) -> Image.Image:
    """The image upright, in RGB, what is transparent over white, as transformers' processors lay it; of several frames the first.

    Raises:
        RefusedError: as ``tiles``.
    """
    image = _opened(blob)
    turn = _TURNS.get(_orientation(image))
    try:
        image.load()
        clear = "A" in image.getbands() or image.info.get("transparency") is not None
        if clear and image.mode == "RGB" and image.format == "PNG" and blob[_PNG_BITS] == 16:
            # Of each pixel Pillow keeps 8 of them, and all of the colour that is transparent.
            image.info["transparency"] = tuple(value >> 8 for value in image.info["transparency"])
        elif clear and image.mode == "L" and image.format == "PNG" and blob[_PNG_BITS] < 8:
            # It makes 8 bits of 2 and 4, and leaves the grey that is transparent as the file has it.
            image.info["transparency"] *= 255 // (2 ** blob[_PNG_BITS] - 1)
        if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
            image = _eight_bits(image.convert("I"), image.info.get("transparency"))
        made = _over_white(image) if clear else image.convert("RGB")
    except MemoryError:
        raise
    except Exception:  # whatever a decoder makes of hostile bytes
        raise RefusedError(DAMAGED) from None
    return made if turn is None else made.transpose(turn)


def _eight_bits(image: Image.Image, clear: int | None) -> Image.Image:
    """16 bits of grey as 8, and with an alpha where one of the 65,536 greys is transparent: of 8 bits 257 would be."""
    grey = image.point(lambda value: value * (1 / 257)).convert("L")
    if clear is None:
        return grey
    above, below = (image.point(by).convert("L") for by in (lambda value: value - clear, lambda value: value * -1 + clear))  # cut off at 0
    return Image.merge("LA", (grey, ImageChops.lighter(above, below).point(lambda value: 255 if value else 0)))


def _over_white(image: Image.Image) -> Image.Image:
    made = Image.new("RGB", image.size)
    for top in range(0, image.height, _STRIP):
        box = 0, top, image.width, min(top + _STRIP, image.height)
        strip = image.crop(box).convert("RGBA")
        made.paste(Image.alpha_composite(Image.new("RGBA", strip.size, (255, 255, 255, 255)), strip).convert("RGB"), box)
    return made


def _opened(blob: bytes) -> Image.Image:
    """The file's head, and nothing after it."""
    try:
        image = Image.open(io.BytesIO(blob), formats=FORMATS)
    except UnidentifiedImageError:
        raise RefusedError(FORMAT) from None
    except MemoryError:
        raise
    except Exception:  # as above
        raise RefusedError(DAMAGED) from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise RefusedError(PIXELS, PAIR.pack(min(width, 2**32 - 1), min(height, 2**32 - 1)))
    if width < 1 or height < 1:
        raise RefusedError(DAMAGED)
    return image


def _orientation(image: Image.Image) -> int:
    """What the file's head says of it; 1 = nothing. What comes after the pixels is not looked at, lest they be decoded for it."""
    data = image.info.get("exif")
    if not isinstance(data, bytes):
        return 1
    exif = Image.Exif()
    try:
        exif.load(data)
        return int(exif.get(_ORIENTATION, 1))
    except Exception:  # as above; the image itself may be well
        return 1


if __name__ == "__main__":
    main()
