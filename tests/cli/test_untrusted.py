"""Commands that ask a server whose certificate the system does not trust."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.listen.certificates import certificate, needs_openssl
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.listen.tls import Tls
from quintet.load import client
from quintet.load.trust import untrusted

pytestmark = needs_openssl
Command = Callable[..., tuple[int, str, str]]

COMMANDS = [
    ["top", "URL", "--once"],
    ["bench", "URL", "-n", "1", "--prompt-tokens", "4", "--max-tokens", "4"],
    ["bench", "URL", "-n", "1", "--prompt-tokens", "4", "--max-tokens", "4", "--model", "scripted"],
    ["check", "URL", "--as", "openai"],
]


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that a server has, which is the only one that it is vouched for by."""
    return certificate(tmp_path_factory.mktemp("certificates"), "own")[0]


@pytest.fixture(scope="module")
def port(trusted: Path) -> Iterator[int]:
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig()), tls=Tls(trusted, trusted.with_suffix(".key"))) as port:
        yield port


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is trusted is read anew, as each command of its own does."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    client._tls.cache_clear()
    yield
    client._tls.cache_clear()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_certificate_that_nobody_vouches_for_is_told_whole_with_its_remedy(words: list[str], port: int, command: Command) -> None:
    code, out, err = command(*(word.replace("URL", f"https://localhost:{port}") for word in words))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the server's certificate is not trusted: self-signed certificate; SSL_CERT_FILE=cert.pem names what to trust" in err


@pytest.mark.parametrize("words", COMMANDS[:3])
def test_the_remedy_helps(words: list[str], port: int, trusted: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    code, out, err = command(*(word.replace("URL", f"https://localhost:{port}") for word in words))
    assert code == 0, out + err


def test_a_certificate_of_another_name_is_told_without_a_remedy_that_would_not_help() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 62, "Hostname mismatch, certificate is not valid for 'a'."
    assert untrusted(error) == "the server's certificate is not trusted: Hostname mismatch, certificate is not valid for 'a'"
