"""What a soak makes of a server that does not come back, and of its own clients that fail."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from argparse import Namespace

import pytest

from bench.common.proc import PeerError
from bench.endurance.peak import told
from bench.endurance.server import Figures, Server
from bench.endurance.soak import Soak, parse, report
from bench.endurance.traffic import crowd
from quintet.load.client import Target

REST = Figures(0.0, 0, 0, 0, 0, 0.0)


class Gone(Server):
    """Its engine does not come back, and nobody is at its address."""

    def __init__(self, options: Namespace) -> None:
        self.target, self._options = Target("http://127.0.0.1:1/v1/completions"), options

    async def hurt(self, number: int) -> float:
        self._options.fault_every = 3600.0  # it is the only fault
        raise PeerError("the server did not come to rest")


def test_an_engine_that_never_comes_back_falls_short_and_excuses_nothing_that_comes_after() -> None:
    options = parse(["--fault-every", "0"])
    soak = Soak(Gone(options), options)

    async def hurt() -> None:
        async with crowd() as among, asyncio.timeout(60):
            among.add(soak._hurting())
            while not soak.answers:
                await asyncio.sleep(0.01)

    asyncio.run(hurt())
    assert soak.recoveries == [math.inf]
    assert told(report(soak, REST, REST)) == 1
    later = time.perf_counter() + 3600
    soak.seen.broken.append((later, later + 1, "no connection"))
    assert soak.lost() == ["no connection"]


def test_a_client_that_fails_is_told_at_the_end_and_one_that_is_cut_off_is_none() -> None:
    async def fails() -> None:
        raise LookupError("what is this")

    async def go(*clients: object) -> None:
        async with crowd() as among:
            among.add(asyncio.sleep(3600))
            for client in clients:
                among.add(client())  # type: ignore[operator]
            await asyncio.sleep(0.01)

    asyncio.run(go())
    with pytest.raises(PeerError, match="what is this"):
        asyncio.run(go(fails))


def test_a_server_that_hangs_up_is_looked_at_again_and_is_not_idle() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging_up = threading.Thread(target=lambda: listener.accept()[0].close())
        hanging_up.start()
        server = Server.__new__(Server)
        server.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert server._busy() == math.inf
        hanging_up.join()
