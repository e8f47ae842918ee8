"""The child's end of the sidecar: what it tells the choosers in vLLM's workers, and what they tell it."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Vocabulary
from quintet.backends.vllm.wire import Compile, Compiled, Refused, decode_from_chooser

MOST_REFUSED = 4096
_READ = 1 << 16
_log = logging.getLogger(__name__)


class _Compilation(NamedTuple):
    """Guides that the choosers were told to compile.

    Args:
        unanswered: choosers that have not said that it is done.
        then: is told whether all could.
    """

    unanswered: int
    then: Callable[[bool], None]


class Sidecar:
    """Choosers connect while vLLM loads, in as many processes as compute; used on one thread after that.

    Its guides are those of ``Compiling``: one is ready when every chooser has just said that it has it. What they drop later they do not
    say, so they are asked again, which takes no time where they have it still.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quintet-")
        self.path = str(Path(self._folder.name) / "sidecar")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)  # in a folder that only this user can enter
        self._listener.listen()
        self._choosers: list[tuple[socket.socket, codec.Splitter]] = []
        self._ready: tuple[str, ...] = ()  # of the last answer
        self._waiting: dict[tuple[str, ...], _Compilation] = {}  # by the grammars
        self.refused: dict[int, Refused] = {}
        """By the key of the sequence; whoever looks takes it out."""

    def accept(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Have a thread take in the choosers that connect, and tell each the vocabulary, which it waits for."""

        def run() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    sock, _ = self._listener.accept()
                    sock.sendall(codec.encode(vocabulary()))
                    self._choosers.append((sock, codec.Splitter()))

        threading.Thread(target=run, name="quintet-sidecar", daemon=True).start()

    def close(self) -> None:
        """Nobody connects any more, and the path is gone; the choosers stay connected."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for another
        self._listener.close()
        self._folder.cleanup()

    def sockets(self) -> list[socket.socket]:
        """To be read, with ``hear``, whenever there is something."""
        return [sock for sock, _ in self._choosers]

    def hear(self) -> None:
        """Take in what the choosers have said; never waits."""
        for sock, splitter in self._choosers:
            with contextlib.suppress(BlockingIOError, ConnectionError):  # one that is gone has taken vLLM along, which is seen elsewhere
                while data := sock.recv(_READ, socket.MSG_DONTWAIT):
                    for frame in splitter.feed(data):
                        self._take(frame)

    # ---- as ``Guides`` for ``Compiling``

    def ready(self, grammar: str) -> bool:
        """Every chooser has it, by their last answer."""
        return grammar in self._ready

    def start(self, grammars: Sequence[str], then: Callable[[bool], None]) -> None:
        """Have them compiled; ``then`` is called by ``hear`` when all have answered, with whether all could."""
        self._ready = ()  # for which these may have to go
        message = Compile(tuple(grammars))
        self._waiting[message.grammars] = _Compilation(len(self._choosers), then)
        for sock, _ in self._choosers:
            with contextlib.suppress(ConnectionError):  # see hear
                sock.sendall(codec.encode(message))

    def restart(self) -> None:
        """Nobody waits for what is being compiled."""
        self._waiting.clear()

    def _take(self, frame: bytes) -> None:
        match decode_from_chooser(frame):
            case Refused() as refused:
                self.refused[refused.key] = refused
                while len(self.refused) > MOST_REFUSED:  # of sequences that had ended, told once more by another worker
                    del self.refused[next(iter(self.refused))]
            case Compiled(grammars, well):
                compilation = self._waiting.pop(grammars, None)
                if compilation is None:
                    return  # nobody waits for it any more
                if not well:
                    compilation.then(False)
                elif compilation.unanswered > 1:
                    self._waiting[grammars] = compilation._replace(unanswered=compilation.unanswered - 1)
                else:
                    self._ready = grammars
                    compilation.then(True)
