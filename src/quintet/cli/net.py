"""Where the server listens and who may ask: the checks that come before anything is loaded."""

from __future__ import annotations

import errno
import ipaddress
import socket

from quintet.errors import QuintetError, shorten

_BACKLOG = 2048


class ListenError(QuintetError):
    """The server cannot, or must not, listen there."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one.

    Raises:
        ListenError: unknown host, busy or forbidden port; one clear line.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ListenError(f"cannot listen on host {shorten(host)}: {error.strerror}.") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once, while old connections linger
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, not later: two bound sockets can share a port until one listens
    except OSError as error:
        sock.close()
        raise ListenError(_why(host, port, error)) from error
    return sock


def check_exposure(host: str, keys: tuple[str, ...], no_key: bool, *, closed: bool = False) -> None:
    """Refuse to listen beyond this machine without a key, unless told so in so many words.

    Args:
        keys: those given as such.
        closed: a key is needed, though it may be none of these.

    Raises:
        ListenError: that, or a key that no request could carry.
    """
    for key in keys:
        check_key(key, "an API key")
    if (keys or closed) and no_key:
        raise ListenError("--no-api-key and an API key (--api-key, --api-key-file, --keys or QUINTET_API_KEY) contradict each other.")
    if not (keys or closed or no_key) and not is_loopback(host):
        raise ListenError(
            f"host {shorten(host)} is reachable from other machines and no API key is set: "
            "add --api-key KEY, --api-key-file FILE or --keys FILE, or --no-api-key to let everybody in."
        )


def check_key(key: str, what: str) -> None:
    """
    Raises:
        ListenError: no request could carry it.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ListenError(f"{what} must be printable ASCII without spaces, and not empty.")


def is_loopback(host: str) -> bool:
    """Whether every address of ``host`` is this machine's own; an unknown host is not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def url(sock: socket.socket) -> str:
    """The address to paste; a wildcard address is reached on loopback."""
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; choose another with --port, or --port 0 for any free one."
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used without privileges; choose one above 1023 with --port."
    return f"cannot listen on {host} port {port}: {error.strerror}."
