"""Which hosts are answered to: names of this machine, and those that were allowed."""

from __future__ import annotations

import pytest
from tests.server.asgi import JSON, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.errors import WrongHost
from quintet.server.asgi import Headers
from quintet.server.hosts import Hosts, is_host

pytestmark = pytest.mark.fault("F11")

LOCAL = [
    *("localhost", "LocalHost:8000", "localhost.", "api.localhost:1", "127.0.0.1", "127.0.0.1:8000", "127.8.9.1", "127.1", "0x7f000001"),
    *("2130706433", "017700000001", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:80", "[::1%25lo]"),
]
OTHERS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "localhost:80.evil.example", "evil-localhost", "notlocalhost"),
    *("127.0.0.1.evil.example", "127.0.0.1.nip.io", "8.8.8.8", "0.0.0.0", "[::]", "[2001:db8::1]", "::1", "[::1", "[::1].evil.example"),
    *("localhost:x", "*", "user@localhost"),
]


def answered(hosts: Hosts, host: str) -> bool:
    try:
        hosts.require(Headers([(b"host", host.encode("latin-1"))]))
    except WrongHost:
        return False
    return True


@pytest.mark.parametrize("host", LOCAL)
def test_this_machine_is_answered_to_in_every_spelling(host: str) -> None:
    assert answered(Hosts([]), host)


@pytest.mark.parametrize("host", OTHERS)
def test_whatever_else_is_named_is_not_and_a_star_takes_it(host: str) -> None:
    assert not answered(Hosts([]), host)
    assert answered(Hosts(["*"]), host)


def test_names_ends_of_names_and_addresses_can_be_allowed() -> None:
    hosts = Hosts(["Quintet.lan", "*.example.org", "192.0.2.7", "[2001:db8::7]"])
    for host in ("quintet.lan:8000", "a.example.org", "a.b.EXAMPLE.org.", "192.0.2.7:1", "[2001:db8:0:0::7]:1", "localhost"):
        assert answered(hosts, host), host
    for host in ("example.org", "aexample.org", "x.quintet.lan", "192.0.2.8", "[2001:db8::8]"):
        assert not answered(hosts, host), host


def test_a_wildcard_address_is_reached_at_any_address_but_not_by_any_name() -> None:
    """No page can make its name an address: what a browser sends is the name."""
    for listened in ("0.0.0.0", "::"):
        assert answered(Hosts([listened]), "203.0.113.5:8000")
        assert answered(Hosts([listened]), "[2001:db8::1]")
        assert not answered(Hosts([listened]), "evil.example")


def test_a_request_without_a_host_passes_since_no_browser_sends_one() -> None:
    Hosts([]).require(Headers([]))
    assert answered(Hosts([]), "")


@pytest.mark.parametrize("path", ["/v1/completions", "/livez", "/docs", "/metrics", "/nowhere", "/cerebras/v1/completions"])
def test_a_request_meant_for_another_is_refused_everywhere_in_the_dialects_words(path: str) -> None:
    backend = ScriptedBackend()
    app = create_app(backend, ServerConfig(allowed_hosts=()))
    answer = call(app, {"prompt": "a"}, path=path, headers=[*JSON, ("host", "evil.example")])
    assert (answer.status, backend.submitted) == (421, 0)
    assert "--allowed-host" in answer.body.decode()
    assert answer.header("x-completions-dialect") == ("cerebras" if "cerebras" in path else "openai")
    assert call(app, {"prompt": "a"}, headers=[*JSON, ("host", "localhost:8000")]).status == 200


def test_what_may_stand_in_the_list() -> None:
    assert all(is_host(text) for text in ("*", "a", "*.a.b", "A-b_c.d", "1.2.3.4", "[::1]", "::1"))
    assert not any(is_host(text) for text in ("", "a:80", "http://a", "*a", "a.*", "a b", "*.", "a..b"))
