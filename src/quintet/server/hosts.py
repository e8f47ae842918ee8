"""Whom a request was meant for: what its ``Host`` names.

A web page can make its own name mean 127.0.0.1 (DNS rebinding) and then read, as a browser sees it, its own server: this one. No
firewall stands in between, and where no key is asked for, nothing else either. But the browser still tells the name. So only names that
mean this machine are answered, and those that were allowed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from quintet.errors import WrongHost, shorten
from quintet.server.asgi import Headers

ANY = "*"
_FORM = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^:]*))(?::\d*)?")
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Hosts:
    """The hosts that are answered to: ``localhost``, names beneath it, loopback addresses, and others.

    Args:
        others: names; ``*.example.org`` = all beneath it; addresses, of which 0.0.0.0 and :: stand for any; ``*`` = everything.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self._any = False
        self._addresses: set[Address] = set()
        self._names = {"localhost"}
        self._ends: tuple[str, ...] = (".localhost",)
        for name in map(str.lower, others):
            if name == ANY:
                self._any = True
            elif (known := address(name.strip("[]"))) is not None:
                self._addresses.add(known)
            elif name.startswith("*."):
                self._ends += (name[1:],)
            else:
                self._names.add(name)
        self._any_address = any(known.is_unspecified for known in self._addresses)

    def require(self, headers: Headers) -> None:
        """A request with an empty ``Host``, or one of HTTP/1.0 without any, passes: no browser sends it.

        Raises:
            WrongHost: it is meant for another.
        """
        host = headers.get("host")
        if host and not self._any and not self._knows(host.lower()):
            name = shorten(host)
            raise WrongHost(f"This server does not answer to the host {name}; if it should, start it with --allowed-host and that name.")

    def _knows(self, host: str) -> bool:
        match = _FORM.fullmatch(host)
        if match is None:
            return False
        name = match["six"] if match["name"] is None else match["name"].removesuffix(".")
        meant = address(name)
        if meant is not None:
            return self._any_address or meant.is_loopback or meant in self._addresses
        return name in self._names or name.endswith(self._ends)


def address(text: str) -> Address | None:
    """An IP address in any of its spellings, such as ``127.1``, ``0x7f000001`` or ``::ffff:127.0.0.1``; ``None`` = it is a name."""
    try:
        if ":" not in text:
            return ipaddress.IPv4Address(socket.inet_aton(text))
        six = ipaddress.IPv6Address(text.partition("%")[0])
    except (OSError, ValueError):
        return None
    return six.ipv4_mapped or six


def is_host(text: str) -> bool:
    """Whether ``text`` can stand in ``Hosts``: a name, ``*.NAME``, an address, or ``*``; no port and no scheme."""
    return text == ANY or address(text.strip("[]")) is not None or _NAME.fullmatch(text.lower()) is not None
