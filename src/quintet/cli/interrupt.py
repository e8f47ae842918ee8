"""Ctrl-C and SIGTERM as an event of the loop, not an exception anywhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def on_interrupt() -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets from now on, for the running loop."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work``; when ``event`` comes first, cancel it. Whether it was finished; its exceptions pass through."""
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
