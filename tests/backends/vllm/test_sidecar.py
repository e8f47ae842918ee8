"""The socket between the child and the choosers in vLLM's workers."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from quintet.backends.native.wire.messages import Vocabulary
from quintet.backends.vllm.sidecar import Sidecar


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
            sidecar.start(["start: /a/"], lambda: None)
    finally:
        for sock in sidecar.sockets():
            sock.close()
        sidecar.close()
    assert not Path(sidecar.path).parent.exists()
