"""HTTPS: versions, certificates that are replaced while the server runs, and those that are no good."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

import pytest
from tests.listen.certificates import certificate, needs_openssl
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.listen import accept
from quintet.listen.crowd import SPARE
from quintet.listen.sockets import ListenError
from quintet.listen.tls import LOOK_S, Tls

pytestmark = needs_openssl

BODY = b'{"prompt":"a","max_tokens":2}'
ASK = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def connect(port: int, trusted: Path, **versions: ssl.TLSVersion) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(trusted))
    for name, version in versions.items():
        setattr(context, name, version)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname="localhost")


def read(client: ssl.SSLSocket) -> bytes:
    got = b""
    while part := client.recv(65536):
        got += part
    return got


def replace(of: tuple[Path, Path], by: tuple[Path, Path]) -> None:
    for old, new in zip(of, by, strict=True):
        old.write_bytes(new.read_bytes())


def test_answers_come_over_tls_and_a_refused_body_is_told_of(tmp_path: Path) -> None:
    """A body that nobody reads, behind an answer that comes early: TLS has no half of an end."""
    pair = certificate(tmp_path, "one")
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig()), tls=Tls(*pair)) as port:
        with connect(port, pair[0]) as client:
            client.sendall(ASK + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
            assert b" the cat" in read(client)
        with connect(port, pair[0]) as client:
            client.sendall(ASK + b"content-length: 20000000\r\n\r\n" + b"x" * 1_000_000)
            assert client.recv(65536).startswith(b"HTTP/1.1 413")


def test_what_is_older_than_tls_1_2_is_not_spoken_nor_is_plain_http(tmp_path: Path) -> None:
    pair = certificate(tmp_path, "one")
    tls = Tls(*pair)
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig()), tls=tls) as port:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with connect(port, pair[0], maximum_version=version) as client:
                assert client.selected_alpn_protocol() is None
                assert client.version() == version.name.replace("_", ".")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)
        with connect(port, pair[0]) as client:  # and the next one is served
            client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert read(client).startswith(b"HTTP/1.1 200")


@pytest.mark.fault("E01")
def test_who_never_ends_a_handshake_gives_way_to_who_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "HANDSHAKE_S", 600.0)
    pair = certificate(tmp_path, "one")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(lambda: create_app(ScriptedBackend(), ServerConfig()), most=4, tls=Tls(*pair)))
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(4 + SPARE)]
        client = stack.enter_context(connect(port, pair[0]))
        client.sendall(ASK + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert b" the cat" in read(client)
        assert silent[0].recv(1) == b"", "the first that said nothing is gone"


def test_a_certificate_that_was_replaced_is_shown_to_who_comes_next_and_streams_go_on(tmp_path: Path) -> None:
    pair, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    before = (tmp_path / "before.pem", tmp_path / "before.key")
    replace(before, pair)
    clock = Clock()
    tls = Tls(*pair, clock)
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig()), tls=tls) as port, connect(port, before[0]) as old:
        replace(pair, other)
        connect(port, before[0]).close()
        clock.now = LOOK_S
        connect(port, other[0]).close()
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(port, before[0])
        old.sendall(ASK + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert b" the cat" in read(old)


def test_one_that_is_no_good_is_not_taken_and_the_one_before_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of a replacement certificate and key do not belong together."""
    pair, other = certificate(tmp_path, "one"), certificate(tmp_path, "other")
    clock = Clock()
    tls = Tls(*pair, clock)
    first = tls.context
    for spoil in (lambda: pair[0].write_bytes(other[0].read_bytes()), lambda: pair[0].write_text("no certificate"), pair[1].unlink):
        spoil()
        clock.now += LOOK_S
        assert tls.context is first
    assert caplog.text.count("The certificate that was read before goes on") == 3
    replace(pair, other)
    clock.now += LOOK_S
    assert tls.context is not first


def test_a_pair_that_is_no_good_ends_the_start_in_clear_words(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "other")
    _, locked = certificate(tmp_path, "locked", "-passout", "pass:secret")
    (tmp_path / "noise").write_text("noise")
    for pair, said in {
        (cert, other): r"--tls-key \S+/other.key is not the key of the certificate in --tls-cert",
        (cert, tmp_path / "none"): r"none: No such file",
        (tmp_path / "none", key): r"none: No such file",
        (tmp_path / "noise", key): "must be a certificate and its key in PEM",
        (tmp_path / "locked.pem", locked): "must have no passphrase",
    }.items():
        with pytest.raises(ListenError, match=said):
            Tls(*pair)
