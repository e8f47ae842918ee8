"""Several replicas as one engine: shared prefixes, deaths, growth and shrinkage, with real workers."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
from tests.deploy.replicas import CONFIG, Hosts, collect, kill, pool, spec, until, workers
from tests.e2e.test_kills import DEADLY
from tests.support.preparing import prepare

from quintet.backends.base import Health, Pages, State
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.in_flight import INTERRUPTED, REFUSED
from quintet.backends.native.front.restarts import Records
from quintet.cli.loading import ready
from quintet.deploy.pool import Pool
from quintet.deploy.routing import Router
from quintet.deploy.scaling import Scaler, Sizing
from quintet.errors import EngineFailed, Loading
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PREFIXES = [f"{number} " + "of one beginning " * 6 for number in range(10)]


def test_requests_that_share_pages_find_them() -> None:
    """200 requests over 10 prefixes; one replica that saw all would find all full pages of a prefix but the first time."""

    async def scenario() -> None:
        async with pool(Hosts(), Sizing(2, 2)) as both:
            asked = [spec(f"{PREFIXES[number % 10]}{number}", 2) for number in range(200)]
            for begin in range(0, 200, 8):
                await asyncio.gather(*(collect(both, one) for one in asked[begin : begin + 8]))
            best = sum(len(PREFIXES[number % 10]) // 16 * 16 for number in range(10, 200))
            assert both.health().counts.found >= 0.85 * best
            done = [one.engine.health().counts.tokens for one in both.replicas]
            assert min(done) > 0.15 * sum(done)  # and not by sending all to one

    asyncio.run(scenario())


@pytest.mark.fault("E14")
def test_a_death_breaks_off_what_was_delivered_and_loses_nothing_else() -> None:
    async def scenario() -> None:
        before = {*workers()}
        async with pool(Hosts(), Sizing(2, 2)) as both:
            streams = [asyncio.create_task(collect(both, spec(f"{number}", 600, number))) for number in range(60)]
            await until(lambda: both.health().running == 16)
            victim = sorted({*workers()} - before)[0]
            kill(victim)
            ends = Counter(events[-1].finish for events in await asyncio.gather(*streams))
            assert ends[Finish.LENGTH] + ends[Finish.ERROR] == 60
            assert 1 <= ends[Finish.ERROR] <= 8
            assert both.health().incidents.crashed == 1
            await until(lambda: all(one.state is State.READY for one in both.replicas))

    asyncio.run(scenario())


@pytest.mark.fault("E14")
def test_what_a_replica_had_not_begun_is_done_by_the_others_though_it_never_comes_back() -> None:
    async def scenario() -> None:
        before, hosts = {*workers()}, Hosts()
        async with pool(hosts, Sizing(2, 2)) as both:
            streams = [asyncio.create_task(collect(both, spec(f"{number}", 300, number))) for number in range(60)]
            await until(lambda: both.health().running == 16)
            hosts.lost = True
            kill(sorted({*workers()} - before)[0])
            ends = Counter(events[-1].finish for events in await asyncio.wait_for(asyncio.gather(*streams), 60))
            assert ends[Finish.LENGTH] >= 52
            assert both.health().state is State.READY

    asyncio.run(scenario())


@pytest.mark.fault("E14")
def test_a_replica_that_stands_still_is_ended_where_it_runs_and_started_again_and_what_it_had_not_begun_is_done() -> None:
    """Its connection stays open; nothing but its steps tells that they do not come."""

    async def scenario() -> None:
        before = {*workers()}
        async with pool(Hosts(stall_s=3.0), Sizing(2, 2)) as both:
            streams = [asyncio.create_task(collect(both, spec(f"{number}", 300, number))) for number in range(60)]
            await until(lambda: both.health().running == 16)
            victim = sorted({*workers()} - before)[0]
            os.kill(victim, signal.SIGSTOP)
            ends = Counter((events[-1].finish, events[-1].error) for events in await asyncio.gather(*streams))
            assert ends.keys() == {(Finish.LENGTH, ""), (Finish.ERROR, INTERRUPTED)}
            assert both.health().incidents.hung >= 1, "on a busy machine the other one may seem to stand still too"
            await until(lambda: all(one.state is State.READY for one in both.replicas))
            assert victim not in workers()

    asyncio.run(scenario())


@pytest.mark.fault("C10", "E14")
def test_what_has_killed_one_replica_twice_is_refused_by_the_others_too() -> None:
    """Each had a record of its own: a client that tried again while the first was busy, or being started, cost the second two deaths."""

    async def scenario() -> None:
        async with pool(Hosts(module=("-c", DEADLY)), Sizing(2, 2)) as both:
            first, second = (one.engine for one in both.replicas)
            assert (await collect(both, spec("a Z")))[-1].error == REFUSED
            assert (first.health().incidents.crashed, second.health().incidents.crashed) == (2, 0)
            await until(lambda: first.state is State.READY)
            busy = both.submit(await prepare(both, [spec("busy", 4000)]))
            await anext(busy)
            assert first.live == 1, "the other one is asked next"
            (end,) = await collect(both, spec("a Z", seed=1))
            assert (end.finish, end.error) == (Finish.ERROR, REFUSED)
            assert second.health().incidents.crashed == 0
            assert second.health().counts.steps == 0

    asyncio.run(scenario())


def test_it_grows_while_work_waits_and_shrinks_again_and_loses_nothing() -> None:
    async def scenario() -> None:
        hosts, most = Hosts(), 0
        async with pool(hosts, Sizing(1, 3, up_after=0.2, down_after=0.3)) as some:
            streams: list[asyncio.Task[list[TokenEvent]]] = []
            while len(some.replicas) < 3 or any(one.state is not State.READY for one in some.replicas):
                if sum(not task.done() for task in streams) < 60:  # work waits for as long as a replica may take to come
                    number = len(streams)
                    streams.append(asyncio.create_task(collect(some, spec(f"{number}", 600, number))))
                await asyncio.sleep(0.001)
            more = [asyncio.create_task(collect(some, spec(f"more {number}", 500, number))) for number in range(60)]
            while not all(task.done() for task in (*streams, *more)):
                most = max(most, len(some.replicas))
                await asyncio.sleep(0.01)
            assert most == 3
            assert {(await task)[-1].finish for task in (*streams, *more)} == {Finish.LENGTH}
            long = [asyncio.create_task(collect(some, spec(f"{number}", 3000, number))) for number in range(3)]
            await until(lambda: len(some.replicas) == 1)
            assert {(await task)[-1].finish for task in long} == {Finish.LENGTH}
            await until(lambda: len(hosts.released) == 2)
            generated = len(streams) * 600 + 60 * 500 + 3 * 3000
            assert some.health().counts.tokens >= generated  # also by those that have gone

    asyncio.run(scenario())


def test_a_request_is_called_off_wherever_it_is() -> None:
    async def scenario() -> None:
        async with pool(Hosts(), Sizing(2, 2)) as both:
            prepared = [await prepare(both, [spec(f"{number}", 3000)]) for number in range(4)]
            streams = [both.submit(one) for one in prepared]
            assert {one.engine.live for one in both.replicas} == {2}
            for one in prepared:
                both.abort(one.request_id)
            for stream in streams:
                assert [event async for batch in stream for event in batch][-1].finish is Finish.ABORT
            assert both.live == 0

    asyncio.run(scenario())


class Other(Engine):
    """Of another model; loaded when it is let."""

    let = False

    @property
    def capabilities(self) -> Capabilities:
        if not self.let:
            raise Loading("The model is still loading.")
        return replace(super().capabilities, fingerprint="fp_other")

    @property
    def state(self) -> State:
        return super().state if self.let else State.LOADING

    def health(self) -> Health:
        return replace(super().health(), state=self.state)


def test_a_replica_with_another_model_is_not_used_and_goes() -> None:
    async def scenario() -> None:
        hosts = Hosts()
        others: list[Other] = []

        def make(records: Records) -> Engine:
            engine = hosts.make(records)
            if len(hosts.hosts) == 2:
                engine.__class__ = Other
                others.append(cast("Other", engine))
            return engine

        some = Pool(make, CONFIG, Sizing(2, 2))
        await until(lambda: some.health().state is State.READY)
        others[0].let = True  # not before the first is ready: that one's model is the pool's
        await until(lambda: hosts.released == [1])
        await until(lambda: some.health().state is State.READY)
        assert some.capabilities.fingerprint == "fp_toy_1"
        assert (await collect(some, spec()))[-1].finish is Finish.LENGTH
        await some.close()

    asyncio.run(scenario())


def test_a_replica_with_another_model_is_given_nothing_before_it_is_looked_at_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ready a tenth of a second before, and what it was given then it answered, under the first's fingerprint."""
    monkeypatch.setattr("quintet.deploy.pool.TICK_S", 3600.0)

    async def scenario() -> None:
        async with pool(Hosts(), Sizing(1, 2)) as some:
            some._add()
            first, other = some.replicas
            await until(lambda: other.state is State.READY)
            other.engine.__class__ = Other
            cast("Other", other.engine).let = True
            streams = [asyncio.create_task(collect(some, spec(f"{number}", 600, number))) for number in range(12)]
            await until(lambda: some.live == len(streams))
            some._move(first)
            assert (first.engine.live, other.engine.live) == (len(streams), 0)
            assert some._ready == [first], "whom images are asked of"
            assert {(await task)[-1].finish for task in streams} == {Finish.LENGTH}
            first.engine.__class__ = Gone
            with pytest.raises(Loading):
                some.require_room(1)

    asyncio.run(scenario())


class Blocks(Engine):
    """Its pages are as large as vLLM's."""

    def health(self) -> Health:
        return replace(super().health(), pages=Pages(100, 128, 0))


def test_of_a_replica_with_larger_pages_as_much_is_known_as_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hosts, told = Hosts(), list[int]()

        def make(records: Records) -> Engine:
            engine = hosts.make(records)
            engine.__class__ = Blocks
            return engine

        class Seeing(Router):
            def route(self, digests: Sequence[bytes], loads: Mapping[int, int], count: int, pages: int = 0) -> int:
                told.append(pages)
                return super().route(digests, loads, count, pages)

        monkeypatch.setattr("quintet.deploy.pool.Router", Seeing)
        some = Pool(make, CONFIG, Sizing(2, 2))
        await until(lambda: some.health().state is State.READY)
        await until(lambda: some._pages > 0)
        await collect(some, spec())
        assert told == [100 * 128 // PAGE]
        await some.close()

    asyncio.run(scenario())


class Gone(Engine):
    """It died many times in a row, and is tried on."""

    @property
    def state(self) -> State:
        return State.DEAD

    def health(self) -> Health:
        return replace(super().health(), state=State.DEAD)

    def require_room(self, *_: object, **__: object) -> None:
        raise Loading("The engine has failed, and is being started again.")


class Starting(Engine):
    """It is being started again, which in a drain no state tells."""

    def require_room(self, *_: object, **__: object) -> None:
        raise Loading("The model is being loaded.")

    @property
    def tokenizer(self) -> Tokenizer:
        raise Loading("The model is being loaded.")


def test_a_dead_replica_does_not_keep_others_from_being_added() -> None:
    async def scenario() -> None:
        hosts = Hosts()
        async with pool(hosts, Sizing(2, 3, up_after=0.2)) as some:
            some.replicas[1].engine.__class__ = Gone
            streams = [asyncio.create_task(collect(some, spec(f"{number}", 600, number))) for number in range(60)]
            await until(lambda: len(some.replicas) == 3)
            assert {(await task)[-1].finish for task in streams} == {Finish.LENGTH}

    asyncio.run(scenario())


def test_of_a_dead_replica_and_one_that_works_the_dead_one_is_let_go() -> None:
    async def scenario() -> None:
        hosts = Hosts()
        async with pool(hosts, Sizing(2, 2)) as some:
            some.replicas[0].engine.__class__ = Gone
            some._scaler = Scaler(Sizing(1, 2, down_after=0.0), CONFIG.running_limit)
            await until(lambda: len(some.replicas) == 1)
            assert some.health().state is State.READY
            assert (await collect(some, spec()))[-1].finish is Finish.LENGTH

    asyncio.run(scenario())


def test_one_that_cannot_be_started_and_is_not_needed_any_more_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        hosts = Hosts()
        async with pool(hosts, Sizing(1, 2)) as some:
            hosts.lost, some._again = True, math.inf
            some._add()
            await until(lambda: some.replicas[1].engine.failure is not None)
            some.replicas[1].leaving, some._again = True, 0.0  # as where it failed since it was let go
            some._tend()
            assert [one.number for one in some.replicas] == [0]

    asyncio.run(scenario())
    assert "cannot be" not in caplog.text


def test_health_is_that_of_replicas_that_take_requests_and_not_of_one_that_leaves() -> None:
    async def scenario() -> None:
        async with pool(Hosts(), Sizing(2, 2)) as some:
            left = asyncio.create_task(collect(some, spec("long", 3000)))
            await until(lambda: some.health().running == 1)
            one, other = sorted(some.replicas, key=lambda replica: -replica.engine.live)
            one.leaving = True
            assert some.health().state is State.READY
            other.engine.__class__ = Gone
            with pytest.raises(Loading):
                some.require_room(1)
            assert some.health().state is State.DEAD
            assert some.health().running == 1
            assert (await left)[-1].finish is Finish.LENGTH

    asyncio.run(scenario())


def test_what_is_under_way_in_a_drain_is_made_tokens_of_though_the_first_replica_is_being_started_again() -> None:
    async def scenario() -> None:
        async with pool(Hosts(), Sizing(2, 2)) as both:
            both.replicas[0].engine.__class__ = Starting
            both.drain()
            both.require_room(1, begun=True)
            assert both.tokenizer.encode("a")

    asyncio.run(scenario())


def test_a_model_that_no_replica_can_have_is_a_failure_and_not_a_wait() -> None:
    async def scenario() -> None:
        hosts = Hosts()
        hosts.lost = True
        none = Pool(hosts.make, CONFIG, Sizing(2, 3))
        await until(lambda: none.failure is not None)
        assert none.health().state is State.DEAD
        assert isinstance(none.failure, EngineFailed)
        assert "the machine is gone" in str(none.failure)
        await none.close()
        assert sorted({*hosts.released}) == [0, 1]

    asyncio.run(scenario())


def test_why_no_replica_can_be_had_is_known_as_soon_as_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the replicas are looked at again."""
    monkeypatch.setattr("quintet.deploy.pool.TICK_S", 3600.0)

    async def scenario() -> None:
        hosts = Hosts()
        hosts.lost = True
        none = Pool(hosts.make, CONFIG, Sizing(2, 3))
        with pytest.raises(EngineFailed, match="toy could not be loaded: .*the machine is gone"):
            await ready(none, "toy")
        await none.close()

    asyncio.run(scenario())
