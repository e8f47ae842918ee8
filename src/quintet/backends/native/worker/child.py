"""The engine as a process of its own, which ``front/spawn`` starts: ``python -m ...worker.child FD PARENT LEVEL FORM``."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable
from queue import SimpleQueue

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.wire.messages import (
    Abort,
    FromWorker,
    Load,
    Ping,
    Pixels,
    Ready,
    Shed,
    Stop,
    Submit,
    ToProcess,
    Vocabulary,
)
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.memory import trim
from quintet.backends.native.worker.models import load_models
from quintet.backends.native.worker.parent import Parent, inherited
from quintet.backends.native.worker.worker import Heard, Worker
from quintet.models.pieces import Pieces


class TokenTable:
    """The ``Vocabulary`` of the parent's tokenizer; it comes while the weights are loaded."""

    def __init__(self, message: Vocabulary) -> None:
        self.pieces = Pieces(message.blob, array("I", message.ends))
        self.eos_ids = message.eos_ids


class Child:
    """Two threads: the main one runs the worker, the other reads the socket."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._inbox: SimpleQueue[Heard] = SimpleQueue()
        self._load: SimpleQueue[Load] = SimpleQueue()
        self._vocabulary: SimpleQueue[Vocabulary] = SimpleQueue()

    def run(self, loader_of: Callable[[ModelSource, Callable[[], TokenTable]], Loader[TokenTable]]) -> None:
        """Until the parent goes away, or the worker breaks."""
        self._parent.listen(self._receive)
        load = self._load.get()
        loader = loader_of(load.source, lambda: TokenTable(self._vocabulary.get()))
        Worker(loader, load.config, time.monotonic, self._inbox, self._send, supervised=True).run()

    def _receive(self, message: ToProcess) -> None:
        match message:
            case Submit() | Pixels() | Abort() | Shed() | Ping() | Stop():
                self._inbox.put(message)
            case Load():
                self._load.put(message)
            case Vocabulary():
                self._vocabulary.put(message)

    def _send(self, message: FromWorker) -> None:
        self._parent.send(message)
        if isinstance(message, Ready):
            trim()


def loader_of(source: ModelSource, table: Callable[[], TokenTable]) -> Loader[TokenTable]:
    """How the worker loads ``source``; ``table`` waits for the parent's tokenizer."""

    def load(progress: Callable[[float], None]) -> Loaded[TokenTable]:
        if not source.path:
            from quintet.backends.toy import toy_loader

            loaded = toy_loader()(progress)
            return Loaded(loaded.runner, table(), name=source.name, fingerprint=loaded.fingerprint)
        return load_models(source, table, progress)

    return load


def main(loader_of: Callable[[ModelSource, Callable[[], TokenTable]], Loader[TokenTable]] = loader_of) -> None:
    """The process."""
    parent = inherited()
    with contextlib.suppress(KeyboardInterrupt):
        Child(parent).run(loader_of)
    parent.leave()


if __name__ == "__main__":
    main()
