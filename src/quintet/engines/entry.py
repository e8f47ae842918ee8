"""One model of a server: its engine while there is one, and what of it outlives the engine."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from quintet.backends.base import Backend, Health, State
from quintet.engines.adapters import LoraConfig
from quintet.errors import CLOSING, EngineFailed, Overloaded
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.moderation.format import Format

POLL_S = 0.02
"""How often it is looked whether an engine is loaded, or has ended its work."""

PreparerOf = Callable[[Backend, GuideCheck, FairExecutor, ImageReader], Preparer]
"""What prepares the requests of an engine; guides are checked, long texts tokenised and images read in one place for all."""


@dataclass(frozen=True, slots=True)
class Model:
    """What can be served.

    Args:
        name: its first one.
        start: begins to load it; called on the event loop, once for each time that it is loaded.
        weights, kv: bytes that it needs.
        lazy: it is loaded at its first request.
        pinned: once loaded it stays.
        mapped: its weights are a file's memory: free when others need it, and read again. Where they do not fit, it runs, but slowly.
        preparer: for an engine that ``start`` made.
        moderation: how it is asked whether a text is safe; ``None`` = it is not.
        loras: which LoRA adapters it takes; ``None`` = none.
        context: most tokens of prompt and completion; ``None`` = that is known once it is loaded.
        speculative: tokens may be drafted for it.
        settings: a digest of what the server was told that changes answers, though the engine knows nothing of it; empty = nothing.
    """

    name: str
    start: Callable[[], Backend]
    weights: int = 0
    kv: int = 0
    lazy: bool = False
    pinned: bool = False
    mapped: bool = False
    preparer: PreparerOf = Preparer
    moderation: Format | None = None
    loras: LoraConfig | None = None
    context: int | None = None
    speculative: bool = False
    settings: str = ""


class Phase(enum.Enum):
    """Whether there is an engine. How it fares is told by its health."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


async def settled(backend: Backend, show: Callable[[float], None] = lambda _: None) -> Health:
    """Wait until an engine is loaded, or is not going to be.

    Args:
        show: told of the share that is done.
    """
    while (health := backend.health()).state is State.LOADING:
        show(health.progress)
        await asyncio.sleep(POLL_S)
    return health


class Entry:
    """A model and its engine.

    Args:
        guides, executor, images: see ``Preparer``.
        clock: seconds, monotonic.
    """

    def __init__(self, model: Model, guides: GuideCheck, executor: FairExecutor, images: ImageReader, clock: Callable[[], float]) -> None:
        self.model = model
        self._guides, self._executor, self._images = guides, executor, images
        self.phase = Phase.UNLOADED
        self.backend: Backend | None = None
        self._preparer: Preparer | None = None
        self.users = 0  # requests that need it now
        self._answered = 0  # of these, those whose answers have ended
        self._released = 0  # of these, those that ask nothing more of the engine, see ``released``
        self._yielding: set[asyncio.Timeout] = set()  # of these, those that end when the model is to be unloaded
        self.put_away = False  # an administrator unloaded it, and nobody who waits has asked for it since
        self.used = clock()  # when a request last needed it, or it was loaded
        self._clock = clock
        self._past = Health(State.CLOSED, 0.0)  # counted by the engines before

    @property
    def name(self) -> str:
        """The model's first name."""
        return self.model.name

    @property
    def preparer(self) -> Preparer:
        """Of the engine that there is."""
        assert self._preparer is not None, "there is no engine"
        return self._preparer

    @property
    def unanswered(self) -> int:
        """Requests that need it now, as their clients see it."""
        return self.users - self._answered

    @property
    def loaded(self) -> bool:
        """There is an engine, which says itself how it fares."""
        return self.phase is Phase.LOADED

    @property
    def status(self) -> str:
        """One word for people: the phase, or the engine's state."""
        return self.health().state.value if self.loaded else self.phase.value

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """As long as a request needs the engine, which is not idle meanwhile."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.used = self._clock()

    @contextlib.contextmanager
    def answering(self) -> Iterator[Callable[[], None]]:
        """As long as a request, which holds it, is there: what to call when the last byte of its answer is handed over.

        Whoever has read that may send the next request, which is alone then, before this one is put away.
        """
        answered = over = False

        def end() -> None:
            nonlocal answered
            if not (answered or over):  # a refusal is answered when the request is over
                answered = True
                self._answered += 1

        try:
            yield end
        finally:
            over = True
            if answered:
                self._answered -= 1

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """As long as a request that is ``held`` asks nothing more of this engine, though it is not over: ``unload`` does not wait for it.

        Either the engine has all of its work, and ``live`` tells when that has ended, however long the client reads the answer. Or it
        waits for the engine that is loaded after this one.
        """
        self._released += 1
        try:
            yield
        finally:
            self._released -= 1

    @contextlib.asynccontextmanager
    async def yielding(self) -> AsyncIterator[None]:
        """Work on the model for which nobody waits, and which can be done anew: unloading ends it.

        Raises:
            Overloaded: it did.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._yielding.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise Overloaded(f"The model {self.name} is being unloaded; try again later.") from None
            raise
        finally:
            self._yielding.discard(limit)

    @property
    def idle(self) -> bool:
        """It could be freed: the engine is well and no request needs it."""
        return self.spare and not self.users

    @property
    def spare(self) -> bool:
        """It could be freed for somebody who waits: the engine is well, and unloading ends whatever needs it, to be done anew."""
        well = self.loaded and self.health().state is State.READY
        return well and self.users == len(self._yielding) and not self.model.pinned

    def health(self) -> Health:
        """Of the engine, with what those before it have counted; ``CLOSED`` while there is none."""
        now = self.backend.health() if self.backend else Health(State.CLOSED, 0.0)
        return now.adding(self._past)

    def start(self) -> Backend:
        """Begin to load; who started it watches over it."""
        self.backend, self.phase, self.put_away = self.model.start(), Phase.LOADED, False
        self._preparer = self.model.preparer(self.backend, self._guides, self._executor, self._images)
        return self.backend

    async def load(self) -> None:
        """Load it to the end.

        Raises:
            EngineFailed: it cannot be loaded, and there is no engine; the reason is its cause.
            Overloaded: the server began to shut down.
        """
        backend = self.start()
        self.phase = Phase.LOADING
        health = await settled(backend)
        if health.state is State.READY:
            self.phase, self.used = Phase.LOADED, self._clock()
            return
        await self.close()
        if health.state is not State.DEAD:
            raise Overloaded(CLOSING)
        # The reason has the server's paths in it, which are for its log.
        raise EngineFailed(f"The model {self.name} could not be loaded; the server's log has the reason.") from backend.failure

    def drain(self) -> None:
        """Take no new work; ``unload`` comes next."""
        self.phase = Phase.UNLOADING
        if self.backend is not None:
            self.backend.drain()
        for limit in self._yielding:
            if not limit.expired():
                limit.reschedule(0)

    async def unload(self, seconds: float) -> None:
        """Let what runs end, for at most ``seconds``, and free everything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A request may be between two pieces of its work. One whose work is done has a client that may read as slowly as it likes.
                while self.backend is not None and (self.backend.live or self.users > self._released):
                    await asyncio.sleep(POLL_S)
        await self.close()

    async def close(self) -> None:
        """End all work and free everything at once. Idempotent, also while another call of it waits."""
        if self.backend is not None:
            await self.backend.close()
        if self.backend is not None:
            self._past = self.health()
            self.backend = self._preparer = None
        self.phase = Phase.UNLOADED
