"""Work that Ctrl-C ends, and the clean-up after it, which nobody waits for without end."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from quintet.cli.interrupt import unless
from quintet.errors import EngineFailed


def ended(code: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a program."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_work_is_finished_or_cancelled_when_the_event_comes_first() -> None:
    async def scenario() -> tuple[bool, bool, list[str]]:
        event, log = asyncio.Event(), list[str]()

        async def quick() -> None:
            log.append("quick")

        async def slow() -> None:
            try:
                event.set()
                await asyncio.sleep(3600)
            finally:
                log.append("cleaned up")

        return await unless(event, quick()), await unless(event, slow()), [*log]  # as it is by then

    assert asyncio.run(scenario()) == (True, False, ["quick", "cleaned up"])


def test_an_error_of_the_work_passes_through() -> None:
    async def broken() -> None:
        raise EngineFailed("broken")

    async def scenario() -> None:
        await unless(asyncio.Event(), broken())

    with pytest.raises(EngineFailed):
        asyncio.run(scenario())


def test_a_clean_up_that_hangs_ends_the_process_with_its_code() -> None:
    code = (
        "import asyncio, threading\n"
        "from quintet.cli.interrupt import end_within\n"
        "async def hang(): await asyncio.to_thread(threading.Event().wait)\n"
        "async def main(): print('flushed'); await end_within(0.05, 7, hang())\n"
        "asyncio.run(main())\n"
    )
    assert ended(code) == (7, "flushed\n", "")


def test_a_clean_up_that_hangs_hides_no_error_that_led_to_it() -> None:
    code = (
        "import asyncio, threading\n"
        "from quintet.cli.interrupt import end_within\n"
        "from quintet.errors import ModelError\n"
        "async def hang(): await asyncio.to_thread(threading.Event().wait)\n"
        "async def clean_up(): await asyncio.sleep(0); await end_within(0.05, 0, hang())\n"
        "async def main():\n"
        "    try: await asyncio.sleep(0); raise ModelError('no such\\nfile.')\n"
        "    finally: await clean_up()\n"
        "asyncio.run(main())\n"
    )
    assert ended(code) == (1, "", "error: no such\\nfile.\n")
