"""``Backend`` over several engines of one model: each request goes to one of them, whole.

Which one is for ``routing`` to say, how many there are for ``scaling``. An engine that dies is started again by itself; what waited in it
and was not begun is moved to the others meanwhile. One that cannot be had any more is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from quintet.backends.base import Health, Incidents, Pages, State
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.restarts import Records
from quintet.config import EngineConfig
from quintet.deploy.routing import Router, page_digests
from quintet.deploy.scaling import Scaler, Sizing
from quintet.errors import Loading, QuintetError
from quintet.events import TokenEvent
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.images.expansion import Expansion
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Prepared
from quintet.inputs.tokenizer import Tokenizer

TICK_S = 0.1
"""So often the replicas are looked at."""

REPLACE_S = 5.0
"""A replica that could not be started at all is replaced after so long."""

_BETTER = (State.READY, State.LOADING, State.STALLED, State.UNSOUND, State.DEAD)
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Replica:
    """
    Args:
        number: never used again.
        ends: how often its engine had ended when it was last looked at.
        leaving: takes nothing new, and goes when it has nothing left to do.
    """

    number: int
    engine: Engine
    ends: int = 0
    leaving: bool = False

    @property
    def state(self) -> State:
        """Of its engine."""
        return self.engine.state


class Pool:
    """Starts the least replicas at once. Make it on the event loop that will use it.

    Args:
        make: begins to load an engine, with the records of deaths that all of them share.
        config: of each engine.
        clock: seconds, monotonic.
    """

    def __init__(
        self, make: Callable[[Records], Engine], config: EngineConfig, sizing: Sizing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock, self._sizing = make, clock, sizing
        self._records = Records()
        self._router, self._scaler = Router(), Scaler(sizing, config.running_limit)
        self._replicas: list[Replica] = []
        self._made = 0  # replicas, ever
        self._past = Health(State.CLOSED)  # counted by replicas that are gone
        self._known: Capabilities | None = None  # see ``_capabilities``
        self._again = 0.0  # time before which no replica is replaced
        self._pages = 0  # of a replica, each of ``PAGE`` tokens
        self._draining = self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        for _ in range(sizing.least):
            self._add()
        self._watch = asyncio.get_running_loop().create_task(self._look())

    @property
    def replicas(self) -> Sequence[Replica]:
        """Those that there are."""
        return tuple(self._replicas)

    # ---- the boundary, see ``Backend``

    @property
    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        return self._capabilities or self._best.engine.capabilities

    @property
    def tokenizer(self) -> Tokenizer:
        """See ``Backend``."""
        able = self._with_room(0, "", begun=True)  # in a drain all are in one state, also those that are being started again
        return (able or [self._best])[0].engine.tokenizer

    @property
    def live(self) -> int:
        """See ``Backend``."""
        return sum(replica.engine.live for replica in self._replicas)

    @property
    def failure(self) -> Exception | None:
        """See ``Backend``. Where no replica could be started at all, that is so for any that would be made."""
        failures = [replica.engine.failure for replica in self._replicas]
        return None if self._capabilities is not None or None in failures else failures[-1]

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        """See ``Backend``."""
        if not self._with_room(count, tenant, begun=begun):
            self._best.engine.require_room(count, tenant, begun=begun)

    async def expand(self, images: Sequence[PreparedImage], salt: bytes, tenant: str = "") -> tuple[Expansion, ...]:
        """See ``Expander``. Whichever replica is asked, they all answer alike."""
        chosen = min(self._ready, key=lambda replica: replica.engine.live, default=self._best)
        return await chosen.engine.expand(images, salt, tenant)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """See ``Backend``."""
        count = len(prepared.sequences)
        able = self._with_room(count, prepared.tenant) or self._with_room(count, prepared.tenant, begun=True)
        candidates = {replica.number: replica for replica in able or [self._best]}
        adapter = prepared.adapter.id if prepared.adapter else 0
        digests = page_digests(prepared.sequences[0], adapter) if self._sizing.most > 1 else ()
        loads = {number: replica.engine.live for number, replica in candidates.items()}
        return candidates[self._router.route(digests, loads, count, self._pages)].engine.submit(prepared)

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """See ``Backend``."""
        for replica in self._replicas:
            replica.engine.abort(request_id, seq)

    def health(self) -> Health:
        """See ``Backend``."""
        seen = [replica.engine.health() for replica in self._replicas]
        best = seen[self._replicas.index(self._best)]  # of one that takes new requests, else nobody would know that they are refused
        return replace(
            reduce(Health.adding, (health for health in seen if health is not best), best.adding(self._past)),
            state=self._state_with(best.state),
            progress=max(health.progress for health in seen),
            running=sum(health.running for health in seen),
            waiting=sum(health.waiting for health in seen),
            deferred=sum(health.deferred for health in seen),
            pages=_pages([health.pages for health in seen]),
            retry_after=min(health.retry_after for health in seen),
            memory=max(health.memory for health in seen),
            pid=None,
            replicas=sum(health.state is State.READY for health in seen),
        )

    def drain(self) -> None:
        """See ``Backend``."""
        self._draining = True
        for replica in self._replicas:
            replica.engine.drain()

    async def close(self) -> None:
        """See ``Backend``."""
        self._draining = self._closed = True
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas), *self._closing)

    def _state_with(self, best: State) -> State:
        """The pool's, where its best replica is in this one."""
        if self._closed:
            return State.CLOSED
        return State.DRAINING if self._draining else best

    # ---- the replicas

    @property
    def _best(self) -> Replica:
        """The one in the best state, which tells for all what can be told."""
        return min(self._replicas, key=lambda replica: (not self._usable(replica), _rank(replica.state)))

    @property
    def _ready(self) -> list[Replica]:
        """Those that compute what they are given now."""
        return [replica for replica in self._replicas if replica.state is State.READY and self._usable(replica)]

    @property
    def _capabilities(self) -> Capabilities | None:
        """Those of the first replica that was ready, which count from then on, whatever becomes of it; ``None`` = none was yet."""
        if self._known is None:
            told = (_capabilities_of(replica) for replica in self._replicas if not replica.leaving)
            self._known = next(filter(None, told), None)
        return self._known

    def _usable(self, replica: Replica) -> bool:
        """It stays and, as soon as it was ready once, has the model of the first that was: else its answers would be another's."""
        own, first = _capabilities_of(replica), self._capabilities
        return not replica.leaving and (own is None or first is None or own.fingerprint == first.fingerprint)

    def _with_room(self, count: int, tenant: str, *, begun: bool = False) -> list[Replica]:
        return [replica for replica in self._replicas if self._usable(replica) and _has_room(replica.engine, count, tenant, begun=begun)]

    def _add(self) -> None:
        self._replicas.append(Replica(self._made, self._make(self._records)))
        self._made += 1

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._tend()
            except Exception:  # a replica that cannot be made now may be had later
                _log.exception("the replicas cannot be looked after")

    def _tend(self) -> None:
        """See what has become of the replicas, and have as many as the work wants."""
        for replica in tuple(self._replicas):
            self._see(replica)
        if self._draining or self.failure is not None:
            return
        seen = [replica.engine.health() for replica in self._replicas if not replica.leaving]
        coming = sum(health.state not in (State.READY, State.DEAD) for health in seen)  # a dead one is tried on, and may never come
        waiting = sum(health.waiting - health.deferred for health in seen)
        wanted = self._scaler.wanted(self._clock(), len(seen), coming, waiting, sum(replica.engine.live for replica in self._replicas))
        while len(seen) < wanted and self._clock() >= self._again:
            _log.warning("a replica is added to %d: %d sequences wait", len(seen), waiting)
            self._add()
            seen.append(self._replicas[-1].engine.health())
        if wanted < len(seen):
            self._dismiss()

    def _see(self, replica: Replica) -> None:
        """Heed what has become of a replica."""
        health = replica.engine.health()
        ends = _ends(health.incidents)
        if ends > replica.ends:
            replica.ends = ends
            self._router.forget(replica.number)
        if health.state is not State.READY and replica.ends:
            self._move(replica)
        if health.state is State.DEAD and replica.engine.failure is not None and not replica.leaving:
            self._replace(replica)
        elif health.state is State.READY and not replica.leaving:
            self._pages = health.pages.total * health.pages.size // PAGE  # vLLM's are larger than those that digests are of
            self._compare(replica)
        if replica.leaving and not replica.engine.live:
            self._remove(replica)

    def _compare(self, replica: Replica) -> None:
        """Let a replica go that has another model than the first."""
        if not self._usable(replica):
            other = replica.engine.capabilities.fingerprint
            _log.error("replica %d has another model than the first, and is not used: %s", replica.number, other)
            self._again = self._clock() + REPLACE_S
            replica.leaving = True

    def _move(self, replica: Replica) -> None:
        """Have others do what it has not begun, at once. It was taken, so it may make their queues longer than new requests may."""
        others = [other for other in self._ready if other is not replica]
        for request in replica.engine.release() if others else ():
            loads = {other.number: other.engine.live for other in others}
            chosen = min(others, key=lambda other: loads[other.number])
            chosen.engine.take(request)

    def _replace(self, replica: Replica) -> None:
        """It could not be started at all, and another could."""
        if self._capabilities is not None and self._clock() >= self._again:
            _log.error("replica %d cannot be started: %s", replica.number, replica.engine.failure)
            self._again = self._clock() + REPLACE_S
            self._remove(replica)
            self._add()

    def _dismiss(self) -> None:
        """Let the one go that is not ready, or else has least to do; what it does is finished."""
        staying = [replica for replica in self._replicas if not replica.leaving]
        spare = min(staying, key=lambda replica: (replica.state is State.READY, replica.engine.live, -replica.number))
        _log.warning("replica %d is not needed any more", spare.number)
        spare.leaving = True
        self._router.forget(spare.number)

    def _remove(self, replica: Replica) -> None:
        self._replicas.remove(replica)
        self._router.forget(replica.number)
        self._past = self._past.adding(replica.engine.health())
        task = asyncio.get_running_loop().create_task(replica.engine.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _capabilities_of(replica: Replica) -> Capabilities | None:
    """``None`` = it was never ready."""
    try:
        return replica.engine.capabilities
    except Loading:
        return None


def _has_room(engine: Engine, count: int, tenant: str, *, begun: bool) -> bool:
    try:
        engine.require_room(count, tenant, begun=begun)
    except QuintetError:
        return False
    return True


def _rank(state: State) -> int:
    return _BETTER.index(state) if state in _BETTER else len(_BETTER)


def _ends(incidents: Incidents) -> int:
    return incidents.crashed + incidents.hung + incidents.unstarted + incidents.changed + incidents.unsound


def _pages(replicas: Sequence[Pages]) -> Pages:
    """Of all replicas together."""
    return Pages(
        total=sum(pages.total for pages in replicas),
        size=max(pages.size for pages in replicas),
        used=sum(pages.used for pages in replicas),
        cached=sum(pages.cached for pages in replicas),
    )
