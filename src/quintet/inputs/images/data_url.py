"""Images that are sent in the request itself. Plain code over values."""

from __future__ import annotations

import binascii

from quintet.errors import BadRequest, counted
from quintet.request import Image

_BASE64 = ";base64"


def decoded(image: Image) -> bytes:
    """What a data URL holds. Its media type says no more than that it is an image: which one, the bytes tell.

    Fireworks' page: "They should be formatted as MIME_TYPE,<base64 encoded str> eg. data:image/jpeg;base64,<base64 encoded str>". RFC 2397.

    Raises:
        BadRequest: not of that form, or not base64 as RFC 4648 has it.
    """
    head, comma, text = image.url.partition(",")
    kind = head[len("data:") :].lower()
    if not comma or not kind.startswith("image/") or not kind.endswith(_BASE64):
        raise BadRequest(image.param, "must begin like data:image/png;base64, and an image's bytes in base64 follow")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii's own is one, and what is not ASCII is one too
        raise BadRequest(
            image.param, "must hold the image's bytes in base64, padded and without anything between", counted(len(text), "character")
        ) from None
