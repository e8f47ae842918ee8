"""A machine's side of a replica: starts a worker's process for the front that connects, and hands it the connection itself.

So nothing stands between the two: the process reads and writes the very socket that the front does. The front's end of it ends the process,
as the end of this process does; a new connection takes the place of the one before.
"""

from __future__ import annotations

import hmac
import logging
import select
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from quintet.backends.native.front.spawn import kill, launch
from quintet.deploy.remote import CLOCK

SECRET_BYTES = 32
HELLO_S = 2.0
"""Who connects must show the secret within this time."""

_POLL_S = 0.2
_log = logging.getLogger(__name__)


class Host:
    """Listens from now on, in a thread that lives as long as the process.

    Args:
        address: of this machine, by which the front reaches it.
        secret: ``SECRET_BYTES`` of them.
        module, level, form: of the worker, see ``launch``.
    """

    def __init__(self, address: str, secret: bytes, module: Sequence[str], level: str, form: str) -> None:
        self._secret, self._module, self._log = secret, tuple(module), (level, form)
        self._listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._listener.settimeout(_POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        threading.Thread(target=self._serve, name="quintet-host", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                pass
            except OSError as error:  # no descriptor, say: that passes, and nobody would start this thread again
                _log.warning("no connection can be taken: %s", error)
                time.sleep(_POLL_S)
            else:
                self._admit(sock)
            if self._process is not None and (self._process.poll() is not None or self._hung_up()):
                self._end()

    def _admit(self, sock: socket.socket) -> None:
        """Start a worker for a connection that shows the secret, in place of the one before."""
        try:
            if not hmac.compare_digest(read(sock, SECRET_BYTES, HELLO_S), self._secret):
                raise ConnectionRefusedError("a wrong secret")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._end()
            sock.sendall(CLOCK.pack(time.monotonic()))
            sock.settimeout(None)
            self._process, self._connection = launch(self._module, sock, *self._log), sock
        except OSError as error:
            _log.warning("a connection is refused: %s", error)
            sock.close()

    def _hung_up(self) -> bool:
        """The front has ended its end of the connection."""
        assert self._connection is not None
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _end(self) -> None:
        """End the worker that there is; it is gone when this returns."""
        if self._process is not None:
            kill(self._process)
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def read(sock: socket.socket, count: int, seconds: float) -> bytes:
    """So many bytes, or fewer if there are no more.

    Raises:
        TimeoutError: they were not there in time, however many came.
    """
    data, end = b"", time.monotonic() + seconds
    while len(data) < count:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(data)} of {count} bytes in time")
        sock.settimeout(left)
        more = sock.recv(count - len(data))
        if not more:
            break
        data += more
    return data
