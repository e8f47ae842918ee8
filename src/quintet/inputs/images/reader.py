"""From what a client sent to what a model sees: images are fetched and decoded, in processes that may crash. The event loop's side.

A few are decoded at once; the others wait, tenants in turn. The bytes that wait and the pixels that are held for requests under way are
bounded, in all and for each tenant.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from quintet.errors import BadRequest, Overloaded
from quintet.executor import FairExecutor
from quintet.forks.parent import Forks
from quintet.inputs.images import messages
from quintet.inputs.images.addresses import allowed, target_of
from quintet.inputs.images.data_url import decoded
from quintet.inputs.images.expansion import MOST_ASPECT, AnyTraits, ProcessorTraits
from quintet.inputs.images.layout import FILTERS, Cut, ImageTraits
from quintet.inputs.images.places import Picture
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.room import Room
from quintet.request import Image
from quintet.turns import Turns

AT_ONCE = 2
"""Requests whose images are decoded; each on one CPU, which the engine has the less."""

FETCHES_AT_ONCE = 8
FETCHES_OF_ONE = 2
"""Of these, for one request."""

WAIT_S = 15.0
"""For a turn to fetch or to decode; a photograph takes a fifth of a second to decode."""

MOST_WAITING = 128 << 20
"""Bytes of images as they were sent or fetched, of all requests that wait or are being decoded; besides, ``FETCHES_AT_ONCE`` files come."""

MOST_FILES = MOST_WAITING // 2
"""Of a request's images: as much as one tenant may take, so that a request is served where nobody else is in its way."""

MOST_HELD = 1 << 30
"""Bytes of pixels of all requests from here to their end."""

MOST_PIXELS = 80_000_000
"""Of a request's images together, before they are decoded."""

MOST_BYTES = 128 << 20
"""Of the pixels that a request's images become: 170 tiles of 512 x 512."""

_PIXEL_BYTES = 3
_NOT_DECODED = "Images cannot be decoded."
_RULES = {
    messages.FORMAT: "must be a PNG, JPEG, WebP, GIF or BMP image",
    messages.DAMAGED: "must be a whole image, but is damaged or cut short",
    messages.HOST: "must lead, also where it is redirected, to a host and port that this server's --allow-image-urls names",
    messages.ADDRESS: "must lead to a public address",
    messages.REDIRECTS: "is redirected too often",
    messages.TYPE: "must be answered with an image's content type",
    messages.SIZE: f"must be of at most {messages.FETCH_BYTES} bytes",
    messages.UNREACHABLE: "cannot be fetched",
    messages.STATUS: "must be answered with the status 200",
}
_TOO_COMPLEX = "takes too much time or memory to decode"


@dataclass(slots=True)
class _Files:
    """Those of one request, which take room as they come."""

    room: Room
    tenant: str
    size: int = 0

    def __enter__(self) -> _Files:
        return self

    def take(self, image: Image, size: int) -> None:
        if self.size + size > MOST_FILES:
            raise BadRequest(image.param, f"is one too many: a request's images are files of at most {MOST_FILES} bytes together")
        self.room.take(self.tenant, size, self.size)
        self.size += size

    def __exit__(self, *_: object) -> None:
        self.room.give(self.tenant, self.size)


class ImageReader:
    """Reads images, of all models of a server.

    Args:
        executor: for what takes long.
        hosts: from which images may be fetched, see ``addresses.allowed``; empty = none are.
    """

    def __init__(self, executor: FairExecutor, hosts: Sequence[str] = ()) -> None:
        self._executor, self._hosts = executor, hosts
        self._decoder = Forks("quintet.inputs.images.decode", messages.DECODE_WALL_S, _NOT_DECODED)
        self._fetcher = Forks("quintet.inputs.images.fetch", messages.FETCH_S, "Images cannot be fetched.")
        self._turns, self._fetches = Turns(AT_ONCE), Turns(FETCHES_AT_ONCE)
        self._waiting, self._held = Room(MOST_WAITING, "images that wait to be decoded"), Room(MOST_HELD, "images")

    async def read(self, images: Sequence[Image], traits: AnyTraits, tenant: str = "") -> Mapping[str, Picture]:
        """What is at each URL, which is read once however often it is named.

        Raises:
            BadRequest: one is no image, may not be fetched, or is too large; names it.
            TooManyRequests: this tenant has too many read already.
            Overloaded: too many are being read, or the machine is too busy.
            EngineFailed: none can be read.
        """
        first_named: dict[str, Image] = {}
        for image in images:
            first_named.setdefault(image.url, image)
        distinct = list(first_named.values())
        with _Files(self._waiting, tenant) as files:
            for image in itertools.filterfalse(_is_address, distinct):
                files.take(image, len(image.url))
            blobs = await self._blobs(distinct, files)
            await _turn(self._turns, tenant, "decoded")
            try:
                sizes = await self._sizes(distinct, blobs)
                cuts = _cuts(distinct, sizes, traits)
                pixels = await self._tiles(distinct, blobs, cuts, traits)
            finally:
                self._turns.release()

        def pictures() -> dict[str, Picture]:
            read = zip(distinct, cuts, pixels, strict=True)
            return {image.url: Picture(cut, _digest(cut, data, traits), data) for image, cut, data in read}

        return await self._executor.run(tenant, pictures)

    def hold(self, images: Sequence[PreparedImage], tenant: str = "") -> None:
        """Count their pixels as long as they exist.

        Raises:
            TooManyRequests, Overloaded: there is no room for them.
        """
        for image in images:
            self._held.take(tenant, len(image.pixels))
            weakref.finalize(image, self._held.give, tenant, len(image.pixels)).atexit = False

    def close(self) -> None:
        """End the processes."""
        self._decoder.close()
        self._fetcher.close()

    async def _blobs(self, images: Sequence[Image], files: _Files) -> list[bytes]:
        """The file of each; what may not be fetched is refused before anything is."""
        for image in filter(_is_address, images):
            target = target_of(image.url)
            if not self._hosts:
                raise BadRequest(image.param, "must be a data URL: this server fetches no images")
            if target is None:
                raise BadRequest(image.param, "must be a URL in printable ASCII, without quotes, backslashes and a user, and with a host")
            if not allowed(target, self._hosts):
                raise _refused(image, messages.HOST)
        few = asyncio.Semaphore(FETCHES_OF_ONE)
        tasks = [asyncio.ensure_future(self._blob(image, files, few)) for image in images]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # or one that had just ended would take room that nobody gives back

    async def _blob(self, image: Image, files: _Files, few: asyncio.Semaphore) -> bytes:
        if not _is_address(image):
            return await self._executor.run(files.tenant, lambda: decoded(image))
        async with few:  # so that who names many does not wait for its own longer than WAIT_S
            await _turn(self._fetches, files.tenant, "fetched")
            try:
                blob = await self._fetched(image)
            finally:
                self._fetches.release()
        files.take(image, len(blob))
        return blob

    async def _fetched(self, image: Image) -> bytes:
        work = messages.packed({"url": image.url, "hosts": list(self._hosts)})
        answer = messages.frames(await self._fetcher.ask(*work, whole=lambda _: True))
        if not answer:
            raise BadRequest(image.param, f"cannot be fetched within {messages.FETCH_S:g} seconds")
        kind, payload = answer[0]
        if kind == messages.STATUS and len(payload) == 3 and bytes(payload).isdigit():
            raise BadRequest(image.param, _RULES[kind], bytes(payload).decode())
        if kind != messages.DONE:
            raise _refused(image, kind)
        return bytes(payload)

    async def _sizes(self, images: Sequence[Image], blobs: Sequence[bytes]) -> list[tuple[int, int]]:
        payloads = await self._decoded(images, messages.packed({"work": "sizes"}, blobs))
        sizes: list[tuple[int, int]] = []
        for image, payload in zip(images, payloads, strict=True):
            if len(payload) != messages.PAIR.size:
                raise _refused(image, messages.DAMAGED)
            width, height = messages.PAIR.unpack(payload)
            if not 1 <= width * height <= messages.MAX_PIXELS:
                raise _too_large(image, width, height)
            sizes.append((width, height))
        return sizes

    async def _tiles(self, images: Sequence[Image], blobs: Sequence[bytes], cuts: Sequence[Cut], traits: AnyTraits) -> list[bytes]:
        """The pixels of each; for an engine's own processor of the whole of it."""
        about: dict[str, Any] = {"work": "whole", "cuts": [asdict(cut) for cut in cuts]}
        if isinstance(traits, ImageTraits):
            about |= {"work": "tiles", "tile": traits.tile, "filter": FILTERS[traits.family]}
        payloads = await self._decoded(images, messages.packed(about, blobs))
        for image, cut, payload in zip(images, cuts, payloads, strict=True):
            if len(payload) != _bytes_of(cut, traits):
                raise _refused(image, messages.DAMAGED)
        return [bytes(payload) for payload in payloads]

    async def _decoded(self, images: Sequence[Image], work: Sequence[bytes]) -> list[memoryview]:
        """The payload about each image."""
        answer = messages.frames(await self._decoder.ask(*work, whole=messages.whole))
        for image, (kind, payload) in zip(images, answer, strict=False):
            if kind == messages.PIXELS and len(payload) == messages.PAIR.size:
                raise _too_large(image, *messages.PAIR.unpack(payload))
            if kind != messages.DONE:
                raise _refused(image, kind)
        if len(answer) < len(images):  # the process ended over the next one
            raise BadRequest(images[len(answer)].param, _TOO_COMPLEX)
        return [payload for _, payload in answer[: len(images)]]


async def _turn(turns: Turns, tenant: str, what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            await turns.acquire(tenant)
    except TimeoutError:
        raise Overloaded(f"Too many images are being {what}; try again later.") from None


def _is_address(image: Image) -> bool:
    return not image.url[:5].lower().startswith("data:")


def _refused(image: Image, kind: bytes) -> BadRequest:
    return BadRequest(image.param, _RULES.get(kind, _RULES[messages.DAMAGED]))


def _too_large(image: Image, width: int, height: int) -> BadRequest:
    return BadRequest(image.param, f"must have at most {messages.MAX_PIXELS} pixels", f"{width} x {height}")


def _cuts(images: Sequence[Image], sizes: Sequence[tuple[int, int]], traits: AnyTraits) -> list[Cut]:
    """What becomes of each, within what a request's images may come to together."""
    cuts: list[Cut] = []
    pixels = size = 0
    unit, what = (traits.tile_bytes, "tiles") if isinstance(traits, ImageTraits) else (_PIXEL_BYTES, "pixels")
    for image, (width, height) in zip(images, sizes, strict=True):
        if isinstance(traits, ProcessorTraits) and max(width, height) > MOST_ASPECT * min(width, height):
            raise BadRequest(image.param, f"must be at most {MOST_ASPECT} times as long as wide for this model", f"{width} x {height}")
        cuts.append(traits.cut(width, height))
        pixels += width * height
        size += _bytes_of(cuts[-1], traits)
        if pixels > MOST_PIXELS:
            raise BadRequest(image.param, f"is one too many: a request's images have at most {MOST_PIXELS} pixels together", str(pixels))
        if size > MOST_BYTES:
            most = MOST_BYTES // unit
            raise BadRequest(image.param, f"is one too many: a request's images become at most {most} {what} together", str(size // unit))
    return cuts


def _bytes_of(cut: Cut, traits: AnyTraits) -> int:
    """Of the pixels that an image becomes."""
    if isinstance(traits, ImageTraits):
        return cut.tiles * traits.tile_bytes
    ((width, height),) = cut.sizes
    return width * height * _PIXEL_BYTES


def _digest(cut: Cut, pixels: bytes, traits: AnyTraits) -> bytes:
    """The number of tiles, and so their shape, follows from the length; the shape of a whole image does not."""
    if isinstance(traits, ImageTraits):
        about = f"{traits.family} {traits.tile}".encode()
        return blake2b(pixels, digest_size=32, person=about[:16]).digest()
    return blake2b(pixels, digest_size=32, person=b"whole", salt=messages.PAIR.pack(*cut.sizes[0])).digest()
