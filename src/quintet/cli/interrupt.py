"""Ctrl-C and SIGTERM as an event of the loop, not an exception anywhere."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from quintet.cli.console import write_error
from quintet.errors import QuintetError


def on_interrupt() -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets from now on, for the running loop."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def on_stop() -> tuple[asyncio.Event, asyncio.Event]:
    """Two events for the running loop: to stop, and to stop at once.

    SIGTERM sets the first; SIGINT, or a second signal of either kind, both.
    """
    stop, at_once = asyncio.Event(), asyncio.Event()

    def heard(number: signal.Signals) -> None:
        if stop.is_set() or number is signal.SIGINT:
            at_once.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    return stop, at_once


def on_renewal(reload: Callable[[], None], stop: asyncio.Event) -> asyncio.Event:
    """An event of the running loop that SIGUSR2 sets: another process is to take over.

    SIGHUP calls ``reload``; but where it tells that the terminal was closed from which this process was started, it sets ``stop``.
    """
    renew = asyncio.Event()
    terminal = os.isatty(0)

    def hung_up() -> None:
        if terminal and not os.isatty(0):
            stop.set()
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, renew.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
    return renew


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


async def end_within(seconds: float, code: int, *work: Awaitable[None]) -> None:
    """Wait for the clean-up ``work``; when it takes longer, end the process at once with exit code ``code``.

    Where an error led to the clean-up, it is told then, and the exit code is 1: nobody else would be left to.

    A step of the engine cannot be interrupted, and one on a large model may take longer than anybody waits after Ctrl-C. By then every
    answer has ended, and a process without files of its own to finish loses nothing.
    """
    error = sys.exception()
    rest = asyncio.gather(*work)
    done, _ = await asyncio.wait((rest,), timeout=seconds)
    if not done:
        sys.stdout.flush()
        if isinstance(error, QuintetError):
            write_error(error)
            code = 1
        os._exit(code)
    rest.result()
