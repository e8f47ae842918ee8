"""The socket between the child and the choosers in vLLM's workers."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

from quintet.backends.native.wire.messages import Vocabulary
from quintet.backends.vllm.sidecar import Sidecar
from quintet.backends.vllm.wire import Compiled


def test_a_chooser_that_is_gone_is_no_fault_of_those_who_talk_to_it() -> None:
    """Its death takes vLLM along, which is what is told to clients."""
    sidecar, vocabulary = Sidecar(), Vocabulary(b"a", b"", frozenset({0}))
    try:
        sidecar.accept(lambda: vocabulary)
        with socket.socket(socket.AF_UNIX) as chooser:
            chooser.connect(sidecar.path)
            chooser.recv(1)  # the rest is left unread, so that its end is a reset
            while not sidecar.sockets():
                time.sleep(0.001)
        for _ in range(2):
            sidecar.hear()
            sidecar.start(["start: /a/"], lambda _: None)
    finally:
        for sock in sidecar.sockets():
            sock.close()
        sidecar.close()
    assert not Path(sidecar.path).parent.exists()


def test_of_guides_only_the_last_answer_is_known() -> None:
    """Choosers drop what they have no room for, and say nothing: texts of all that ever were would pile up, and tell nothing."""
    sidecar = Sidecar()
    try:
        told: list[str] = []
        for grammar in ("start: /a/", "start: /b/"):
            sidecar.start([grammar], lambda _, done=grammar: told.append(done))  # type: ignore[misc]
            assert not sidecar.ready(grammar)
            sidecar._take(msgspec.msgpack.encode(Compiled((grammar,), well=True)))
            assert sidecar.ready(grammar)
        assert not sidecar.ready("start: /a/")
        sidecar.restart()
        sidecar._take(msgspec.msgpack.encode(Compiled(("start: /a/",), well=True)))
        assert not sidecar.ready("start: /a/"), "nobody asked"
        assert told == ["start: /a/", "start: /b/"]
    finally:
        sidecar.close()
