"""The models of a server: found by name, loaded when they are asked for, freed when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quintet.backends.base import Backend, State
from quintet.engines.adapters import Adapters, Lora, LoraConfig
from quintet.engines.entry import POLL_S, Entry, Model, Phase
from quintet.engines.names import Names
from quintet.errors import CLOSING, BadRequest, Loading, ModelError, ModelNotFound, Overloaded, shorten
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader

PATIENCE_S = 15.0
"""A request waits so long for its model to be loaded, and is then told to come again: no SDK gives up before."""

DRAIN_S = 30.0
"""What runs on a model that is unloaded gets so long to end."""

RETRY_S = 10.0
"""When to ask again for a model for which there is no memory."""

MB = 1e6

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """What a request's model name means.

    Args:
        name: to answer with.
        lora: it means the model with this adapter; ``None`` = by itself.
    """

    entry: Entry
    name: str
    lora: Lora | None = None

    def fingerprint(self, backend: Backend) -> str:
        """What makes its answers: the engine with its weights, the adapter's, and what prepares the requests."""
        adapter = self.lora.adapter.digest if self.lora else ""
        parts = (backend.capabilities.fingerprint, adapter, self.entry.model.settings)
        return "-".join(part for part in parts if part)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """As long as a request needs engine and adapter."""
        with self.entry.held(), self.lora.held() if self.lora else contextlib.nullcontext():
            yield


class Registry:
    """All models of a server. Make it on the event loop that will use it.

    Args:
        names: of all models, and of the adapters that are there from the start.
        idle: seconds without a request after which a model that is not pinned is unloaded; 0 = never.
        free: bytes of memory that can be had; ``None`` = nobody knows, and there is always enough.
        patience: see ``PATIENCE_S``.
        clock: seconds, monotonic.
        image_hosts: from which images may be fetched; see ``ImageReader``.
    """

    def __init__(
        self,
        models: Sequence[Model],
        names: Names,
        *,
        idle: float = 0.0,
        free: Callable[[], int] | None = None,
        patience: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        image_hosts: Sequence[str] = (),
    ) -> None:
        self.guides = GuideCheck()
        """For all models."""
        self.executor = FairExecutor()
        """For all that takes long: two threads that compute would each hold the event loop up."""
        self._images = ImageReader(self.executor, image_hosts)
        self.entries = {model.name: Entry(model, self.guides, self.executor, self._images, clock) for model in models}
        self.names = names
        self.adapters = Adapters()
        for model in models:
            if model.loras is not None:
                self.adapters.begin(model.name, model.loras)
        self._idle, self._free, self._patience, self._clock = idle, free, patience, clock
        self._changes: dict[str, asyncio.Task[None]] = {}
        self._making_room = asyncio.Lock()
        self.draining = False
        """No work is taken anywhere any more."""
        self._watch = asyncio.create_task(self._free_idle()) if idle else None
        for entry in self.entries.values():
            if entry.model.pinned or not entry.model.lazy:
                entry.start()

    def find(self, name: str, forms: Sequence[str] = ()) -> Served:
        """What a name means; see ``Names.find``.

        Raises:
            ModelNotFound: nothing.
        """
        found = self.names.find(name, forms)
        if found is None:
            raise ModelNotFound(f"The model {shorten(name)} is not served here; served: {', '.join(self.names.exact)}.")
        return Served(self.entries[found.model], found.name, self.adapters.named.get(found.name))

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return sum(entry.backend.live for entry in self.entries.values() if entry.backend)

    async def ready(self, entry: Entry, *, background: bool = False) -> Backend:
        """The engine, once its model is loaded. Hold the entry meanwhile.

        Nobody waits for an engine that loads at the server's start, or again after a failure: it says so itself.

        Args:
            background: nobody waits for what it is asked for: a model that an administrator unloaded is not loaded again for it.

        Raises:
            Loading: it takes longer than a request waits.
            Overloaded: not now: it is being unloaded, the server shuts down, or the memory does not suffice.
            EngineFailed: it cannot be loaded.
        """
        return await self._ready(entry, background, asyncio.get_running_loop().time() + self._patience)

    async def _ready(self, entry: Entry, background: bool, until: float) -> Backend:
        """See ``ready``; waiting for what is freed, and then for what loads, is one patience."""
        if (change := self._changes.get(entry.name)) is not None and change.done():
            await asyncio.sleep(0)  # its callback, which takes it away, is due
        if self.draining:
            raise _later(entry, CLOSING)
        if entry.phase is Phase.UNLOADING:
            await self._freed(entry, until)
            return await self._ready(entry, background, until)
        if entry.phase is Phase.UNLOADED and entry.name not in self._changes:
            if entry.put_away and background:
                raise Overloaded(f"The model {entry.name} was unloaded by an administrator.", RETRY_S)
            self._change(entry, self._load(entry, background))
        if (loading := self._changes.get(entry.name)) is not None:
            await _loaded(entry, loading, until)
        if entry.backend is None:  # loaded, and gone again
            raise Overloaded(f"The model {entry.name} was unloaded; try again later.")
        return entry.backend

    async def _freed(self, entry: Entry, until: float) -> None:
        """Wait until a model that was idle is freed: who comes now has it loaded again, as who comes a moment later.

        Raises:
            Overloaded: an administrator unloads it, or it takes too long.
        """
        freeing = None if entry.put_away else self._changes.get(entry.name)
        if freeing is not None:
            with entry.released():  # or else the freeing would wait for this request too
                await _wait(freeing, until)
        if freeing is None or not freeing.done():
            raise _later(entry, f"The model {entry.name} is being unloaded; try again later.")

    async def unload(self, entry: Entry) -> None:
        """Free a model's memory, for an administrator; what runs on it may end before. It is loaded again when somebody asks for it.

        Raises:
            BadRequest: it is pinned.
            Overloaded: it is being loaded or unloaded.
        """
        if entry.model.pinned:
            raise BadRequest("model", "is pinned: it stays loaded", shorten(entry.name))
        if entry.name in self._changes or entry.health().state is State.LOADING:
            raise Overloaded(f"The model {entry.name} is being loaded or unloaded; try again later.")
        entry.put_away = True
        if entry.backend is not None:
            await asyncio.shield(self._unload(entry))

    def first_with_loras(self) -> Entry:
        """The first model that takes adapters, or else the first."""
        entries = [*self.entries.values()]
        return next((entry for entry in entries if entry.model.loras is not None), entries[0])

    def loras(self, entry: Entry) -> LoraConfig:
        """Which adapters a model takes.

        Raises:
            BadRequest: none.
        """
        if entry.model.loras is None:
            rule = "must be a model that takes LoRA adapters: --engine vllm, with --max-loras"
            raise BadRequest("base_model_name", rule, shorten(entry.name))
        return entry.model.loras

    @contextlib.contextmanager
    def adding(self, entry: Entry, name: str, path: str, digest: str) -> Iterator[Lora]:
        """An adapter that is to be tried; if nothing raises, requests may name it then.

        Raises:
            BadRequest: the model takes none, or no more, or the name is taken or none.
        """
        self._require_new(name, entry)
        with self.adapters.coming(name, entry.name, path, digest, self.loras(entry).most) as lora:
            yield lora
            self.names = self._require_new(name, entry)

    def remove(self, name: str) -> None:
        """An adapter has no name any more; what runs with it goes on.

        Raises:
            ModelNotFound: there is none of this name.
        """
        if name not in self.adapters.named:
            raise ModelNotFound(f"There is no LoRA adapter {shorten(name)} here.", "lora_name")
        self.adapters.leave(name)
        self.names = self.names.without(name)

    def _require_new(self, name: str, entry: Entry) -> Names:
        if name in self.names.exact:
            raise BadRequest("lora_name", "is taken", shorten(name))
        try:
            return self.names.adding(name, entry.name)
        except ModelError as error:
            raise BadRequest("lora_name", f"cannot be: {error}".rstrip("."), shorten(name)) from None

    def drain(self) -> None:
        """Take no new work anywhere, and finish what there is; ``live`` tells when that is done."""
        self.draining = True
        for entry in self.entries.values():
            if entry.backend is not None:
                entry.backend.drain()

    async def close(self) -> None:
        """End all work and free everything. Idempotent."""
        self.draining = True
        tasks = [*self._changes.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(entry.close() for entry in self.entries.values()), self.guides.close())
        self._images.close()

    def _change(self, entry: Entry, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Load or unload: one at a time for each model, to the end even if nobody waits for it any more."""
        task = self._changes[entry.name] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed(entry, task))
        return task

    def _changed(self, entry: Entry, task: asyncio.Task[None]) -> None:
        del self._changes[entry.name]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: %s", entry.name, error.__cause__ or error)
        else:
            _log.info("%s is %s", entry.name, entry.status)

    def _unload(self, entry: Entry) -> asyncio.Task[None]:
        entry.drain()
        return self._change(entry, entry.unload(DRAIN_S))

    async def _load(self, entry: Entry, background: bool) -> None:
        """Load a model, once what is in its way is unloaded."""
        async with self._making_room:  # whoever is next sees this one loading
            await asyncio.gather(*(self._unload(victim) for victim in self._in_the_way(entry, background)))
        if self.draining:
            raise Overloaded(CLOSING)
        await entry.load()

    def _in_the_way(self, entry: Entry, background: bool) -> list[Entry]:
        """What must be unloaded, longest idle first, so that a model fits the memory; nothing if it cannot.

        For somebody who waits that is also what only works for nobody, as a batch does for hours.

        Raises:
            Overloaded: not even then does it fit.
        """
        if self._free is None:
            return []
        others = self.entries.values()
        # What is still being loaded is not yet seen in what is free.
        loading = [other.model for other in others if other.health().state is State.LOADING]
        left = self._free() - sum(model.kv if model.mapped else model.weights + model.kv for model in loading)
        # A file's memory is seen as free, and yet those that run need it.
        mapped = [other.model for other in others if other.phase is not Phase.UNLOADED and other.model.mapped]
        free = left - sum(model.weights for model in mapped)
        may_go = sorted((other for other in others if self._may_go(other, background)), key=lambda other: (other.users, other.used))
        need = entry.model.weights + entry.model.kv
        victims = first_enough(need - free, [(other, other.model.weights) for other in may_go])
        if victims is not None:
            return victims
        if entry.model.mapped and entry.model.kv <= left:
            return may_go
        most = max(0, free) + sum(other.model.weights for other in may_go)
        raise Overloaded(f"The model {entry.name} needs {need / MB:.0f} MB of memory, and {most / MB:.0f} MB can be had.", RETRY_S)

    def _may_go(self, entry: Entry, background: bool) -> bool:
        """Whether a model may be unloaded for another's sake; one that works only in the background, for somebody who waits alone."""
        comes_again = entry.model.lazy or bool(self._idle)
        return comes_again and entry.name not in self._changes and (entry.idle or (entry.spare and not background))

    async def _free_idle(self) -> None:
        """Unload what is idle for long enough, until cancelled."""
        while True:
            now = self._clock()
            # What becomes idle from now on is due after ``self._idle`` at the earliest.
            next_due_s = self._idle
            for entry in self.entries.values():
                if entry.idle and entry.name not in self._changes:
                    due_s = entry.used + self._idle - now
                    if due_s <= 0:
                        self._unload(entry)
                    next_due_s = min(next_due_s, due_s)
            await asyncio.sleep(max(POLL_S, next_due_s))


async def _wait(change: asyncio.Task[None], until: float) -> None:
    """Wait for the end of a change, which goes on in any case, but not beyond a time of the event loop's."""
    await asyncio.wait((change,), timeout=until - asyncio.get_running_loop().time())


async def _loaded(entry: Entry, loading: asyncio.Task[None], until: float) -> None:
    """Wait until a model is loaded.

    Raises:
        Loading: that takes too long.
        Overloaded, EngineFailed: it is not going to be.
    """
    await _wait(loading, until)
    if not loading.done():
        health = entry.health()
        raise Loading(f"The model {entry.name} is still loading ({health.progress:.0%}).", health.retry_after)
    if loading.cancelled():
        raise Overloaded(CLOSING)
    loading.result()


def _later(entry: Entry, message: str) -> Overloaded:
    """A refusal that tells when the engine's work may be done, and another be there."""
    return Overloaded(message, max(1.0, entry.health().retry_after))


def first_enough(lacking: float, sizes: Iterable[tuple[T, float]]) -> list[T] | None:
    """The first things whose sizes add up to ``lacking``; ``None`` = all together do not."""
    taken: list[T] = []
    for thing, size in sizes:
        if lacking <= 0:
            break
        taken.append(thing)
        lacking -= size
    return taken if lacking <= 0 else None
