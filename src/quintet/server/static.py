"""The playground's files, at ``/`` and beneath ``/playground/``: public, the same for everybody, and without anything from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quintet.errors import NotFound
from quintet.server.call import Call, Endpoint
from quintet.server.http import Request

FOLDER = Path(__file__).parent / "playground"
_INDEX = "index.html"
_BELOW = "/playground/"
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Nothing but our own files, and never in a frame. What a model writes is text, whatever it looks like: this says so a second time.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("vary", "accept-encoding"),
    ("cache-control", "no-cache"),  # kept, and asked about each time: a new version of the server is a new page
)
"""Headers of every page for people and of its files."""


@dataclass(frozen=True, slots=True)
class File:
    """What is sent.

    Args:
        packed: the same in gzip, a third of it.
        etag: changes with the bytes; weak, as it is that of both.
    """

    body: bytes
    packed: bytes
    media: str
    etag: str


@cache
def files() -> dict[str, File]:
    """All of them, by their path beneath the folder."""
    paths = [path for path in FOLDER.rglob("*") if path.suffix in _MEDIA]
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in sorted(paths)}


def routes() -> dict[str, Endpoint]:
    """What is at which path; one that ends with a slash takes all beneath it."""
    return {"/": _page, _BELOW: _file}


def public() -> frozenset[str]:
    """Paths that need no key."""
    return frozenset({"/", *(_BELOW + name for name in files())})


async def _page(call: Call) -> None:
    accepted = call.http.headers.get("accept", "")
    if "json" in accepted and not ("html" in accepted or "*/*" in accepted):
        raise NotFound("There is a page for people at this path; completions are at POST /v1/completions.")
    await _send(call.http, files()[_INDEX])


async def _file(call: Call) -> None:
    file = files().get(call.tail)
    if file is None:
        raise NotFound("The playground has no such file.")
    await _send(call.http, file)


async def _send(http: Request, file: File) -> None:
    headers = [*ALWAYS, ("etag", file.etag)]
    if file.etag in http.headers.get("if-none-match", ""):
        await http.start(304, file.media, headers)
        await http.write(b"", last=True)
        return
    if "gzip" in http.headers.get("accept-encoding", ""):
        await http.reply(200, file.packed, [*headers, ("content-encoding", "gzip")], file.media)
    else:
        await http.reply(200, file.body, headers, file.media)


def _read(path: Path) -> File:
    body = path.read_bytes()
    return File(body, gzip.compress(body, mtime=0), _MEDIA[path.suffix], f'W/"{hashlib.sha256(body).hexdigest()[:32]}"')
