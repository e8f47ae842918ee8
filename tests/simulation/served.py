"""The server before a simulated engine: the real application, keys, limits and ledger, under the simulated clock, and what they promise.

- Of the ledger: see ``fronts``.
- No key has more completions at once, or more requests in a minute, than its limits say, and when all have ended nothing of them is held: a
  budget is less by just what the ledger says was used.

Simulated are the ledger's thread (``SimulatedWriter``) and its disk, which may be full, or slow. The file is a real one.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tests.simulation.clock import SimulatedLoop, Violation
from tests.simulation.faults import Chance, Fault
from tests.simulation.invariants import Watch, WatchedEngine

from quintet.config import LedgerConfig, ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.keys.key import Key
from quintet.keys.limits import Lease, Limiter
from quintet.ledger import ledger as ledger_module
from quintet.ledger import store as store_module
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import Row
from quintet.ledger.schema import connect as connect_really
from quintet.ledger.store import Store
from quintet.ledger.writer import Writer
from quintet.quota import MINUTE, Limits, Unit
from quintet.server import app as app_module
from quintet.server.app import create_app
from quintet.server.asgi import ASGIApp
from quintet.server.auth import Auth
from quintet.server.source import Source

EPOCH = 1_700_000_000.0
"""Unix time at which a world begins."""

MODEL = "m"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is set up.

    Args:
        keys: none = anybody may ask.
        serve: while the ledger cannot be written.
        timeout, keep_alive: seconds.
    """

    keys: tuple[Key, ...]
    serve: bool
    timeout: float
    keep_alive: float

    @classmethod
    def draw(cls, random: Random, tenants: tuple[tuple[str, int], ...], bound_s: float) -> Settings:
        """Keys with limits and without, that are reached and that are not."""
        keys = [Key(_digest(secret(number)), priority=weight, limits=_limits(random)) for number, (_, weight) in enumerate(tenants)]
        known = tuple(keys) if tenants != (("", 1),) else ()
        return cls(known, random.random() < 0.5, random.choice([0, 0, bound_s / 20]), random.choice([0.05, 1.0, 15.0]))


def secret(number: int) -> str:
    """The key of a tenant."""
    return f"sk-{number}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _limits(random: Random) -> Limits:
    return Limits(
        requests_per_minute=random.choice([0, 0, 0, 60, 600]),
        tokens_per_minute=random.choice([0, 0, 0, 2000, 20_000]),
        parallel=random.choice([0, 0, 1, 2, 6]),
        budget=random.choice([0, 0, 0, 4000, 100_000]),
    )


class Served:
    """A server before an engine. Made on the simulated loop.

    Args:
        tokens: numbers that no other server of this ledger has.
    """

    def __init__(
        self, loop: SimulatedLoop, engine: WatchedEngine, settings: Settings, random: Random, file: Path, tokens: Iterator[int]
    ) -> None:
        self.engine, self.settings = engine, settings
        self.limiters: list[WatchedLimiter] = []
        source = Source(
            now=lambda: EPOCH + loop.time(), token=lambda: f"{next(tokens):08x}", seed=lambda: random.getrandbits(64), clock=loop.time
        )
        self.ledger = Ledger(LedgerConfig(file, settings.serve), source.now, source.clock)
        self.registry = Registry([Model(MODEL, lambda: engine)], name_models([(MODEL,)]), clock=loop.time)
        auth = Auth((), "", [_Keys(settings.keys)] if settings.keys else [], source.clock, source.now)
        with patch.object(app_module, "Limiter", self._limiter):
            self.app: ASGIApp = create_app(
                self.registry,
                ServerConfig(timeout=settings.timeout),
                source=source,
                keep_alive=settings.keep_alive,
                ledger=self.ledger,
                auth=auth,
            )

    def _limiter(self, *given: Any) -> WatchedLimiter:
        self.limiters.append(WatchedLimiter(*given))
        return self.limiters[-1]


class _Keys:
    """See ``KeySource``."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys

    def stamp(self) -> tuple[int, ...]:
        return (1,)

    def read(self) -> list[Key]:
        return [*self._keys]


class WatchedLimiter(Limiter):
    """A limiter that is looked at."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._begun: dict[str, list[float]] = {}

    def open(self, key: Key, *, place: bool = True) -> Lease:
        lease, limits = super().open(key, place=place), key.limits
        running = self._accounts[key.id].running
        _require(not limits.parallel or running <= limits.parallel, f"limits: {running} at once, and {limits.parallel} may be")
        begin = lease.begin

        def begun() -> None:
            lease.begin = begin  # type: ignore[method-assign]  # it ends with another call, which counts nothing
            begin()
            self._count(key)

        lease.begin = begun  # type: ignore[method-assign]
        return lease

    def _count(self, key: Key) -> None:
        times, now = self._begun.setdefault(key.id, []), self._clock()
        times.append(now)
        if rate := key.limits.requests_per_minute:  # what was used drains away evenly
            over = next((at for at, since in enumerate(times) if len(times) - at > rate + rate * (now - since) / MINUTE + 1e-6), None)
            _require(over is None, f"limits: more than {rate} requests a minute")

    def check(self, rows: list[Row]) -> None:
        """All have ended.

        Raises:
            Violation: something is still held, or not what was used is counted.
        """
        for key, account in self._accounts.items():
            _require(account.running == 0, f"limits: {account.running} are held to be running when all have ended")
            for bucket in account.buckets.values():
                _require(bucket.held == 0, f"limits: {bucket.held} {bucket.unit.value} are held when all have ended")
            for bucket in account.of(Unit.TOKENS):
                used = sum(row.prompt + row.completion for row in rows if row.key == key)
                if not bucket.window:
                    counted = bucket.limit - bucket.left(self._clock())
                    _require(counted == used, f"limits: {counted} tokens counted of a budget, and {used} used")


class SimulatedWriter(Writer):
    """The ledger's writer without its thread: what the thread would do is done when the disk would have done it."""

    def __init__(self, loop: SimulatedLoop, chance: Chance, watch: Watch, *given: Any) -> None:
        self._loop, self._chance, self._watch = loop, chance, watch
        self._timer: Any = None
        self._at = self._busy = 0.0  # when the thread goes on; until when the disk holds it up
        super().__init__(*given)

    def _begin(self) -> None:
        self._turns = self.turns()
        self._go()

    def wake(self) -> None:
        now = self._loop.time()
        if self._chance.happens(Fault.DISK_SLOW) and now > self._busy:
            seconds = self._chance.seconds(Fault.DISK_SLOW, 0.01, 20.0)
            self._watch.excuse(seconds)
            self._busy = now + seconds
        self._later(max(0.0002, self._busy - now))

    def close(self, seconds: float) -> None:
        self._closing = True
        for _ in self._turns:
            pass
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, seconds: float) -> None:
        at = self._loop.time() + seconds
        if self._timer is not None and self._at > at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._at, self._timer = at, self._loop.call_at(at, self._go)

    def _go(self) -> None:
        self._timer = None
        self._later(next(self._turns))


class Disk:
    """What a store's writes come to."""

    def __init__(self, loop: SimulatedLoop, chance: Chance, watch: Watch) -> None:
        self._loop, self._chance, self._watch = loop, chance, watch
        self._full = 0.0  # until when

    def write(self, real: Any, store: Store, *given: Any) -> None:
        """Stands before what writes."""
        self._watch.moment()
        if self._chance.happens(Fault.DISK_FULL):
            seconds = self._chance.seconds(Fault.DISK_FULL, 0.1, 60.0)
            self._watch.trace("the disk is full")
            self._full = self._loop.time() + seconds
        if self._loop.time() < self._full and not self._watch.closing:
            raise sqlite3.OperationalError("database or disk is full")
        real(store, *given)


@contextmanager
def simulated(loop: SimulatedLoop, chance: Chance, watch: Watch) -> Iterator[Path]:
    """The simulated parts stand in the places of the real ones; where the ledger's file may be."""
    disk, connect = Disk(loop, chance, watch), connect_really

    def quick(file: Path) -> sqlite3.Connection:
        """What is written need not outlive this process."""
        connection = connect(file)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with TemporaryDirectory(prefix="simulated-") as folder, ExitStack() as stack:
        places: list[tuple[Any, str, Any]] = [
            (ledger_module, "Writer", partial(SimulatedWriter, loop, chance, watch)),
            (store_module, "connect", quick),
            (secrets, "token_bytes", bytes),
        ]
        places += [(Store, name, _before(disk, getattr(Store, name))) for name in ("write", "probe")]
        for where, name, made in places:
            stack.enter_context(patch.object(where, name, made))
        yield Path(folder) / "ledger.db"


def _before(disk: Disk, real: Any) -> Any:
    return lambda store, *given: disk.write(real, store, *given)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
