"""A worker's process as its parent made it: what it takes of the world, and its end of the socket to the parent.

It talks only over the inherited socket, has no other input, and cannot outlive its parent: the kernel kills it when the parent dies, and
the end of the socket ends it too. Of signals it takes only those that cannot be refused; the parent decides when it ends.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

from quintet import logs
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import FromWorker, ToProcess
from quintet.children import die_with, keep_private

SEND_S = 60.0
"""A parent that reads nothing for so long hangs, and nobody else can want what is computed here."""

_READ = 1 << 18
_log = logging.getLogger(__name__)


class Parent:
    """The socket to the parent.

    Args:
        sock: blocking, for reading without end and for writing at most ``SEND_S``.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._splitter = codec.Splitter()
        self._lock = threading.Lock()

    def listen(self, receive: Callable[[ToProcess], None]) -> None:
        """Have a thread read; ``receive`` is called in it. The process ends with the socket, or with what no parent of ours would send."""
        threading.Thread(target=self._read, args=(receive,), name="quintet-read", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """Tell the parent, from any thread; ends the process if it is gone."""
        frame = codec.encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):  # gone, which ends this process whoever notices first
            os._exit(0)
        except OSError as error:  # not reading for SEND_S
            _log.error("the engine cannot reach its parent: %s", error)
            os._exit(1)

    def leave(self) -> None:
        """End the process: not held up by the reader or by compute threads. What was sent last is still delivered."""
        self._sock.shutdown(socket.SHUT_WR)
        os._exit(0)

    def _read(self, receive: Callable[[ToProcess], None]) -> None:
        try:
            while data := self._sock.recv(_READ):
                for frame in self._splitter.feed(data):
                    receive(codec.decode_to_worker(frame))
        except ConnectionResetError:  # gone, with something of ours unread
            pass
        except Exception:
            _log.exception("the engine lost its connection")
        finally:
            os._exit(0)


def inherited() -> Parent:
    """Of a process that was started with ``FD PARENT LEVEL FORM``, after what such a process does first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal or a service manager may send them to all
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[2]))
    keep_private()
    logs.set_up(sys.argv[3], sys.argv[4])
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.settimeout(None)
    # The option and not ``settimeout``, which would hold for reading too.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_S))
    return Parent(sock)


def _timeval(seconds: float) -> bytes:
    return int(seconds).to_bytes(8, sys.byteorder) + int(seconds % 1 * 1e6).to_bytes(8, sys.byteorder)
