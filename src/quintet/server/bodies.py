"""Request bodies: which media are read, and how large they may be."""

from __future__ import annotations

from quintet.errors import BodyTooLarge, UnsupportedMedia, counted
from quintet.server.asgi import Headers

MSGPACK = ("application/vnd.msgpack", "application/msgpack", "application/x-msgpack")


def check_media(headers: Headers, *, packed: bool, typed: bool) -> None:
    """JSON in UTF-8; with ``packed`` also MessagePack, and either of them gzip-compressed.

    With ``typed`` the type must be there. Otherwise a missing one and curl's default for ``-d`` are read as JSON too (never as a form). But
    a browser is held to types that it cannot send to another site's server without asking first, so no web page can put this machine to
    work behind its user's back.

    Raises:
        UnsupportedMedia: anything else.
    """
    kind, *parameters = media(headers)
    browser = "origin" in headers or "sec-fetch-site" in headers
    taken = ("application/json", *(MSGPACK if packed else ()))
    if kind not in taken and (typed or browser or kind not in ("", "application/x-www-form-urlencoded")):
        raise UnsupportedMedia(f"Content-Type must be {' or '.join(taken[:2])}.")
    charsets = [text.removeprefix("charset=").strip('"') for text in parameters if text.startswith("charset=")]
    if any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise UnsupportedMedia("The charset must be utf-8.")
    coding = encoding(headers)
    if coding and not (packed and coding == "gzip"):
        rule = "Content-Encoding must be gzip, or left out." if packed else "Content-Encoding is not supported; send the body uncompressed."
        raise UnsupportedMedia(rule)


def too_large(most: int) -> BodyTooLarge:
    """The error for a body over ``most`` bytes."""
    return BodyTooLarge(f"The body must be at most {counted(most, 'byte')}.")


def media(headers: Headers) -> list[str]:
    """The type and its parameters."""
    return [part.strip().lower() for part in headers.get("content-type", "").split(";")]


def encoding(headers: Headers) -> str:
    """The content coding; ``""`` = the body is as it is."""
    coding = ", ".join(headers.getlist("content-encoding")).strip().lower()
    return "" if coding == "identity" else coding
