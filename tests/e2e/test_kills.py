"""The engine's process killed, crashed and stopped under load. ``make test-kills`` does it 300 times."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.e2e.storm import CONFIG, PATIENCE_S, SIGNALS, STALL_S, Load, answer, engine, holdings, hurt, ready, spec, stepped, told
from tests.e2e.test_memory_pressure import metric
from tests.e2e.test_serve_command import served
from tests.e2e.test_serve_process import engine_of, gone
from tests.support.bundled import bundled_path
from tests.support.preparing import prepare
from tests.support.waiting import until

from quintet.backends.base import State
from quintet.backends.native.front.in_flight import INTERRUPTED, REFUSED
from quintet.backends.native.front.restarts import pause
from quintet.backends.native.front.soundness import UNSOUND_AT
from quintet.backends.native.schedule.emit import NUMERICAL
from quintet.events import Finish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaths are many here, and the pauses that follow upon many are for ``test_in_flight``."""
    monkeypatch.setattr("quintet.backends.native.front.supervisor.pause", lambda failures, _: pause(failures))


KILLS = int(os.environ.get("QUINTET_TEST_KILLS", "10"))


@pytest.mark.fault("C01", "C03", "D05")
def test_a_storm_of_kills_loses_no_request_that_waits_and_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Every client gets an end, the same request gives the same bytes, and nothing leaks."""
    rng = random.Random(1)

    async def scenario(kills: int) -> tuple[list[float], Load]:
        async with engine() as (made, link):
            expected = told(await answer(made, spec("the same", 12, 3)))
            load = Load(made, 24, rng)
            times = []
            for index in range(kills):
                await stepped(made, rng.randrange(100))
                before = made.health().counts
                times.append(await hurt(made, link, SIGNALS[index % len(SIGNALS)]))
                after = made.health().counts
                assert all(one <= other for one, other in zip(before, after, strict=True)), "counts do not go back"
            await load.end()
            assert told(await answer(made, spec("the same", 12, 3))) == expected
            health = made.health()
            assert (health.state, health.running, health.waiting, made.live) == (State.READY, 0, 0, 0)
        return times, load

    asyncio.run(scenario(2))  # what is made once, such as the pool of threads
    before = holdings()
    times, load = asyncio.run(scenario(KILLS))
    assert holdings() == before
    with capsys.disabled():
        print(f" {KILLS} kills, ready after at most {max(times):.2f} s, requests {dict(load.seen)}", end="")
    assert load.seen["ok"] > 0
    assert load.lost == []
    assert load.seen["suspected"] <= max(1, KILLS // 100), "who asks twice in a row when it is hit is rare"


@pytest.mark.fault("C01")
def test_what_had_begun_breaks_off_and_what_waits_is_run_again() -> None:
    async def scenario() -> None:
        async with engine() as (made, link):
            alone = told(await answer(made, spec("late", 5)))
            running = [made.submit(await prepare(made, [spec(f"{index}", 4000)])) for index in range(CONFIG.max_running)]
            for stream in running:
                await anext(stream)
            assert link.pid is not None
            os.kill(link.pid, signal.SIGSTOP)
            waiting = made.submit(await prepare(made, [spec("late", 5)]))
            await hurt(made, link, signal.SIGKILL)
            ends = [[event async for batch in stream for event in batch][-1] for stream in running]
            assert {(end.finish, end.error) for end in ends} <= {(Finish.ERROR, INTERRUPTED), (Finish.EOS, "")}
            assert any(end.finish is Finish.ERROR for end in ends)
            assert told([event async for batch in waiting for event in batch]) == alone

    asyncio.run(scenario())


@pytest.mark.fault("C01")
def test_an_answer_in_one_piece_is_the_same_to_the_bit_though_the_engine_died_in_the_middle_of_it() -> None:
    asked = [replace(spec(f"whole {index}", 2000), logprobs=2, echo=True) for index in range(3)]

    async def scenario() -> None:
        async with engine() as (made, link):
            alone = [told(await answer(made, one)) for one in asked]
            requests = [replace(await prepare(made, [one]), shown=False) for one in asked]
            streams = [made.submit(request) for request in requests]
            before = [list(await anext(stream)) for stream in streams]
            assert made.live == len(asked), "none has ended"
            await hurt(made, link, signal.SIGKILL)
            rest = [[event async for batch in stream for event in batch] for stream in streams]
            assert [told(first + others) for first, others in zip(before, rest, strict=True)] == alone

    asyncio.run(scenario())


DEADLY = """
import os, signal
from quintet.backends import toy
from quintet.backends.native.worker import child
from quintet.backends.native.core.loader import Loaded
class Deadly(toy.ToyRunner):
    def forward(self, batch, meanwhile=None):
        if (batch.tokens == ord("Z")).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(batch, meanwhile)
child.main(lambda source, table: lambda progress: Loaded(Deadly(), table(), "toy", "fp"))
"""


@pytest.mark.fault("C10")
def test_a_request_that_kills_the_engine_twice_is_refused_from_then_on_and_hurts_nobody_else() -> None:
    async def scenario() -> None:
        async with engine(("-c", DEADLY)) as (made, _):
            others = [asyncio.create_task(answer(made, spec(f"other {index}", 3))) for index in range(20)]
            (end,) = await answer(made, spec("a Z", 3, seed=1))
            assert (end.finish, end.error) == (Finish.ERROR, REFUSED)
            for each in others:
                assert (await each)[-1].error in ("", REFUSED, INTERRUPTED)
            while made.health().state is not State.READY:
                await asyncio.sleep(0.01)
            before = made.health().counts.steps
            (end,) = await answer(made, spec("a Z", 3, seed=2))
            assert (end.finish, end.error) == (Finish.ERROR, REFUSED)
            assert made.health().counts.steps == before
            assert (await answer(made, spec("other 0", 3)))[-1].finish is not Finish.ERROR

    asyncio.run(scenario())


@pytest.mark.fault("C10")
def test_what_killed_an_engine_that_did_nothing_else_is_refused_to_other_keys_too() -> None:
    async def scenario() -> None:
        async with engine(("-c", DEADLY)) as (made, _):
            assert (await answer(made, spec("a Z", 3, seed=1)))[-1].error == REFUSED
            await ready(made)
            before = made.health().counts.steps
            theirs = await prepare(made, [spec("a Z", 3, seed=2)])
            theirs = replace(theirs, tenant="another", sequences=tuple(replace(one, salt=b"another's") for one in theirs.sequences))
            (end,) = [event async for batch in made.submit(theirs) for event in batch]
            assert (end.finish, end.error, made.health().counts.steps) == (Finish.ERROR, REFUSED, before)
            assert (made.health().incidents.crashed, made.health().incidents.quarantined) == (2, 2)

    asyncio.run(scenario())


@pytest.mark.fault("D12")
def test_an_engine_that_dies_at_every_start_counts_as_dead_and_is_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.backends.native.front.supervisor.pause", lambda failures, _: 0.0 if failures < 4 else 0.2)

    async def scenario() -> None:
        async with engine() as (made, link):
            link._module = ("-c", "raise SystemExit(3)")
            work = made.submit(await prepare(made, [spec("x", 4000)]))
            await anext(work)
            pid = link.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while made.health().state is not State.DEAD:
                await asyncio.sleep(0.01)
            link._module = ("-P", "-m", "quintet.backends.native.worker.child")
            while made.health().state is not State.READY:
                await asyncio.sleep(0.01)
            assert (await answer(made, spec("x", 2)))[-1].finish is not Finish.ERROR

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.fault("E08")
def test_a_thousand_cancels_at_random_moments_leave_nothing_running() -> None:
    rng = random.Random(2)

    async def scenario() -> None:
        async with engine() as (made, _):
            expected = told(await answer(made, spec("the same", 12, 3)))

            async def cancelled(index: int) -> None:
                prepared = await prepare(made, [spec(f"{index}", 300), spec(f"{index}b", 300)])
                stream = made.submit(prepared)
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))
                made.abort(prepared.request_id, rng.choice((None, 0)))
                await asyncio.sleep(rng.choice((0, 0.001)))
                made.abort(prepared.request_id)
                events = [event async for batch in stream for event in batch]
                assert sum(event.finish is not None for event in events) == 2

            for first in range(0, 1000, 100):
                await asyncio.gather(*(cancelled(first + index) for index in range(100)))
            health = made.health()
            assert (made.live, health.running, health.waiting, health.pages.used) == (0, 0, 0, 0)
            assert told(await answer(made, spec("the same", 12, 3))) == expected

    asyncio.run(scenario())


@pytest.mark.fault("C03")
def test_an_idle_engine_that_stands_still_is_noticed_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    states = list[State]()

    async def scenario() -> None:
        async with engine() as (made, link):
            kill = link.kill

            def noted() -> None:
                states.append(made.health().state)  # as it was told until then; to look now and then may miss it
                kill()

            monkeypatch.setattr(link, "kill", noted)
            await asyncio.sleep(2 * STALL_S)
            first = link.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            while link.pid == first:
                await asyncio.sleep(0.001)
            assert State.STALLED in states
            await ready(made)
            assert (made.health().incidents.hung, made.health().incidents.crashed) == (1, 0)
            assert (await answer(made, spec("x", 2)))[-1].finish is not Finish.ERROR

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.fault("D04")
def test_the_engine_ends_with_a_parent_that_is_killed() -> None:
    """Killed by the kernel with its parent, idle or in the middle of a step."""
    code = """
import asyncio, sys
from tests.e2e.storm import engine, spec
from tests.support.preparing import prepare
async def main():
    async with engine() as (made, link):
        work = made.submit(await prepare(made, [spec("x", 4000)])) if sys.argv[1] == "busy" else None
        print(link.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    for how in ("idle", "busy"):
        with subprocess.Popen([sys.executable, "-c", code, how], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            os.kill(child, 0)
            parent.kill()
        assert gone(child), "an orphan"


BROKEN = """
import numpy as np
from quintet.backends import toy
from quintet.backends.native.worker import child
from quintet.backends.native.core.loader import Loaded
class Broken(toy.ToyRunner):
    broken = {always}
    def forward(self, batch, meanwhile=None):
        self.broken |= bool((batch.tokens == ord("Z")).any())
        return super().forward(batch, meanwhile)
    def logits(self, rows):
        logits = super().logits(rows)
        return np.full_like(logits, np.nan) if self.broken else logits
child.main(lambda source, table: lambda progress: Loaded(Broken(), table(), "toy", "fp"))
"""
"""Its memory is broken from some moment on, and whole in the next process; or it never is."""


@pytest.mark.fault("C09")
def test_an_engine_whose_memory_broke_is_started_again_and_answers_as_before() -> None:
    async def scenario() -> None:
        async with engine(("-c", BROKEN.format(always=False))) as (made, link):
            expected, first = told(await answer(made, spec("the same", 5))), link.pid
            for prompt in ("a Z", "b", "b", "c", "the same"):
                (end,) = await answer(made, spec(prompt, 5))
                assert (end.finish, end.error) == (Finish.ERROR, NUMERICAL)
            await ready(made)
            assert told(await answer(made, spec("the same", 5))) == expected
            assert (link.pid != first, made.health().state, made.health().incidents.unsound) == (True, State.READY, 1)

    asyncio.run(scenario())


@pytest.mark.fault("C09")
def test_an_engine_whose_every_start_is_broken_is_reported_and_started_again_no_more() -> None:
    async def scenario() -> None:
        async with engine(("-c", BROKEN.format(always=True))) as (made, link):
            for prompt in range(UNSOUND_AT):
                await answer(made, spec(f"{prompt}"))
            await ready(made)
            second = link.pid
            for prompt in range(2 * UNSOUND_AT):
                await answer(made, spec(f"{prompt}"))
            assert (link.pid, made.health().state, made.health().incidents.unsound) == (second, State.UNSOUND, 1)

    asyncio.run(scenario())


@pytest.mark.fault("C01")
def test_over_http_an_answer_in_one_piece_has_its_bytes_and_counts_though_the_engine_was_killed_in_the_middle_of_it() -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0.8, "seed": 3, "n": 2, "logprobs": 1, "ignore_eos": True}
    with served(str(bundled_path()), "--log-level", "error") as one, ThreadPoolExecutor() as pool:
        alone = json.loads(one.post(body)[1])
        goal = metric(one, "quintet:engine_steps_total") + 100
        asked = pool.submit(one.post, body)
        until(lambda: metric(one, "quintet:engine_steps_total") >= goal)
        os.kill(engine_of(one), signal.SIGKILL)
        assert not asked.done()
        again = json.loads(asked.result()[1])
    assert again["choices"] == alone["choices"]
    assert again["usage"]["total_tokens"] == alone["usage"]["total_tokens"] == 4 + 600
