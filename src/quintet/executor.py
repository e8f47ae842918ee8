"""Work that would hold the event loop up, in a thread: one piece at a time, and tenants take turns.

One at a time, because threads share the interpreter: with each that computes, the event loop waits longer for its turn. Tenants in turn,
because one who sends a hundred long texts must not keep another's waiting for all of them. The thread is its own: those of the event loop,
of which there are few, wait for the disk, and where that does not answer no text would be read either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quintet.errors import Overloaded
from quintet.turns import Turns

T = TypeVar("T")


class FairExecutor:
    """Runs functions in a thread, for whoever awaits them. Used on one event loop."""

    def __init__(self) -> None:
        self._turns = Turns(1)

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Whoever is cancelled while it waits does not have it run.

        Raises:
            Overloaded: there is no thread to be had.
        """
        await self._turns.acquire(tenant)
        thread = ThreadPoolExecutor(1, "computing")  # made in a tenth of a millisecond; one that stayed would have to be ended by somebody
        try:
            running = asyncio.get_running_loop().run_in_executor(thread, work)
        except RuntimeError:  # "can't start new thread": there is no memory for it, or as many run as may
            self._turns.release()
            raise Overloaded("The server can start no thread now; try again later.") from None
        thread.shutdown(wait=False)  # when it is done
        running.add_done_callback(lambda _: self._turns.release())  # a thread cannot be called off: the turn lasts until it is done
        try:
            return await asyncio.shield(running)
        finally:
            del running  # it has the exception, whose traceback has this frame: what a refused request has would wait for a collection
