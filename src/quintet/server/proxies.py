"""Whose address a request comes from, where a reverse proxy stands in between. Plain code over values.

A header that a client can write is believed only as far as trusted proxies wrote it: it is read from the right, where the nearest proxy
wrote, and on past every address that is a trusted proxy itself. The first that is none is the client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from quintet.errors import QuintetError, shorten

UNIX = "unix"
"""Stands in place of networks for whoever connects over a Unix socket, which has no address."""

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("(?:[^"\\]|\\.)*"|[^;,"\s]+)', re.IGNORECASE)
_MOST_HOPS = 32


class ProxyError(QuintetError):
    """What is to be trusted is no network."""


class Proxies:
    """The trusted ones.

    Args:
        trusted: networks such as ``10.0.0.0/8``, addresses, or ``unix``.

    Raises:
        ProxyError: one is none of these.
    """

    def __init__(self, trusted: Sequence[str]) -> None:
        self._unix = UNIX in trusted
        self._networks = tuple(_network(text) for text in trusted if text != UNIX)

    def client(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The client's address.

        Args:
            peer: address of who is connected; empty over a Unix socket.
            headers: raw ASGI headers.
        """
        if not self._trusts(peer):
            return peer
        ways = [way for way in (_x_forwarded_for(headers), _forwarded(headers)) if way]
        clients = {self._client(peer, way) for way in ways}
        # A proxy that writes one of the headers lets the other through as the client wrote it: where they differ neither is believed.
        return clients.pop() if len(clients) == 1 else peer

    def _client(self, peer: str, way: Sequence[str]) -> str:
        last = peer
        for hop in reversed(way[-_MOST_HOPS:]):
            address = _address(hop)
            if not address:  # ``unknown``, a proxy's word of its own, or no address at all: nobody knows further
                return last
            last = address
            if not self._trusts(address):
                return address
        return last

    def _trusts(self, address: str) -> bool:
        if not address:
            return self._unix
        try:
            peer = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ProxyError(f"--trusted-proxy must be a network such as 10.0.0.0/8, an address, or {UNIX}, got {shorten(text)}.") from None


def _x_forwarded_for(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    return [hop.strip() for name, value in headers if name == b"x-forwarded-for" for hop in value.decode("latin-1").split(",")]


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """The ``for`` of each element of RFC 7239's header; one without it is a hop that is not known."""
    elements = [element for name, value in headers if name == b"forwarded" for element in value.decode("latin-1").split(",")]
    return [found[1].strip('"') if (found := _FOR.search(element.strip())) else "unknown" for element in elements]


def _address(hop: str) -> str:
    """The address of ``1.2.3.4``, ``1.2.3.4:567``, ``2001:db8::1``, ``[2001:db8::1]`` or ``[2001:db8::1]:567``; empty if it is none."""
    bracketed = hop[1:].partition("]")[0] if hop.startswith("[") else ""
    bare = hop.partition(":")[0] if hop.count(":") == 1 else hop
    try:
        return str(ip_address(bracketed or bare))
    except ValueError:
        return ""
