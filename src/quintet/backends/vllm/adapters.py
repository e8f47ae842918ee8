"""Which LoRA adapters vLLM has.

It would read one that it lacks in the middle of a step, and end with all requests if that fails. So each is there, with its place, before
a sequence may enter that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from quintet.inputs.sequence import Adapter


class Core(Protocol):
    """``VllmCore``, as far as it is needed here."""

    async def adapt(self, adapter: Adapter) -> None:
        """See ``VllmCore``."""
        ...

    async def forget(self, adapter: int) -> None:
        """See ``VllmCore``."""
        ...


class Adapters:
    """Used on one event loop.

    Args:
        most: that vLLM has places for; whoever names adapters never has more of them in use.
        clock: seconds.
    """

    def __init__(self, core: Core, most: int, clock: Callable[[], float]) -> None:
        self._core, self._most, self._clock = core, most, clock
        self._loaded: dict[int, None] = {}  # the one used longest ago first
        self._users: Counter[int] = Counter()
        self._changing = asyncio.Lock()
        self._since: float | None = None

    @property
    def since(self) -> float | None:
        """When the one whose turn it is began to be loaded, also where nobody waits for it any more; ``None`` = none is."""
        return self._since

    @contextlib.asynccontextmanager
    async def held(self, adapter: Adapter | None) -> AsyncIterator[None]:
        """As long as a sequence needs it, which is loaded before; another that nobody uses may have to go.

        Raises:
            RejectedError, CoreDeadError: see ``VllmCore.adapt``.
        """
        if adapter is None:
            yield
            return
        self._users[adapter.id] += 1
        try:
            await asyncio.shield(asyncio.ensure_future(self._load(adapter)))  # to the end, so that it is known whether it is there
            yield
        finally:
            self._users[adapter.id] -= 1

    async def _load(self, adapter: Adapter) -> None:
        async with self._changing:
            self._since = self._clock()
            try:
                if adapter.id in self._loaded:
                    del self._loaded[adapter.id]
                else:
                    await self._make_room()
                    await self._core.adapt(adapter)
                self._loaded[adapter.id] = None
            finally:
                self._since = None

    async def _make_room(self) -> None:
        while len(self._loaded) >= self._most:
            idle = next((adapter for adapter in self._loaded if not self._users[adapter]), None)
            if idle is None:
                return
            await self._core.forget(idle)
            del self._loaded[idle], self._users[idle]
