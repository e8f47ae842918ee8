"""Which addresses an image may be fetched from. Plain code over values."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"https?://[!#-\[\]-~]+", re.IGNORECASE)  # printable ASCII, without quotes and backslashes
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_ENTRY = re.compile(r"(?:\*|(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)(?::\d{1,5})?")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_OWN = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # of protocols, of which the two below are reached from anywhere
        "192.88.99.0/24",  # the nearest relay of 6to4
        "64:ff9b:1::/48",  # IPv4 addresses in a network's own NAT64
        "::ffff:0:0:0/96",  # IPv4 addresses that a translator stands for
        "100:0:0:1::/64",  # nowhere
        "3fff::/20",  # of examples
        "5f00::/16",  # segments of a network's own routes
    )
)
"""Nobody's on the internet by IANA's tables of special addresses, whatever Python's release has of them."""
_ANYONES = frozenset(map(ipaddress.ip_address, ("192.0.0.9", "192.0.0.10")))


class Target(NamedTuple):
    """Where a URL leads.

    Args:
        host: a name, or an address without brackets; in lower case.
        path: with what follows a question mark.
    """

    scheme: str
    host: str
    port: int
    path: str


def target_of(url: str) -> Target | None:
    """``None`` if it is no URL of http or https, or one that programs read in different ways: with a user, odd characters, or no host."""
    if not _URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        literal = "[" in parts.netloc
        if literal:
            ipaddress.IPv6Address(host)
    except ValueError:
        return None
    if "@" in parts.netloc or not (literal or _HOST.fullmatch(host)):
        return None
    scheme = parts.scheme.lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(scheme, host.rstrip("."), port or _PORTS[scheme], path)


def allowed(target: Target, hosts: Sequence[str]) -> bool:
    """An owner's list has it: ``name``, ``*.name`` (anything below it) or ``*``; each means the usual ports, or with ``:port`` that one."""
    return any(_matches(target, entry.lower()) for entry in hosts)


def is_entry(text: str) -> bool:
    """Whether ``text`` can stand in such a list; a port is one that there can be."""
    port = text.partition(":")[2]
    return bool(_ENTRY.fullmatch(text)) and (not port or 1 <= int(port) <= 65535)


def _matches(target: Target, entry: str) -> bool:
    name, colon, port = entry.rpartition(":")
    if not colon or not port.isdecimal():
        name, ports = entry, frozenset(_PORTS.values())
    else:
        ports = frozenset({int(port)})
    if target.port not in ports:
        return False
    return name in ("*", target.host) or (name.startswith("*.") and target.host.endswith(name[1:]))


def public(address: str) -> bool:
    """An IP address that is nobody's own: not private, loopback, link-local, shared, reserved, multicast, nor one of these in IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if ip not in _ANYONES and any(ip in network for network in _OWN):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    inside = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if inside is None and (ip in _NAT64 or ip.packed[:12] == bytes(12)):  # the latter: "IPv4-compatible"
        inside = ipaddress.IPv4Address(ip.packed[12:])
    if inside is not None:
        return public(str(inside))
    return ip.is_global and not (ip.is_multicast or ip.is_site_local)
