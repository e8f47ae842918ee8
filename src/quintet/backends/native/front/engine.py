"""``Backend`` over the embedded engine: its verbs, on the event loop's side.

::

    verbs (engine) --> requests in flight (in_flight, stream) --> link --> worker, in a thread or a process of its own
                          ^ told of deaths by the supervisor  <--  link
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence

from quintet import machine
from quintet.backends.base import Health, State, require_open
from quintet.backends.native.core.loader import Loader
from quintet.backends.native.front.in_flight import InFlight, InFlightRequest
from quintet.backends.native.front.link import Link, ThreadLink
from quintet.backends.native.front.restarts import Records
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.supervisor import Supervisor
from quintet.backends.native.front.watchdog import STALL_S
from quintet.backends.native.wire.codec import digest
from quintet.backends.native.wire.messages import Submit
from quintet.config import EngineConfig
from quintet.errors import Loading, Overloaded, TooManyRequests
from quintet.events import TokenEvent
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.images.expansion import Expansion
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Prepared
from quintet.inputs.tokenizer import Tokenizer
from quintet.shares import exceeds_share


class Engine:
    """The embedded engine; loading begins at once, in the background. Make it on the event loop that will use it.

    Where its worker can be restarted, a worker that dies or hangs is. Requests of which a part was shown end with an error, the others
    are run again, and a request that was being computed at two deaths is refused for a while.

    Args:
        model: how to reach a worker; or how to load a model, for a worker in a thread.
        clock: seconds, monotonic.
        stall_s: see ``STALL_S``.
        chance, memory, watched: see ``Supervisor``.
        records: of deaths, shared with other engines of the same model; ``None`` = of this one alone.
    """

    def __init__(
        self,
        model: Link | Loader[Tokenizer],
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
        chance: Callable[[], float] = random.random,
        memory: Callable[[], tuple[int, int]] = machine.memory,
        records: Records | None = None,
        watched: bool = False,
    ) -> None:
        link = model if isinstance(model, Link) else ThreadLink(model, config, clock)
        self._clock = clock
        self._max_live, self._max_running = config.live_limit, config.running_limit
        records = records or Records()
        self._in_flight = InFlight(link.send, clock, digest, records.requests)
        self._supervisor = Supervisor(
            link, self._in_flight, clock, stall_s=stall_s, chance=chance, memory=memory, images=records.images, watched=watched
        )
        self._draining = False

    @property
    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        if self._supervisor.capabilities is None:
            raise Loading("The model is still loading.")
        return self._supervisor.capabilities

    @property
    def live(self) -> int:
        """See ``Backend``."""
        return self._in_flight.live

    @property
    def failure(self) -> Exception | None:
        """See ``Backend``."""
        return self._supervisor.failure

    @property
    def tokenizer(self) -> Tokenizer:
        """See ``Backend``."""
        self._require_open(begun=True)
        tokenizer = self._supervisor.tokenizer
        assert tokenizer is not None, "it is there before the engine is ready"
        return tokenizer

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        """See ``Backend``."""
        self._require_open(begun=begun)
        if self._supervisor.short_of_memory():
            raise Overloaded("The server is short of memory; try again later.", self._queue_s(count))
        room, own = self._max_live - self._in_flight.live - count, self._in_flight.live_of(tenant)
        if room < 0:
            raise Overloaded("The queue is full; try again later.", self._queue_s(count))
        if exceeds_share(tenant, own, count, room):
            raise TooManyRequests("This API key has its share of the queue; try again later.", self._queue_s(count))

    async def expand(self, images: Sequence[PreparedImage], salt: bytes, tenant: str = "") -> tuple[Expansion, ...]:
        """See ``Expander``."""
        return await self._supervisor.expanding.ask(images, salt, tenant, self._require_open)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """See ``Backend``."""
        stream = Stream(len(prepared.sequences))
        pixels = {image.digest: image.pixels for sequence in prepared.sequences for image in sequence.images}
        submit = Submit.of(
            prepared.request_id,
            prepared.sequences,
            self._clock(),
            tenant=prepared.tenant,
            weight=prepared.weight,
            adapter=prepared.adapter,
            urgency=prepared.urgency,
        )
        self._supervisor.run(submit, stream, pixels, shown=prepared.shown)
        return stream

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """See ``Backend``."""
        self._in_flight.abort(request_id, seq)

    def health(self) -> Health:
        """See ``Backend``."""
        return self._supervisor.health(draining=self._draining)

    def drain(self) -> None:
        """See ``Backend``."""
        self._draining = True
        self._supervisor.drain()

    async def close(self) -> None:
        """See ``Backend``."""
        self._draining = True
        await self._supervisor.close()

    @property
    def state(self) -> State:
        """As ``health`` has it, without counting up what was done."""
        return self._supervisor.seen(draining=self._draining)

    def release(self) -> list[InFlightRequest]:
        """While the worker is gone: what it had not begun, for another engine to ``take``."""
        return self._in_flight.release()

    def take(self, request: InFlightRequest) -> None:
        """Go on with what another engine let go of; whoever iterates over its events notices nothing."""
        self._supervisor.take(request)

    def _require_open(self, *, begun: bool = False) -> None:
        """As ``require_open``, but for an engine that is dead and tried on: it may be back."""
        state = self._supervisor.seen(draining=self._draining and not begun)
        if state is State.READY:
            return
        seconds = self._supervisor.retry_after(1, draining=self._draining)
        if state is State.DEAD and self._supervisor.tried_on:
            raise Loading("The engine has failed, and is being started again.", seconds)
        require_open(state, seconds)

    def _queue_s(self, count: int) -> float:
        """Seconds that the queue needs until it would be the turn of ``count`` sequences at its end."""
        return self._supervisor.retry_after(self._in_flight.live + count - self._max_running, draining=False)
