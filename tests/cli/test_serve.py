"""Where the server listens, who may ask, and what the banner tells."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from quintet.backends.native.wire.sources import ModelSource
from quintet.cli import fleet, net, serve
from quintet.cli.console import OptionError
from quintet.cli.plans import Plan
from quintet.config import EngineConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.listen import sockets


def plan(**changes: object) -> Plan:
    values: dict[str, object] = {
        "name": "smollm2", "quant": "Q4_1", "context": 8192, "full_context": 8192, "isa": "avx512", "threads": 2, "kv_tokens": 46592,
        "source": ModelSource(path="", threads=1, context=None, name="toy"), "config": EngineConfig(),
    }  # fmt: skip
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


def models(*plans: Plan, lazy: bool = False) -> fleet.Fleet:
    served = tuple(Model(one.name, one.supervise, lazy=lazy) for one in plans)
    return fleet.Fleet(plans=plans, models=served, names=name_models([(one.name,) for one in plans]), idle=0.0, image_hosts=())


# --- listening


def test_a_busy_port_is_told_with_a_way_out() -> None:
    with sockets.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sockets.ListenError, match=f"port {port} on 127.0.0.1 is in use .* --port 0"):
            sockets.listen("127.0.0.1", port)
    sockets.listen("127.0.0.1", port).close()


def test_an_unknown_host_is_told() -> None:
    with pytest.raises(sockets.ListenError, match="cannot listen on host 'no.such.host.invalid'"):
        sockets.listen("no.such.host.invalid", 0)


@pytest.mark.parametrize("host", ["127.0..1", f"{'a' * 64}.example.org"])
def test_what_is_no_host_at_all_is_told(host: str) -> None:
    with pytest.raises(sockets.ListenError, match="cannot listen on host '.*: it has an empty part"):
        sockets.listen(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    net.check_exposure(host, (), no_key=False)


@pytest.mark.fault("D14")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid", "127.0..1", ""])
def test_any_other_host_needs_a_key_or_plain_words(host: str) -> None:
    with pytest.raises(sockets.ListenError, match="--api-key KEY, --api-key-file FILE or --keys FILE, or --no-api-key"):
        net.check_exposure(host, (), no_key=False)
    net.check_exposure(host, ("secret",), no_key=False)
    net.check_exposure(host, (), no_key=True)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "tab\t", "line\n"])
def test_a_key_that_no_request_could_carry_is_refused_without_telling_it(key: str) -> None:
    with pytest.raises(OptionError) as caught:
        net.check_exposure("127.0.0.1", ("good", key), no_key=False)
    assert not key or key not in str(caught.value)


def test_a_key_and_no_key_contradict() -> None:
    with pytest.raises(sockets.ListenError, match="contradict"):
        net.check_exposure("127.0.0.1", ("key",), no_key=True)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")])
def test_the_url_can_be_pasted_whatever_the_address(host: str, shown: str) -> None:
    try:
        sock = sockets.listen(host, 0)
    except sockets.ListenError:
        pytest.skip("no IPv6 here")
    with sock:
        url = sockets.url(sock)
        assert url == f"http://{shown}:{sock.getsockname()[1]}"
        socket.create_connection((shown.strip("[]"), sock.getsockname()[1])).close()


# --- the banner


def test_the_banner_is_one_line_in_a_log() -> None:
    line = serve.banner(models(plan()), "http://127.0.0.1:8000", access="no API key", whole=False)
    assert line == (
        "quintet 0.1.0: smollm2 (Q4_1, context 8192) at http://127.0.0.1:8000/v1, avx512, 2 threads, "
        "KV cache 1.1 GB for 46592 tokens, no API key\n"
    )


def test_the_banner_for_people_holds_every_fact() -> None:
    served = models(plan(name="it's", context=4096, threads=1))
    text = serve.banner(served, "http://127.0.0.1:8000", access="2 API keys", whole=True)
    for fact in ("http://127.0.0.1:8000/v1", "it's (Q4_1, context 4096 of 8192)", "avx512, 1 thread\n", "for 46592 tokens", "2 API keys"):
        assert fact in text


def test_the_banner_tells_every_model_and_what_waits_to_be_loaded() -> None:
    served = models(plan(), plan(name="coder", quant="Q8_0", kv_tokens=100), lazy=True)
    line = serve.banner(served, "http://127.0.0.1:8000", access="no API key", whole=False)
    later = "loaded when it is asked for"
    assert f": smollm2 (Q4_1, context 8192, {later}), coder (Q8_0, context 8192, {later}) at http" in line
    assert "KV cache 1.1 GB for 46592 tokens + 1.1 GB for 100 tokens, no API key" in line
    text = serve.banner(served, "http://127.0.0.1:8000", access="no API key", whole=True)
    assert f"\n  model    smollm2 (Q4_1, context 8192, {later})\n           coder (Q8_0, context 8192, {later})\n" in text
    assert '"model": "smollm2"' in text


def test_the_banner_of_a_unix_socket_can_be_pasted_too() -> None:
    line = serve.banner(models(plan()), "http://localhost", access="no API key", whole=False, path="/run/q.sock")
    assert " at http://localhost/v1 on /run/q.sock, " in line
    text = serve.banner(models(plan()), "http://localhost", access="no API key", whole=True, path="/run/a b.sock")
    assert "curl --unix-socket '/run/a b.sock' http://localhost/v1/completions " in text


@pytest.mark.fault("G02")
def test_the_banner_tells_who_may_ask_and_never_a_key() -> None:
    with sockets.listen("127.0.0.1", 0) as near, sockets.listen("0.0.0.0", 0) as far:
        local, open_ = [sockets.Listener(near)], [sockets.Listener(near), sockets.Listener(far)]
        assert serve.access(local, None) == "no API key: this machine only"
        assert serve.access(open_, None) == "no API key: everybody who can reach it"
        assert serve.access(open_, 1) == "1 API key"
        assert serve.access(local, 2) == "2 API keys"
        assert serve.access(local, 0) == "0 API keys"


def test_nothing_of_http_is_imported_before_the_models_are_known_and_their_engines_load() -> None:
    """Nor what only other models need: each of these takes hundredths of a second before an engine hears what to load."""
    code = (
        "import sys, quintet.cli.app, quintet.cli.serve, quintet.cli.fleet, quintet.cli.engines, quintet.cli.net, quintet.cli.usage\n"
        "late = {'uvicorn', 'uvloop', 'prometheus_client', 'sqlite3', 'tokenizers', 'sentencepiece', 'quintet.dialects'}\n"
        "late |= {'quintet.server.app', 'quintet.models.hub', 'quintet.models.folder', 'quintet.cli.life'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
