"""A process that is to take over: what it is given, how it says that it serves, and how it is ended where it is not needed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from pathlib import Path

import pytest

from quintet.listen import handover
from quintet.listen.handover import Successor, announce
from quintet.listen.sockets import Listener, listen


def start(script: str) -> Successor:
    """A shell with one listening socket, which is its 3; at 4 it says that it is ready."""
    listener = Listener(listen("127.0.0.1", 0), "web")
    try:
        return Successor([listener], ("/bin/sh", "-c", script))
    finally:
        listener.sock.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("script", "said"), [("printf 1 >&4", True), ("exit 0", False), ("exec /no/such/program", False)])
def test_who_ends_without_a_word_did_not_come_up(script: str, said: bool) -> None:
    async def go() -> None:
        successor = start(script)
        assert await successor.ready() is said
        await successor.give_up()
        assert not is_there(successor.pid)

    asyncio.run(go())


def test_the_sockets_come_as_systemd_gives_them() -> None:
    told = '[ "$LISTEN_PID $LISTEN_FDS $LISTEN_FDNAMES" = "$$ 2 web:ready" ]'
    listens = "[ -S /proc/self/fd/3 ] && [ -p /proc/self/fd/4 ]"

    async def go() -> None:
        successor = start(f"{told} && {listens} && printf 1 >&4")
        assert await successor.ready()
        await successor.give_up()

    asyncio.run(go())


@pytest.mark.parametrize("script", ["exec sleep 60", "trap '' TERM; printf 1 >&4; exec sleep 60"])
def test_one_that_is_not_needed_is_ended_by_force_if_it_must_be(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "GIVE_UP_S", 0.2)

    async def go() -> None:
        successor = start(script)
        if "trap" in script:
            assert await successor.ready()
        await successor.give_up()
        assert not is_there(successor.pid)
        await successor.give_up()

    asyncio.run(go())


def test_of_a_successor_no_descriptor_stays_here() -> None:
    async def go() -> None:
        before = open_descriptors()
        successor = start("printf 1 >&4; exec sleep 60")
        assert await successor.ready()
        assert open_descriptors() == before
        await successor.give_up()

    asyncio.run(go())


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


def test_a_word_to_a_process_that_is_gone_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    announce(ours.detach())
    heard, told = os.pipe()
    announce(told)
    assert os.read(heard, 10) == b"1"
    assert os.read(heard, 10) == b"", "and it is closed"
    os.close(heard)
