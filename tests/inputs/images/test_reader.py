"""Images are read in turn, within bounds, by processes that may die, lie, or be led astray."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.inputs.images.pictures import data_url, file, png

from quintet.errors import BadRequest, Overloaded, QuintetError, TooManyRequests
from quintet.executor import FairExecutor
from quintet.inputs.images import messages, reader
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.messages import DAMAGED, DONE, END, PAIR, STATUS, frame
from quintet.inputs.images.reader import AT_ONCE, ImageReader
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.room import Room
from quintet.request import Image

TRAITS = ImageTraits("idefics3", 32, 64, 4)
PNG = Image(data_url(file(20, 10)), "images[0]")
OTHER = Image(data_url(file(10, 20)), "images[1]")


@asynccontextmanager
async def reading(*hosts: str) -> AsyncIterator[ImageReader]:
    made = ImageReader(FairExecutor(), hosts)
    try:
        yield made
    finally:
        made.close()


def run(body: Callable[[ImageReader], Awaitable[None]], *hosts: str) -> None:
    async def go() -> None:
        async with reading(*hosts) as one:
            await body(one)

    asyncio.run(go())


async def refusal(one: ImageReader, *images: Image) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await one.read(images, TRAITS)
    return caught.value


def answering(one: ImageReader, *answers: bytes) -> None:
    """What its processes answer, in turn."""
    left = list(answers)

    async def ask(*request: bytes, whole: Any = None) -> bytes:
        return left.pop(0)

    one._decoder.ask = ask  # type: ignore[method-assign]


def frames(*some: tuple[bytes, bytes]) -> bytes:
    return b"".join(part for kind, payload in some for part in frame(kind, payload))


@pytest.mark.fault("G07")
def test_a_picture_is_known_by_its_pixels_and_read_once() -> None:
    async def body(one: ImageReader) -> None:
        again = Image(data_url(file(20, 10, "BMP")), "images[2]")
        found = await one.read([PNG, OTHER, again, PNG], TRAITS)
        assert len(found) == 3
        assert found[PNG.url].digest == found[again.url].digest != found[OTHER.url].digest
        assert all(len(picture.pixels) == picture.cut.tiles * 32 * 32 * 3 and len(picture.digest) == 32 for picture in found.values())
        single = await one.read([PNG], ImageTraits("gemma3", 32, 32, 4))
        assert single[PNG.url].cut.tiles == 1 and single[PNG.url].digest != found[PNG.url].digest

    run(body)


@pytest.mark.fault("B14", "B17")
def test_a_requests_images_are_bounded_together_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [Image(data_url(png(6000, 5000 + at)), f"images[{at}]") for at in range(3)]

    async def body(one: ImageReader) -> None:
        error = await refusal(one, *large)
        assert error.param == "images[2]" and "80000000 pixels together" in str(error)
        error = await refusal(one, Image(data_url(png(60_000, 5000)), "images[0]"))
        assert "40000000 pixels, got 60000 x 5000" in str(error)
        monkeypatch.setattr(reader, "MOST_BYTES", 9 * 32 * 32 * 3)
        error = await refusal(one, PNG, OTHER, large[2])
        assert error.param == "images[2]" and "at most 9 tiles" in str(error)
        assert await one.read([PNG], TRAITS)

    run(body)


@pytest.mark.fault("B11")
def test_the_image_that_ends_its_process_is_named_and_the_next_request_is_served() -> None:
    async def body(one: ImageReader) -> None:
        ask = one._decoder.ask
        answering(one, frames((DONE, PAIR.pack(20, 10))))
        error = await refusal(one, PNG, OTHER)
        assert error.param == "images[1]" and "too much" in str(error)
        answering(one, frames((DONE, PAIR.pack(20, 10)), (END, b"")), b"")
        assert (await refusal(one, PNG)).param == "images[0]"
        one._decoder.ask = ask  # type: ignore[method-assign]
        assert await one.read([PNG], TRAITS)

    run(body)


def test_what_a_process_that_was_led_astray_says_is_not_believed() -> None:
    """Sizes that are not, pixels of another length, kinds that there are not: a 400, and nothing of it is passed on."""
    size = (DONE, PAIR.pack(20, 10))
    end = (END, b"")
    lies = [
        [frames((DONE, PAIR.pack(0, 10)), end)],
        [frames((DONE, PAIR.pack(2**32 - 1, 2**32 - 1)), end)],
        [frames((messages.PIXELS, b"12"), end)],
        [frames((DONE, b"12"), end)],
        [frames((b"\xff", b"root:x:0:0"), end)],
        [frames(size, end), frames((DONE, b"x" * 10), end)],
        [frames(size, end), frames((DAMAGED, b"root:x:0:0"), end)],
        [b"\0" * 3],
    ]

    async def body(one: ImageReader) -> None:
        for lie in lies:
            answering(one, *lie)
            error = await refusal(one, PNG)
            assert error.param == "images[0]" and "root" not in str(error)

    run(body)


ASTRAY = """
import os, socket
from quintet.inputs.images import decode
from quintet.inputs.images.messages import DONE, frame

def tried(what):
    try:
        what()
    except OSError:
        return b"0"
    return b"1"

def astray(work, blob):
    tries = [lambda: open("/etc/hostname"), socket.socket, lambda: os.dup(1), lambda: os.open("/tmp", os.O_RDONLY), lambda: os.fstat(0)]
    return frame(DONE, b"".join(map(tried, tries)), b"".join(name.encode() for name in os.environ if "SECRET" in name))

decode.answer = astray
decode.main()
"""


@pytest.mark.fault("G09")
def test_a_decoder_can_open_nothing_and_connect_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a file makes of it; nor is there a secret to tell, or the socket over which others' images come."""
    monkeypatch.setenv("MY_SECRET_KEY", "x")

    async def body(one: ImageReader) -> None:
        one._decoder.command = ("-c", ASTRAY)
        answer = messages.frames(await one._decoder.ask(*messages.packed({"work": "sizes"}, [b"x"]), whole=messages.whole))
        assert [(kind, bytes(payload)) for kind, payload in answer] == [(DONE, b"00000"), (END, b"")]

    run(body)


@pytest.mark.fault("F10")
def test_where_no_host_or_another_was_named_no_process_is_even_started() -> None:
    async def body(one: ImageReader) -> None:
        for url in ("http://example.com/a.png", "https://127.0.0.1/a.png", "https://user@example.org/", "https://example.org:22/"):
            told = str(await refusal(one, PNG, Image(url, "images[1]")))
            assert ("and a user" if "@" in url else "--allow-image-urls") in told or one._hosts == ()
        assert one._fetcher._process is None and one._decoder._process is None

    run(body, "example.org")
    run(body)


@pytest.mark.fault("F10")
def test_an_address_inside_is_refused_by_the_process_that_would_connect() -> None:
    async def body(one: ImageReader) -> None:
        error = await refusal(one, Image("http://127.0.0.1/a.png", "images[0]"))
        assert "public address" in str(error)

    run(body, "*")


def addresses(count: int) -> list[Image]:
    return [Image(f"https://example.org/{at}.png", f"images[{at}]") for at in range(count)]


@pytest.mark.parametrize("tenant", ["", "key"])
def test_many_addresses_of_one_request_are_read_a_few_at_a_time(tenant: str) -> None:
    """And take the room of what came, not of what might have."""

    async def body(one: ImageReader) -> None:
        under_way: list[int] = []

        async def ask(*request: bytes, whole: Any = None) -> bytes:
            under_way.append(1)
            assert len(under_way) <= reader.FETCHES_OF_ONE
            await asyncio.sleep(0)
            under_way.pop()
            return frames((DONE, file(20, 10)), (END, b""))

        one._fetcher.ask = ask  # type: ignore[method-assign]
        assert len(await one.read([PNG, *addresses(30)], TRAITS, tenant)) == 31
        assert not one._waiting._taken

    run(body, "example.org")


def test_many_clients_with_an_address_each_are_served() -> None:
    async def body(one: ImageReader) -> None:
        go = asyncio.Event()

        async def ask(*request: bytes, whole: Any = None) -> bytes:
            await go.wait()
            return frames((DONE, file(20, 10)), (END, b""))

        one._fetcher.ask = ask  # type: ignore[method-assign]
        reads = [asyncio.create_task(one.read(addresses(1), TRAITS, f"key{at}")) for at in range(12)]
        await asyncio.sleep(0.01)
        go.set()
        assert [len(found) for found in await asyncio.gather(*reads)] == [1] * 12

    run(body, "example.org")


@pytest.mark.parametrize("tenant", ["", "key"])
@pytest.mark.fault("B17")
def test_files_that_no_idle_server_has_room_for_are_the_requests_own_fault(tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as is allowed is served to a tenant that is alone, and the next byte is refused for good."""
    monkeypatch.setattr(reader, "MOST_FILES", 3 * len(file(20, 10)))

    async def body(one: ImageReader) -> None:
        async def ask(*request: bytes, whole: Any = None) -> bytes:
            return frames((DONE, file(20, 10)), (END, b""))

        one._fetcher.ask = ask  # type: ignore[method-assign]
        one._waiting = Room(2 * reader.MOST_FILES, "images")
        assert len(await one.read(addresses(3), TRAITS, tenant)) == 3
        with pytest.raises(BadRequest, match=r"images\[3\].* bytes together"):
            await one.read(addresses(4), TRAITS, tenant)
        assert not one._waiting._taken

    run(body, "example.org")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://user@example.org/a.png", "must be a URL in printable ASCII, without"),
        ("https://example.org/\u00fc.png", "must be a URL in printable ASCII, without"),
        ("http:///a.png", "must be a URL in printable ASCII, without"),
        ("http://example.org:8080/a.png", "to a host and port that this server's --allow-image-urls names"),
    ],
)
def test_a_url_that_is_none_is_not_told_that_its_host_is_not_named(url: str, rule: str) -> None:
    """Where every host is: it would be looked for in vain."""

    async def body(one: ImageReader) -> None:
        assert rule in str(await refusal(one, Image(url, "images[0]")))

    run(body, "*")


def test_the_status_that_an_address_answers_with_is_told_if_it_is_one() -> None:
    async def body(one: ImageReader) -> None:
        for payload, told in ((b"404", ", got 404"), (b"40x", ""), (b"4040", ""), (b"", "")):

            async def ask(*request: bytes, whole: Any = None, payload: bytes = payload) -> bytes:
                return frames((STATUS, payload), (END, b""))

            one._fetcher.ask = ask  # type: ignore[method-assign]
            error = await refusal(one, *addresses(1))
            assert str(error) == f"'{error.param}' must be answered with the status 200{told}."

    run(body, "example.org")


def test_nobody_waits_long_for_a_turn_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WAIT_S", 0.01)

    async def body(one: ImageReader) -> None:
        for _ in range(reader.FETCHES_AT_ONCE):
            await one._fetches.acquire("")
        with pytest.raises(Overloaded, match="being fetched"):
            await one.read(addresses(1), TRAITS)

    run(body, "example.org")


def test_one_tenants_images_are_in_the_way_of_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for too much is told so; of two tenants that wait, each has its turn."""
    monkeypatch.setattr(reader, "MOST_WAITING", 40 * len(PNG.url))

    async def body(one: ImageReader) -> None:
        order, go = [], asyncio.Event()

        async def ask(*request: bytes, whole: Any = None) -> bytes:
            await go.wait()
            return frames((DAMAGED, b""), (END, b""))

        one._decoder.ask = ask  # type: ignore[method-assign]

        async def read(tenant: str) -> None:
            try:
                await one.read([PNG], TRAITS, tenant)
            finally:
                order.append(tenant)

        flood = [asyncio.create_task(read("flood")) for _ in range(60)]
        while sum(task.done() for task in flood) < 30:
            await asyncio.sleep(0)
        assert {type(task.exception()) for task in flood if task.done()} == {TooManyRequests}
        other = asyncio.create_task(read("other"))
        await asyncio.sleep(0.05)
        order.clear()
        go.set()
        await asyncio.gather(*flood, other, return_exceptions=True)
        assert order.index("other") <= AT_ONCE + 1
        assert not one._waiting._taken

    run(body)


def test_nobody_waits_long_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WAIT_S", 0.01)

    async def body(one: ImageReader) -> None:
        for _ in range(AT_ONCE):
            await one._turns.acquire("")
        with pytest.raises(Overloaded, match="Too many images"):
            await one.read([PNG], TRAITS)

    run(body)


def test_pixels_take_room_as_long_as_they_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_HELD", 1000)

    async def body(one: ImageReader) -> None:
        images = [PreparedImage(b"", (), (0, 0), (1, 1, 1), b"x" * 600)]
        one.hold(images)
        with pytest.raises(Overloaded):
            one.hold([PreparedImage(b"", (), (0, 0), (1, 1, 1), b"x" * 600)])
        images.clear()
        gc.collect()
        one.hold([PreparedImage(b"", (), (0, 0), (1, 1, 1), b"x" * 600)])

    run(body)


def test_what_a_request_has_already_taken_is_not_held_against_it() -> None:
    """Piece by piece it gets what it would get at once, and no more."""
    for mine, pieces in ((0, [60]), (1, [10] * 6)):
        room, taken = Room(100, "images"), 0
        room.take("other", 30)
        for piece in pieces:
            room.take("a", piece, mine * taken)
            taken += piece
        with pytest.raises(TooManyRequests):
            room.take("a", 1)


def test_room_is_shared_fairly() -> None:
    room = Room(100, "images")
    room.take("a", 40)
    with pytest.raises(TooManyRequests):
        room.take("a", 40)
    room.take("b", 50)
    with pytest.raises(Overloaded):
        room.take("c", 20)
    room.give("a", 40)
    room.take("c", 20)
    with pytest.raises(QuintetError):
        room.take("", 40)
