"""Where the server listens and who may ask: the checks that come before anything is loaded."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from quintet.cli.console import OptionError
from quintet.cli.values import check_key
from quintet.errors import shorten
from quintet.listen.sockets import ADMIN, PUBLIC, Inherited, Listener, ListenError, inherited, is_loopback, listen, listen_unix
from quintet.listen.tls import Tls
from quintet.server.cors import is_origin
from quintet.server.hosts import ANY, is_host

HOST, PORT = "127.0.0.1", 8000


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where to listen, unless whoever starts this process has done so, and for whom; named as the options of ``quintet serve``.

    Args:
        uds: a Unix socket in place of ``host`` and ``port``.
        uds_mode: who may use it, in octal, as for ``chmod``.
        admin_listen: ``HOST:PORT`` for metrics and administration, which are then there alone.
        tls_cert, tls_key: PEM files; both or none.
        max_connections: ``None`` = as many as there are descriptors for.
        allowed_host: what a ``Host`` may name beside this machine.
        cors_origin: web sites whose pages may send requests.
    """

    host: str = HOST
    port: int = PORT
    uds: Path | None = None
    uds_mode: str = "600"
    admin_listen: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_connections: int | None = None
    allowed_host: tuple[str, ...] = ()
    cors_origin: tuple[str, ...] = ()

    def check(self) -> None:
        """
        Raises:
            OptionError: options that contradict each other or are malformed.
        """
        if self.uds is not None and (self.host, self.port) != (HOST, PORT):
            raise OptionError("--uds takes the place of --host and --port; leave them out.")
        if not re.fullmatch("0?[0-7]{3}", self.uds_mode):
            raise OptionError(f"--uds-mode must be three octal digits such as 660, got {shorten(self.uds_mode)}.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("--tls-cert and --tls-key must be given together.")
        if wrong := [name for name in self.allowed_host if not is_host(name)]:
            raise OptionError(f"--allowed-host must be a name, *.NAME, an address or *, without a port, got {shorten(wrong[0])}.")
        if wrong := [origin for origin in self.cors_origin if not is_origin(origin)]:
            raise OptionError(f"--cors-origin must be an origin such as https://app.example.org, or *, got {shorten(wrong[0])}.")
        if self.admin_listen is not None:
            _host_and_port(self.admin_listen)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where it is listened, unless on sockets that this process was started with."""
        return (self.host,) if self.admin_listen is None else (self.host, _host_and_port(self.admin_listen)[0])

    def open(self) -> Inherited:
        """The listening sockets: those that this process was started with, else those that the options tell of.

        Raises:
            ListenError: it cannot be listened there.
            OptionError: ``--admin-listen`` is where the public listens.
        """
        given = inherited(os.environ, os.getpid())
        there = {listener.name for listener in given.listeners}
        if not there:
            self.require_two_places()
        with contextlib.ExitStack() as undo:
            opened = []
            for name, wanted, opens in ((PUBLIC, True, self._public), (ADMIN, self.admin_listen is not None, self._admin)):
                if wanted and name not in there:
                    opened.append(Listener.owning(opens(), name))
                    undo.callback(opened[-1].close)
            undo.pop_all()
        return replace(given, listeners=(*given.listeners, *opened))

    def _public(self) -> socket.socket:
        return listen(self.host, self.port) if self.uds is None else listen_unix(self.uds, int(self.uds_mode, 8))

    def require_two_places(self) -> None:
        """
        Raises:
            OptionError: ``--admin-listen`` is where the public listens.
        """
        if self.uds is not None or self.admin_listen is None:
            return
        host, port = _host_and_port(self.admin_listen)
        if port and port == self.port and (host == self.host or {host, self.host} & {"0.0.0.0", "::"}):  # noqa: S104 -- compared
            raise OptionError(f"--admin-listen must be another place than --host and --port, got {shorten(self.admin_listen)}.")

    def _admin(self) -> socket.socket:
        return listen(*_host_and_port(self.admin_listen or ""), "--admin-listen")

    def tls(self) -> Tls | None:
        """
        Raises:
            ListenError: certificate and key are no good.
        """
        return None if self.tls_cert is None or self.tls_key is None else Tls(self.tls_cert, self.tls_key)


def answered_hosts(listened: Iterable[str], allowed: tuple[str, ...], *, keyless: bool) -> tuple[str, ...]:
    """What a ``Host`` may name: see ``server/hosts.py``.

    Where a key is needed, a page that made its name mean this machine has none, and gets nowhere; so there everything may be named, unless
    it was said what.

    Args:
        listened: the addresses that are listened on; an empty one is a Unix socket.
    """
    if not keyless and not allowed:
        return (ANY,)
    own = sorted({address for address in listened if address})
    name = socket.gethostname()
    beyond = not all(map(is_loopback, own)) and is_host(name)
    return (*allowed, *own, *([name] if beyond else ()))


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise OptionError(f"--admin-listen must be HOST:PORT, got {shorten(text)}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_exposure(host: str, keys: tuple[str, ...], *, no_key: bool, closed: bool = False) -> None:
    """Refuse to listen beyond this machine without a key, unless told so in so many words.

    Args:
        keys: those given as such.
        no_key: it was said that none is needed.
        closed: a key is needed, though it may be none of these.

    Raises:
        ListenError: that.
        OptionError: a key that no request could carry.
    """
    for key in keys:
        check_key(key, "--api-key")
    if (keys or closed) and no_key:
        raise ListenError("--no-api-key and an API key (--api-key, --api-key-file, --keys or QUINTET_API_KEY) contradict each other.")
    if not (keys or closed or no_key) and not is_loopback(host):
        raise ListenError(
            f"host {shorten(host)} is reachable from other machines and no API key is set: "
            "add --api-key KEY, --api-key-file FILE or --keys FILE, or --no-api-key to let everybody in."
        )
