"""A server's life: load, serve, and one of its ends: drained on SIGTERM, within two seconds on Ctrl-C, or replaced on SIGUSR2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from quintet.backends.base import State
from quintet.cli.fleet import Fleet
from quintet.cli.heart import Heart, notify, reloading
from quintet.cli.interrupt import end_within, on_renewal, on_stop, unless
from quintet.cli.loading import ready
from quintet.engines.registry import Registry
from quintet.errors import EngineFailed, ModelError, counted
from quintet.listen import handover
from quintet.listen.server import Server
from quintet.listen.sockets import Inherited
from quintet.listen.tls import Tls
from quintet.logs import Lines

_log = logging.getLogger(__name__)

_POLL_S = 0.02
_GRACE_S = 0.5  # for answers that are nearly done; then the engine ends the rest, and their clients see it
_END_S = 1.2  # for everything after the grace; in all less than two seconds


class Life:
    """
    Args:
        server: makes one that serves the models.
        given: the sockets, and who is to be told that they are served.
        banner: said on stdout when it serves.
        drain: most seconds until answers that still run are ended.
        watchdog: see ``Heart``.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        server: Callable[[Registry], Server],
        given: Inherited,
        tls: Tls | None,
        banner: str,
        drain: float,
        watchdog: float,
    ) -> None:
        self._fleet, self._make, self._given, self._tls = fleet, server, given, tls
        self._banner, self._drain, self._watchdog = banner, drain, watchdog
        self._managed = False  # READY has been told, and no end
        self._replaced = False

    async def run(self) -> int:
        """The exit code."""
        with Heart(self._watchdog):
            return await self._run()

    async def _run(self) -> int:
        stop, at_once = on_stop()
        self._renew = on_renewal(self._reload, stop)
        self._models = self._fleet.open()
        self._server = self._make(self._models)
        self._serving = asyncio.create_task(self._server.serve())
        if not self._given.waits:
            self._server.open()  # told that the models are loading
        try:
            if await unless(stop, _loaded(self._models)):
                if self._given.waits:
                    self._server.open()
                Lines(1).write(self._banner)  # whether anybody reads it or not
                if self._given.ready is not None:
                    handover.announce(self._given.ready)
                self._managed = True
                notify(READY=1)
                await unless(stop, self._until_replaced())
                self._managed = False
                if not self._replaced:  # else the service goes on
                    notify(STOPPING=1)
                await unless(at_once, self._left() if self._replaced else self._drained())
            return 0
        finally:
            await self._shut_down()

    def _reload(self) -> None:
        """The service manager is told between start and end alone: READY tells it that the one is over, and that the other is not."""
        if self._managed:
            reloading()
        if self._tls is not None:
            self._tls.reload()
        if self._managed:
            notify(READY=1)

    async def _until_replaced(self) -> None:
        while not self._replaced and not await unless(self._renew, self._ended()):
            self._renew.clear()
            self._replaced = await self._has_successor()

    async def _ended(self) -> None:
        await asyncio.shield(self._serving)

    async def _has_successor(self) -> bool:
        """Start one, and wait until it serves, or does not come up."""
        try:
            successor = handover.Successor(self._given.listeners)
        except OSError as error:
            _log.error("hand-over: no process can be started: %s; this one serves on", error.strerror)
            return False
        _log.warning("hand-over: process %d is started", successor.pid)
        serves = False
        try:
            serves = await successor.ready()
        finally:
            if not serves:
                await successor.give_up()
        if serves:
            _log.warning("hand-over: process %d serves; this one ends", successor.pid)
            notify(MAINPID=successor.pid)
        else:
            _log.error("hand-over: process %d did not come up; this one serves on", successor.pid)
        return serves

    async def _left(self) -> None:
        """Answer those who are connected; everybody else is the new process's."""
        self._server.leave()
        for listener in self._given.listeners:
            listener.give()
        try:
            async with asyncio.timeout(self._drain):
                while self._server.connections:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            _log.warning("%s not done %g s after the hand-over, and ended", counted(self._server.connections, "connection"), self._drain)

    async def _drained(self) -> None:
        """Refuse new work, still answering that, until all answers are given, or time is up.

        For what nobody waits for, as the lines of batches, neither does this: the next process computes them anew, to the same bytes.
        """
        self._models.drain()
        try:
            async with asyncio.timeout(self._drain):
                while self._server.answering:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            _log.warning("draining is given up after %g s", self._drain)

    async def _shut_down(self) -> None:
        """Refuse new work, let answers end that are nearly done, then end the others."""
        self._server.end()
        await asyncio.wait((self._serving,), timeout=_GRACE_S)
        if live := self._models.live:
            _log.warning("%s not done, and ended", counted(live, "choice"))
        await end_within(_END_S, 0, self._models.close(), self._serving)


async def _loaded(models: Registry) -> None:
    """Wait for what is loaded at the start, and for nothing that clients ask for meanwhile; all of it at the same time.

    Raises:
        ModelError, EngineFailed: one cannot be.
    """
    begun = [(entry.name, entry.backend) for entry in models.entries.values() if entry.loaded and entry.backend is not None]
    for name, backend in begun:
        try:
            await ready(backend, name)
        except (ModelError, EngineFailed):
            if backend.health().state is State.DEAD:
                raise
            # Else it came up while others loaded, and has been unloaded since, say.
