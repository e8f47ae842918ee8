"""A TCP proxy with the faults of networks: delay, tiny pieces, little bandwidth, resets, silence, and buffering.

Each way of a connection is a thread that reads, spoils and passes on. ``Toxics`` are looked at for every piece, so that a test can turn
them while a connection is open.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

_READ = 65536
_LOOK_S = 0.02
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing is a reset


@dataclass
class Toxics:
    """What is done to what the server sends; the client's bytes are only delayed and cut into pieces.

    Args:
        latency: seconds before each piece.
        piece: most bytes that are passed on at once; 0 = as they come.
        rate: most bytes per second; 0 = no limit.
        reset_after: bytes from the server after which both sides are reset; ``None`` = never.
        blackhole: nothing passes, and nobody is told.
        buffer: bytes that are collected before any is passed on.
    """

    latency: float = 0.0
    piece: int = 0
    rate: float = 0.0
    reset_after: int | None = None
    blackhole: bool = False
    buffer: int = 0


class Proxy:
    """Listens on a port of loopback, and passes on to ``port``."""

    def __init__(self, port: int, toxics: Toxics) -> None:
        self._target, self.toxics = port, toxics
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target), timeout=60)
            except OSError:  # closed
                return
            self._sockets += [client, server]
            cut = threading.Event()
            for source, sink, spoils in ((client, server, False), (server, client, True)):
                source.settimeout(60)
                self._threads.append(threading.Thread(target=self._pass, args=(source, sink, spoils, cut)))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, spoils: bool, cut: threading.Event) -> None:
        """One way, until its end; ``cut`` = both ways are reset, each by who reads there."""
        passed, kept = 0, b""
        try:
            while not cut.is_set():
                if not select.select([source], [], [], _LOOK_S)[0]:
                    continue
                data = source.recv(_READ)
                if not data:
                    break
                kept += data
                if spoils and len(kept) < self.toxics.buffer:
                    continue
                for piece in self._pieces(kept):
                    if spoils and self.toxics.reset_after is not None and passed + len(piece) > self.toxics.reset_after:
                        cut.set()
                        break
                    self._send(sink, piece, spoils)
                    passed += len(piece)
                kept = b""
            if cut.is_set():
                source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                source.close()
                return
            self._send(sink, kept, spoils)
            if not (spoils and self.toxics.blackhole):
                sink.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):  # the other side left, or is closed by now
            with contextlib.suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            size = self.toxics.piece or len(data)
            yield data[at : at + size]
            at += size

    def _send(self, sink: socket.socket, piece: bytes, spoils: bool) -> None:
        if spoils and self.toxics.blackhole:
            return
        if self.toxics.latency:
            time.sleep(self.toxics.latency)
        if spoils and self.toxics.rate:
            time.sleep(len(piece) / self.toxics.rate)
        sink.sendall(piece)


@contextlib.contextmanager
def proxied(port: int, **toxics: float) -> Iterator[Proxy]:
    """A proxy before ``port`` with these ``Toxics``."""
    proxy = Proxy(port, Toxics(**toxics))  # type: ignore[arg-type]
    try:
        yield proxy
    finally:
        proxy.close()
