"""Pictures for tests, and files of them."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def picture(width: int, height: int, channels: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, channels]: gradients, edges and noise, the same everywhere."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    noise = (x * 7919 + y * 104729 + c * 1299709) * 2654435761 % 2**32 >> 24
    edges = 64 * ((x // 5 + y // 3) % 2)
    made: np.ndarray[Any, np.dtype[np.uint8]] = ((x * 255 // width + y * 3 + c * 85) % 256 // 2 + noise // 4 + edges).astype(np.uint8)
    return made


def image(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = picture(width, height, len(mode))
    return Image.fromarray(pixels[:, :, 0] if len(mode) == 1 else pixels, mode)


def file(width: int = 9, height: int = 7, form: str = "PNG", mode: str = "RGB", **more: Any) -> bytes:
    """The bytes of a file."""
    buffer = io.BytesIO()
    image(width, height, mode).save(buffer, form, **more)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(
    width: int, height: int, rows: bytes = bytes(100), *, bits: int = 8, colour: int = 2, more: tuple[tuple[bytes, bytes], ...] = ()
) -> bytes:
    """A PNG by hand, in RGB unless ``colour`` says otherwise, with ``more`` chunks (kind, data) before its rows, which may be too few."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    chunks = (head, *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    made = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)
