"""The engine as a process of its own: ``python -m quintet.backends.native.worker.child FD PARENT``, started by ``process``.

It talks only over the inherited socket, has no other input, and cannot outlive its parent: the kernel kills it when the parent dies, and
the end of the socket ends it too. Of signals it takes only those that cannot be refused; the parent decides when it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable
from queue import SimpleQueue

from quintet import logs
from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import (
    Abort,
    FromWorker,
    Load,
    ModelSource,
    Ping,
    Pixels,
    Ready,
    Shed,
    Stop,
    Submit,
    ToProcess,
    Vocabulary,
)
from quintet.backends.native.worker.memory import trim
from quintet.backends.native.worker.models import load_models
from quintet.backends.native.worker.worker import Heard, Worker
from quintet.children import keep_private, prctl
from quintet.models.pieces import Pieces

SEND_S = 60.0
"""A parent that reads nothing for so long hangs, and nobody else can want what is computed here."""

_PR_SET_PDEATHSIG = 1
_READ = 1 << 18
_log = logging.getLogger(__name__)


class TokenTable:
    """The ``Vocabulary`` of the parent's tokenizer; it comes while the weights are loaded."""

    def __init__(self, message: Vocabulary) -> None:
        self.pieces = Pieces(message.blob, array("I", message.ends))
        self.eos_ids = message.eos_ids


class Child:
    """Two threads: the main one runs the worker, the other reads the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._splitter = codec.Splitter()
        self._inbox: SimpleQueue[Heard] = SimpleQueue()
        self._load: SimpleQueue[Load] = SimpleQueue()
        self._vocabulary: SimpleQueue[Vocabulary] = SimpleQueue()

    def run(self, loader_of: Callable[[ModelSource, Callable[[], TokenTable]], Loader[TokenTable]]) -> None:
        """Until the parent goes away, or the worker breaks."""
        threading.Thread(target=self._read, name="quintet-read", daemon=True).start()
        load = self._load.get()
        loader = loader_of(load.source, lambda: TokenTable(self._vocabulary.get()))
        Worker(loader, load.config, time.monotonic, self._inbox, self._send, supervised=True).run()

    def _read(self) -> None:
        """End the process when the socket ends, or brings what no parent of ours would send."""
        try:
            while data := self._sock.recv(_READ):
                for frame in self._splitter.feed(data):
                    self._receive(codec.decode_to_worker(frame))
        except Exception:
            _log.exception("the engine lost its connection")
        finally:
            os._exit(0)

    def _receive(self, message: ToProcess) -> None:
        match message:
            case Submit() | Pixels() | Abort() | Shed() | Ping() | Stop():
                self._inbox.put(message)
            case Load():
                self._load.put(message)
            case Vocabulary():
                self._vocabulary.put(message)

    def _send(self, message: FromWorker) -> None:
        try:
            self._sock.sendall(codec.encode(message))
        except (BrokenPipeError, ConnectionResetError):  # gone, which ends this process whoever notices first
            os._exit(0)
        except OSError as error:  # not reading for SEND_S
            _log.error("the engine cannot reach its parent: %s", error)
            os._exit(1)
        if isinstance(message, Ready):
            trim()


def loader_of(source: ModelSource, table: Callable[[], TokenTable]) -> Loader[TokenTable]:
    """How the worker loads ``source``; ``table`` waits for the parent's tokenizer."""

    def load(progress: Callable[[float], None]) -> Loaded[TokenTable]:
        if not source.path:
            from quintet.backends.toy import toy_loader

            loaded = toy_loader()(progress)
            return Loaded(loaded.runner, table(), source.name, loaded.fingerprint)
        return load_models(source, table, progress)

    return load


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; at once if it is dead already."""
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main(loader_of: Callable[[ModelSource, Callable[[], TokenTable]], Loader[TokenTable]] = loader_of) -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal or a service manager may send them to all
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[2]))
    keep_private()
    logs.set_up(sys.argv[3], sys.argv[4])
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.settimeout(None)
    # The option and not ``settimeout``, which would hold for reading too.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_S))
    with contextlib.suppress(KeyboardInterrupt):
        Child(sock).run(loader_of)
    sock.shutdown(socket.SHUT_WR)  # what was sent last is still delivered
    os._exit(0)  # not held up by the reader or by compute threads


def _timeval(seconds: float) -> bytes:
    return int(seconds).to_bytes(8, sys.byteorder) + int(seconds % 1 * 1e6).to_bytes(8, sys.byteorder)


if __name__ == "__main__":
    main()
