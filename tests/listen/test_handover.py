"""A process that is to take over: what is left of one that cannot be started."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from quintet.listen.handover import Successor
from quintet.listen.sockets import Listener, listen


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_successor_that_finds_no_descriptor_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = [Listener(listen("127.0.0.1", 0)) for _ in range(2)]
    duplicate = fcntl.fcntl

    def only_one(descriptor: int, command: int, least: int) -> int:
        if descriptor == listeners[1].sock.fileno():
            raise OSError(24, os.strerror(24))
        return duplicate(descriptor, command, least)

    monkeypatch.setattr(fcntl, "fcntl", only_one)
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        Successor(listeners)
    assert open_descriptors() == before
    for listener in listeners:
        listener.close()
