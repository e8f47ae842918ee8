"""Whose address it is: what a client writes is never believed, what trusted proxies write is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.server.proxies import Proxies, ProxyError

PROXIES = Proxies(("10.0.0.0/8", "2001:db8:aa::/48", "unix"))
XFF, FWD = b"x-forwarded-for", b"forwarded"


def client(peer: str, *headers: tuple[bytes, str]) -> str:
    return PROXIES.client(peer, [(name, value.encode("latin-1")) for name, value in headers])


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("192.0.2.1", [(XFF, "198.51.100.9")], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [(XFF, "198.51.100.9")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "1.1.1.1, 198.51.100.9")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "1.1.1.1, 198.51.100.9, 10.9.9.9")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "1.1.1.1"), (XFF, "198.51.100.9")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "10.1.1.1, 10.2.2.2")], "10.1.1.1"),
        ("10.0.0.1", [(XFF, "1.1.1.1, unknown, 10.2.2.2")], "10.2.2.2"),
        ("10.0.0.1", [(XFF, "")], "10.0.0.1"),
        ("10.0.0.1", [(XFF, "198.51.100.9:4711")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "[2001:db8::7]:443")], "2001:db8::7"),
        ("10.0.0.1", [(XFF, "2001:db8::7")], "2001:db8::7"),
        ("::ffff:10.0.0.1", [(XFF, "198.51.100.9")], "198.51.100.9"),
        ("2001:db8:aa::1", [(XFF, "198.51.100.9")], "198.51.100.9"),
        ("", [(XFF, "198.51.100.9")], "198.51.100.9"),
        ("10.0.0.1", [(FWD, "for=198.51.100.9;proto=https;by=10.0.0.1")], "198.51.100.9"),
        ("10.0.0.1", [(FWD, 'for=1.1.1.1, FOR="[2001:db8::7]:443"')], "2001:db8::7"),
        ("10.0.0.1", [(FWD, "for=1.1.1.1, for=_hidden")], "10.0.0.1"),
        ("10.0.0.1", [(FWD, "proto=https")], "10.0.0.1"),
        ("10.0.0.1", [(XFF, "198.51.100.9"), (FWD, "for=198.51.100.9")], "198.51.100.9"),
        ("10.0.0.1", [(XFF, "198.51.100.9"), (FWD, "for=1.1.1.1")], "10.0.0.1"),
    ],
)
def test_headers_are_read_from_the_right_and_only_as_far_as_trusted_proxies_wrote_them(
    peer: str, headers: list[tuple[bytes, str]], expected: str
) -> None:
    assert client(peer, *headers) == expected


def test_without_trusted_proxies_the_peer_is_the_client_also_over_a_unix_socket() -> None:
    for peer in ("127.0.0.1", "::1", ""):
        assert Proxies(()).client(peer, [(XFF, b"198.51.100.9")]) == peer


ADDRESSES = st.ip_addresses().map(str) | st.text(st.characters(codec="latin-1"), max_size=20).map(lambda text: text.replace(",", ""))


@given(
    st.lists(ADDRESSES, max_size=8), st.sampled_from(["198.51.100.9", "2001:db8::7"]), st.sampled_from(["10.0.0.1", "", "2001:db8:aa::1"])
)
def test_whatever_a_client_writes_before_it_the_address_that_the_proxy_saw_counts(written: list[str], seen: str, peer: str) -> None:
    assert client(peer, (XFF, ", ".join([*written, seen]))) == seen


@pytest.mark.parametrize("text", ["", "proxy", "10.0.0.0/33", "10.0.0.256", "10.0.0.0/8,192.0.2.1"])
def test_what_is_no_network_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(ProxyError, match="--trusted-proxy must be a network"):
        Proxies((text,))
