"""A chooser's end of the sidecar, in one of vLLM's worker processes: the vocabulary comes in, guides are compiled as they are told.

The child listens on a Unix socket whose path vLLM hands to its workers. A worker connects while it loads, and ends when the child is gone:
vLLM's own workers outlive a killed parent's parent.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from array import array
from collections.abc import Callable

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import Outcome
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Vocabulary
from quintet.backends.vllm.choose import Chooser
from quintet.backends.vllm.wire import Compile, Compiled, FromChooser, Refused, decode_to_chooser
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler
from quintet.models.pieces import Pieces

_READ = 1 << 18
_log = logging.getLogger(__name__)


def connect(path: str, vocab: int, gone: Callable[[], None] = lambda: os._exit(1)) -> Chooser:
    """A chooser for this process; waits for the vocabulary.

    Args:
        path: of the child's socket.
        vocab: width of the logits.
        gone: called in another thread when the child is.

    Raises:
        OSError, EOFError: there is no child.
    """
    sidecar = _Sidecar(path, gone)
    vocabulary = sidecar.vocabulary()
    pieces = Pieces.of(Pieces(vocabulary.blob, array("I", vocabulary.ends)), vocab)
    guides = Guides(Compiler(pieces, vocabulary.eos_ids, vocab))
    sidecar.listen(guides)
    # One thread: those of vLLM wait by spinning where it computes, and a second one of ours would wait for them.
    return Chooser(NativeSamplers(Cpu("", 1), pieces, vocabulary.eos_ids), guides, vocab, sidecar.refuse)


class _Sidecar:
    def __init__(self, path: str, gone: Callable[[], None]) -> None:
        self._gone = gone
        self._splitter, self._frames = codec.Splitter(), list[bytes]()
        self._lock = threading.Lock()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)

    def vocabulary(self) -> Vocabulary:
        """The first that the child says."""
        message = decode_to_chooser(self._next())
        assert isinstance(message, Vocabulary), "the child says it first"
        return message

    def listen(self, guides: Guides) -> None:
        """Have a thread hear what else it says."""
        threading.Thread(target=self._listen, args=(guides,), name="quintet-sidecar", daemon=True).start()

    def refuse(self, key: int, position: int, outcome: Outcome) -> None:
        """There is no token at this position."""
        self._send(Refused(key, position, outcome))

    def _listen(self, guides: Guides) -> None:
        try:
            while True:
                message = decode_to_chooser(self._next())
                if isinstance(message, Compile):
                    guides.start(message.grammars, self._compiled(message.grammars))
        except (OSError, EOFError):
            self._gone()

    def _compiled(self, grammars: tuple[str, ...]) -> Callable[[bool], None]:
        return lambda well: self._send(Compiled(grammars, well))

    def _next(self) -> bytes:
        while not self._frames:
            data = self._sock.recv(_READ)
            if not data:
                raise EOFError
            self._frames += self._splitter.feed(data)
        return self._frames.pop(0)

    def _send(self, message: FromChooser) -> None:
        try:
            with self._lock:
                self._sock.sendall(codec.encode(message))
        except OSError as error:  # the child is gone, which the other thread notices
            _log.debug("the sidecar's socket is closed: %s", error)
