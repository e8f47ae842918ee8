"""Images are fetched from hosts that the owner named, at public addresses, within bounds, and from nowhere else."""

from __future__ import annotations

import http.server
import ipaddress
import socket
import threading
from collections.abc import Iterator
from typing import ClassVar
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.inputs.images import fetch
from quintet.inputs.images.addresses import allowed, is_entry, public, target_of
from quintet.inputs.images.messages import ADDRESS, FETCH_BYTES, HOST, REDIRECTS, SIZE, STATUS, TYPE, UNREACHABLE, RefusedError

BODY = b"\x89PNG" + bytes(range(256))


class Site(http.server.BaseHTTPRequestHandler):
    """A path says what is answered."""

    seen: ClassVar[list[tuple[str, dict[str, str]]]]
    other = ""

    def do_GET(self) -> None:
        type(self).seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        word, _, rest = self.path[1:].partition("/")
        status = int(word) if word.isdigit() else 302 if word == "to" else 200
        self.send_response(status)
        if word == "to":
            self.send_header("Location", {"self": "/to/self", "again": "/image", "other": self.other, "file": "file:///etc/passwd"}[rest])
        self.send_header("Content-Type", "text/html" if word == "page" else "image/png")
        body = b"x" * (FETCH_BYTES + 1) if word in ("huge", "endless") else BODY
        if word != "endless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if word != "huge":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Not into a test's output."""


@pytest.fixture
def site() -> Iterator[str]:
    class Own(Site):
        seen: ClassVar[list[tuple[str, dict[str, str]]]] = []

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        Own.other = f"http://localhost:{server.server_port}/image"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Site.seen = Own.seen
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(url: str, *hosts: str, private: bool = False) -> bytes:
    with pytest.raises(RefusedError) as caught:
        fetch.fetch(url, hosts, public if private else lambda _: True)
    return caught.value.kind


def test_a_host_that_was_named_is_asked_for_no_more_than_the_path(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through no proxy, with no cookie or key."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert fetch.fetch(f"http://{site}/image?a=1#part", [site], lambda _: True) == BODY
    ((path, headers),) = Site.seen
    assert path == "/image?a=1"
    assert headers == {"host": site, "accept": "image/*", "user-agent": "quintet", "connection": "close"}


@pytest.mark.fault("B17")
@pytest.mark.parametrize(
    ("path", "kind"),
    [("404", STATUS), ("500", STATUS), ("204", STATUS), ("page", TYPE), ("huge", SIZE), ("endless", SIZE), ("to/self", REDIRECTS)],
)
def test_what_is_no_image_or_too_large_is_refused(site: str, path: str, kind: bytes) -> None:
    assert refusal(f"http://{site}/{path}", site) == kind


def test_a_redirect_is_followed_to_a_host_that_was_named_and_to_no_other(site: str) -> None:
    port = site.partition(":")[2]
    assert fetch.fetch(f"http://{site}/to/again", [site], lambda _: True) == BODY
    assert fetch.fetch(f"http://{site}/to/other", [site, f"localhost:{port}"], lambda _: True) == BODY
    before = len(Site.seen)
    assert refusal(f"http://{site}/to/other", site) == HOST
    assert refusal(f"http://{site}/to/file", site, "*") == HOST
    assert len(Site.seen) == before + 2  # and not the place itself


@pytest.mark.fault("F10")
def test_no_packet_goes_to_an_address_inside(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is written, and whatever a name is said to mean."""
    port = site.partition(":")[2]
    inside = "127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"
    for host in inside:
        assert refusal(f"http://{host}:{port}/image", f"*:{port}", private=True) in (ADDRESS, UNREACHABLE, HOST)
    answers: list[list[tuple[object, ...]]] = [
        [("93.184.216.34", 80), ("127.0.0.1", int(port))],
        [("169.254.169.254", 80)],
        [("fe80::1%eth0", 80, 0, 2)],
        [("::ffff:10.0.0.1", 80)],
    ]
    for places in answers:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", Mock(return_value=found))
        assert refusal("http://images.example.org/a.png", "*", private=True) == ADDRESS
    assert Site.seen == []


def test_the_connection_goes_to_the_address_that_was_looked_at(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers otherwise the second time is not asked a second time."""
    asked: list[str] = []
    place = ("127.0.0.1", int(site.partition(":")[2]))

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert fetch.fetch("http://images.example.org/image", ["*.example.org"], lambda address: address == "127.0.0.1") == BODY
    assert asked == ["images.example.org"] and Site.seen[0][1]["host"] == "images.example.org"


def test_nobody_there_is_told_apart_from_nobody_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert refusal(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}") == UNREACHABLE
    assert refusal(f"https://127.0.0.1:{port}/", f"127.0.0.1:{port}") == UNREACHABLE


@pytest.mark.fault("F10")
@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://a@b/",
            "http://allowed@127.0.0.1/",
            "http://b\\@a/",
            "http:\\\\b/",
            "http://b\t/",
            "http:///x",
            "http://",
            "https://b:x/",
        ),
        *(
            "//b/x",
            "ftp://b/x",
            "gopher://b/",
            "file:///etc/passwd",
            "http://b:99999/",
            "http://[::1/",
            "http://b\u3002org/",
            "http://b%00/",
        ),
        *("http://[1.2.3.4]/", "http://b/\r\nX: y", 'http://b/"', "javascript:1", "http://b c/", ""),
    ],
)
def test_addresses_that_programs_read_in_different_ways_are_none(url: str) -> None:
    assert target_of(url) is None


def test_a_target_is_what_would_be_connected_to() -> None:
    assert target_of("HTTPS://Images.Example.ORG./a/b?c=d#e") == ("https", "images.example.org", 443, "/a/b?c=d")
    assert target_of("http://[2001:db8::1]:8080") == ("http", "2001:db8::1", 8080, "/")


@pytest.mark.parametrize(
    ("entry", "urls", "others"),
    [
        (
            "example.org",
            ["https://example.org/a", "http://EXAMPLE.org"],
            ["https://a.example.org", "https://example.org:8443", "http://example.org.a"],
        ),
        ("*.example.org", ["https://a.b.example.org/"], ["https://example.org", "https://badexample.org"]),
        ("example.org:8443", ["https://example.org:8443"], ["https://example.org"]),
        ("*", ["http://anything", "https://[2001:db8::1]/"], ["http://anything:8080"]),
        ("*:8080", ["http://anything:8080"], ["http://anything"]),
    ],
)
def test_a_host_is_allowed_as_it_was_named(entry: str, urls: list[str], others: list[str]) -> None:
    assert is_entry(entry)
    for url in (*urls, *others):
        target = target_of(url)
        assert target is not None and allowed(target, [entry]) is (url in urls)


@pytest.mark.parametrize("text", ["", "https://example.org", "a/b", "a b", "**", "*example.org", "a:b", ":80", "a:0", "*:65536", "a:99999"])
def test_what_is_no_host_cannot_be_named(text: str) -> None:
    assert not is_entry(text)


@pytest.mark.fault("F10")
def test_addresses_that_are_somebodys_own_are_not_public() -> None:
    own: tuple[str, ...] = (
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
    )
    own += ("255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "192.0.0.1", "192.0.0.8", "192.0.0.170", "192.88.99.1")
    for address in own:
        four = int(ipaddress.IPv4Address(address))
        assert not public(address)
        for inside in (
            f"::ffff:{address}",
            f"::{address}",
            f"64:ff9b::{address}",
            f"64:ff9b:1::{address}",
            f"64:ff9b:1:ffff::{address}",
            f"::ffff:0:{address}",
            str(ipaddress.IPv6Address((0x2002 << 112) | (four << 80))),
        ):
            assert not public(inside), inside
    for address in ("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "fec0::1", "nonsense", ""):
        assert not public(address), address
    for address in ("64:ff9b:1::8.8.8.8", "::ffff:0:8.8.8.8", "100::1", "100:0:0:1::1", "3fff::1", "5f00::1"):
        assert not public(address), address
    for address in ("93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "192.0.0.9", "192.0.0.10"):
        assert public(address), address


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "HTTP://a"]))
def test_no_text_is_anything_but_a_target_or_none(text: str, start: str) -> None:
    target = target_of(start + text)
    assert target is None or (target.scheme in ("http", "https") and 0 <= target.port < 65536 and target.path.startswith("/"))
