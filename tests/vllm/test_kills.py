"""vLLM's own processes killed under load: nothing hangs, and what had delivered nothing is answered."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from tests.e2e import storm
from tests.e2e.storm import Load
from tests.vllm.engine import CONFIG, START_S, link_to, until_ready
from tests.vllm.models import folder

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine

KILLS = int(os.environ.get("QUINTET_TEST_VLLM_KILLS", "2"))
STALL_S = 30.0
"""On a machine that is busy with the test itself."""


def descendants(pid: int) -> list[int]:
    """Processes that a process and its own started, the youngest last."""
    found = []
    for child in [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text(encoding="utf-8").split()]:
        found += [child, *descendants(child)]
    return found


def core_of(pid: int) -> list[int]:
    """vLLM's engine core and its workers, of a child of ours."""
    names = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in descendants(pid)}
    return [one for one, name in names.items() if b"VLLM" in name or b"spawn_main" in name]


def test_kills_of_vllms_engine_core_lose_nothing_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.backends.native.front.supervisor.pause", lambda failures, _: 0.0)
    monkeypatch.setattr(storm, "PATIENCE_S", START_S)
    rng = random.Random(1)

    async def scenario() -> tuple[Load, list[int]]:
        link = link_to(folder("llama"))
        made = Engine(link, CONFIG, stall_s=STALL_S)
        started: list[int] = []
        try:
            await until_ready(made)
            load = Load(made, 12, rng)
            for kill in range(KILLS):
                await asyncio.sleep(rng.uniform(0.5, 3.0))
                assert link.pid is not None
                child, processes = link.pid, core_of(link.pid)
                started += [child, *processes]
                assert processes
                victim = processes[kill % len(processes)]
                os.kill(victim, signal.SIGSTOP if kill % 5 == 4 else signal.SIGKILL)
                async with asyncio.timeout(START_S):
                    while link.pid == child:
                        await asyncio.sleep(0.01)
                assert made.health().state is not State.READY
                await until_ready(made)
            started += [link.pid, *core_of(link.pid)] if link.pid else []
            await load.end()
            health = made.health()
            assert (health.state, made.live) == (State.READY, 0)
            assert health.incidents.crashed + health.incidents.hung == KILLS
        finally:
            await made.close()
        return load, started

    load, started = asyncio.run(scenario())
    assert load.seen["ok"] > 0
    assert load.lost == []
    assert [pid for pid in started if alive(pid)] == [], "nothing of any life is left"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
