"""Listening sockets: made here, or handed over by whoever started the process, in the form that systemd gives them.

``LISTEN_FDS`` sockets begin at descriptor 3, and ``LISTEN_FDNAMES`` names them (sd_listen_fds(3)). One that is named ``admin`` is the
admin listener; the others, whatever their names, are public.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import QuintetError, shorten

PUBLIC, ADMIN = "public", "admin"

READY = "ready"
"""The name of a pipe that may be among the sockets: see ``handover.py``."""

FIRST = 3
"""The descriptor of the first socket that is handed over."""

_NO_NAME = "it has an empty part between two dots, or one of more than 63 characters"
"""Said of a host that Python does not even ask for: it fails to write it as the name service has names (RFC 1035, 2.3.4)."""

_BACKLOG = 2048
_SEND_BYTES = 128 * 1024
"""Of an answer, what the system may hold for a client that does not read (Linux doubles it for its own needs)."""


class ListenError(QuintetError):
    """The server cannot, or must not, listen there."""


@dataclass(slots=True)
class Listener:
    """A listening socket.

    Args:
        name: ``PUBLIC`` or ``ADMIN``.
        file: of a Unix socket that is ours, with its inode: removed when it is not used any more.
    """

    sock: socket.socket
    name: str = PUBLIC
    file: tuple[Path, int] | None = None

    @classmethod
    def owning(cls, sock: socket.socket, name: str = PUBLIC) -> Listener:
        """One whose file, if it has one, goes with it."""
        if sock.family != socket.AF_UNIX:
            return cls(sock, name)
        path = Path(sock.getsockname())
        return cls(sock, name, (path, path.lstat().st_ino))

    @property
    def local(self) -> bool:
        """Only this machine can reach it."""
        return self.sock.family == socket.AF_UNIX or ipaddress.ip_address(self.address).is_loopback

    @property
    def address(self) -> str:
        """The IP address; empty for a Unix socket."""
        return "" if self.sock.family == socket.AF_UNIX else str(self.sock.getsockname()[0]).partition("%")[0]

    @property
    def path(self) -> str:
        """Of a Unix socket; empty for an IP address."""
        return str(self.sock.getsockname()) if self.sock.family == socket.AF_UNIX else ""

    def close(self) -> None:
        """Listen no more, and leave no file."""
        self.sock.close()
        if self.file is not None:
            path, inode = self.file
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:  # else it is another's by now
                    path.unlink()

    def give(self) -> None:
        """Listen no more; whoever has the same socket goes on, and the file is theirs."""
        self.file = None
        self.sock.close()


def listen(host: str, port: int, option: str = "--port", *, free: bool = True) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one.

    Args:
        option: that says where, for the error.
        free: ``--port 0`` is a way out, for the error.

    Raises:
        ListenError: unknown host, busy or forbidden port; one clear line.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else _NO_NAME
        raise ListenError(f"cannot listen on host {shorten(host)}: {why}.") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # restart at once, while old connections linger
        sock.bind(address)
        _listen(sock)
    except OSError as error:
        sock.close()
        raise ListenError(_why(host, port, option, error, free=free and option == "--port")) from error
    return sock


def listen_unix(path: Path, mode: int) -> socket.socket:
    """A listening Unix socket, which only those can use that ``mode`` lets write to it.

    A socket that a process left behind is replaced. Two that start at once cannot both do so: the folder is locked meanwhile.

    Raises:
        ListenError: it is in use, or something else is there, or it cannot be made.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(path.parent):
            _remove_stale(path)
            before = os.umask(0o777)  # nobody gets in before the mode is right
            try:
                sock.bind(str(path))
            finally:
                os.umask(before)
            path.chmod(mode)
            _listen(sock)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}; choose another path with --uds.") from error
    except ListenError:
        sock.close()
        raise
    return sock


@dataclass(frozen=True, slots=True)
class Inherited:
    """What this process was started with.

    Args:
        ready: the descriptor on which to say that this process serves, to the one that it takes the place of; ``None`` = there is none.
        waits: the sockets were listened on before this process began, so whoever connects meanwhile is to wait for it, not to be refused.
    """

    listeners: tuple[Listener, ...] = ()
    ready: int | None = None
    waits: bool = False


def inherited(environment: MutableMapping[str, str], pid: int) -> Inherited:
    """The sockets that this process was given, unless they are meant for another; the ``environment`` tells of them no more.

    Raises:
        ListenError: one of them is no socket.
    """
    for_process, count, names = (environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if for_process != str(pid) or not count.isdecimal():
        return Inherited()
    ready: int | None = None
    socks: list[tuple[socket.socket, str]] = []
    named = names.split(":")
    for number in range(int(count)):
        descriptor, name = FIRST + number, named[number] if number < len(named) else ""
        if name == READY:
            os.set_inheritable(descriptor, False)
            ready = descriptor
        else:
            socks.append((_socket_at(descriptor), ADMIN if name == ADMIN else PUBLIC))
    make = Listener if ready is None else Listener.owning  # systemd removes what it made
    return Inherited(tuple(make(sock, name) for sock, name in socks), ready, waits=True)


def _socket_at(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)  # not for the engines
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise ListenError(f"descriptor {descriptor}, which LISTEN_FDS tells of, is no socket: {error.strerror}.") from error


def addresses(host: str) -> set[str]:
    """The IP addresses that a host means; of an unknown one none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        return set()
    return {str(address[0]).partition("%")[0] for *_, address in found}


def is_loopback(host: str) -> bool:
    """Whether every address of ``host`` is this machine's own; an unknown host is not."""
    found = addresses(host)
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


def url(sock: socket.socket, scheme: str = "http") -> str:
    """The address to paste; a wildcard address is reached on loopback, and over a Unix socket the host is of no account."""
    if sock.family == socket.AF_UNIX:
        return f"{scheme}://localhost"
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _listen(sock: socket.socket) -> None:
    """Now, not later: two bound sockets can share a port until one listens."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # connections have it from here
    sock.listen(_BACKLOG)


def _remove_stale(path: Path) -> None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise ListenError(f"{path} is there and is no socket; choose another path with --uds.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server that is stopped takes nobody from its backlog, and the one that waits for it holds the folder
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise ListenError(f"{path} is in use by another program; choose another with --uds.")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _why(host: str, port: int, option: str, error: OSError, *, free: bool) -> str:
    if error.errno == errno.EADDRINUSE:
        way = ", or --port 0 for any free one" if free else ""
        return f"port {port} on {host} is in use by another program; choose another with {option}{way}."
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used without privileges; choose one above 1023 with {option}."
    return f"cannot listen on {host} port {port}: {error.strerror}."
