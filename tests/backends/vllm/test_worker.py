"""The child's loop around a core that is played: echoes, turns, aborts, ends and deaths, as vLLM's outputs bring them about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec

from quintet.backends.native.core.types import Outcome
from quintet.backends.native.schedule.emit import NUMERICAL
from quintet.backends.native.wire.messages import Abort, Died, EventRow, FromWorker, Ping, Row, Started, Stepped, Stop, Submit, TokenRow
from quintet.backends.vllm.processing import Maker
from quintet.backends.vllm.sequences import BROKEN
from quintet.backends.vllm.sidecar import Sidecar
from quintet.backends.vllm.values import About, Asked, CoreDeadError, Output, RejectedError, Step
from quintet.backends.vllm.wire import Compiled, Refused, decode_choose
from quintet.backends.vllm.worker import DEAD, REJECTED, VllmWorker
from quintet.events import Blame, Finish
from quintet.inputs.sequence import Adapter, PreparedSequence
from quintet.request import Sampling

EOS = 256
GREEDY = Sampling(0.0, 1.0, 0)
DEAD_NOW = Output((-1,), (), None, False, 0, 0.0)
"""Stands for the death of the core."""


class PlayedCore:
    """vLLM's side: each sequence gets what ``say`` is told."""

    about = About(512, 257, 100, 16, 2048, 2, 2, "fp")

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.outputs: dict[str, asyncio.Queue[Output | Exception]] = {}
        self.left: list[str] = []
        self.dead = False
        self.adapters: list[int] = []  # loaded, and with a minus those that had to go
        self.bad: set[int] = set()
        self.slow: asyncio.Event | None = None  # what loading an adapter waits for

    async def adapt(self, adapter: Adapter) -> None:
        await (self.slow.wait() if self.slow else asyncio.sleep(0))
        if adapter.id in self.bad:
            raise RejectedError("no such adapter")
        self.adapters.append(adapter.id)

    async def forget(self, adapter: int) -> None:
        self.adapters.append(-adapter)

    processor: Maker | None = None

    async def run(self, asked: Asked) -> AsyncIterator[Output]:
        self.asked[asked.name] = asked
        queue = self.outputs[asked.name] = asyncio.Queue()
        try:
            while True:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finished:
                    return
        finally:
            self.left.append(asked.name)


class World:
    """A worker, its core, and what the front hears."""

    def __init__(self) -> None:
        self.told: list[FromWorker] = []
        self.core = PlayedCore()
        self.sidecar = Sidecar()
        self.now = 10.0
        self.worker = VllmWorker(self.sidecar, lambda: self.now, self.told.append, frozenset({EOS}))
        self.worker.attach(self.core)

    async def submit(self, request_id: int, *sequences: PreparedSequence, tenant: str = "", adapter: Adapter | None = None) -> None:
        self.worker.receive(Submit.of(request_id, sequences, 5.0, tenant, adapter=adapter))
        await self.settle()

    async def say(self, name: str, *tokens: int, **more: Any) -> None:
        given: dict[str, Any] = {"scored": (), "prompt": None, "finished": False, "cached": 0, "scheduled": 7.0}
        self.core.outputs[name].put_nowait(Output(tokens, **(given | more)))
        await self.settle()

    async def compiled(self, *grammars: str) -> None:
        """A chooser says it."""
        self.sidecar._take(msgspec.msgpack.encode(Compiled(grammars, well=True)))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def rows(self, request_id: int) -> list[Row]:
        return [row for one in self.told if isinstance(one, Stepped) for row in one.events.get(request_id, ())]

    def finishes(self, request_id: int) -> dict[int, Finish]:
        return {row.seq: row.finish for row in self.rows(request_id) if isinstance(row, EventRow) and row.finish}

    def last(self) -> Stepped:
        return next(one for one in reversed(self.told) if isinstance(one, Stepped))


def played(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            world.sidecar.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def one(tokens: tuple[int, ...] = (1, 2, 3), max_tokens: int = 3, sampling: Sampling = GREEDY, **more: Any) -> PreparedSequence:
    return PreparedSequence(tokens, max_tokens, sampling, more.pop("logprobs", None), more.pop("echo", False), **more)


def test_a_sequence_goes_to_vllm_as_it_is_and_its_tokens_come_back() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(salt=b"\x01\x02", sampling=replace(GREEDY, stop_token_ids=(65,))))
        asked = world.core.asked["1"]
        assert (asked.tokens, asked.max_tokens, asked.salt, asked.ends) == ((1, 2, 3), 3, "0102", (65, EOS))
        assert decode_choose(asked.choose).start == 3
        assert Started((1,)) in world.told
        await world.say("1", 70, cached=2)
        await world.say("1", 71, 72)
        first, second, last = world.rows(1)
        assert isinstance(first, EventRow)
        assert (first.token, first.waited, second) == (70, 2.0, TokenRow(0, 71))
        assert isinstance(last, EventRow)
        assert (last.token, last.finish, last.cached_tokens) == (72, Finish.LENGTH, 2)
        assert world.core.left == ["1"]

    played(scenario)


def test_what_ends_a_sequence_is_found_here_whatever_vllm_was_told() -> None:
    async def scenario(world: World) -> None:
        many = tuple(range(100, 250))
        await world.submit(1, one(max_tokens=50, sampling=replace(GREEDY, stop_token_ids=many)))
        assert len(world.core.asked["1"].ends) <= 128
        await world.say("1", 249, 5, 6)
        assert [row.token for row in world.rows(1)] == [249], "nothing after the end"
        assert world.finishes(1) == {0: Finish.EOS}
        await world.submit(2, one(max_tokens=50, sampling=replace(GREEDY, ignore_eos=True)))
        await world.say("2", EOS, 7)
        assert [row.token for row in world.rows(2)] == [EOS, 7]
        await world.say("2", finished=True)
        assert world.finishes(2) == {0: Finish.LENGTH}, "vLLM's context has ended"

    played(scenario)


def test_a_prompt_is_echoed_once_and_before_anything_else() -> None:
    async def scenario(world: World) -> None:
        samples = [one(echo=True, echo_from=1, logprobs=1) for _ in range(3)]
        await world.submit(1, *samples)
        assert list(world.core.asked) == ["1"], "the others wait for the log-probabilities"
        assert (world.core.asked["1"].prompt_logprobs, world.core.asked["1"].logprobs) == (1, 1)
        scored = ((-0.5, ((2, -0.5),)), (-1.5, ((9, -0.25),)))
        await world.say("1", 70, prompt=scored, scored=((-2.0, ((8, -0.1),)),))
        echoed = world.rows(1)[:2]
        assert echoed == [
            EventRow(0, 2, -0.5, ((2, -0.5),), prompt=True, waited=2.0),
            EventRow(0, 3, -1.5, ((9, -0.25),), prompt=True),
        ]
        assert world.rows(1)[2] == EventRow(0, 70, -2.0, ((8, -0.1),))
        assert list(world.core.asked) == ["1", "2", "3"]
        assert world.core.asked["2"].prompt_logprobs is None

    played(scenario)


def test_the_last_token_of_a_prompt_that_fills_the_context_is_scored_as_one_that_is_chosen() -> None:
    async def scenario(world: World) -> None:
        prompt = tuple(range(1, world.core.about.context + 1))
        await world.submit(1, replace(one(prompt, max_tokens=0, echo=True, logprobs=1), echo_from=len(prompt) - 2))
        asked = world.core.asked["1"]
        assert (asked.tokens, asked.max_tokens, asked.logprobs, asked.prompt_logprobs) == (prompt[:-1], 1, 1, 1)
        chosen = decode_choose(asked.choose)
        assert (chosen.start, chosen.sequence.sampling.allowed_token_ids) == (len(prompt) - 1, prompt[-1:])
        before = ((-1.0, ()),) * (len(prompt) - 3) + ((-2.0, ((3, -0.5),)),)
        await world.say("1", prompt[-1], prompt=before, scored=((-4.0, ((8, -0.1),)),), finished=True)
        told = [(row.token, row.logprob, row.top) for row in world.rows(1) if isinstance(row, EventRow) and row.prompt]
        assert told == [(prompt[-2], -2.0, ((3, -0.5),)), (prompt[-1], -4.0, ((8, -0.1),))]
        assert world.finishes(1) == {0: Finish.LENGTH}

    played(scenario)


def test_what_needs_no_model_is_answered_without_it() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(max_tokens=0), one(max_tokens=0, echo=True))
        assert world.core.asked == {}
        assert world.finishes(1) == {0: Finish.LENGTH, 1: Finish.LENGTH}
        assert [row.token for row in world.rows(1) if row.seq == 1] == [1, 2, 3, -1]
        await world.submit(2, one(max_tokens=0, echo=True, logprobs=0))
        assert world.core.asked["1"].max_tokens == 1
        await world.say("1", 99, prompt=((-1.0, ()), (-2.0, ())), finished=True)
        assert [row.token for row in world.rows(2)] == [1, 2, 3, -1], "the token that vLLM cannot do without is nobody's"

    played(scenario)


def test_tenants_take_turns_for_the_places_that_vllm_has() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, *[one() for _ in range(6)], tenant="crowd")
        assert len(world.core.asked) == 3, "two run, and one waits inside"
        await world.submit(2, one((4, 5)), tenant="other")
        for name in ("1", "2"):
            await world.say(name, 70, 71, 72)
        assert (4, 5) in [world.core.asked[name].tokens for name in ("4", "5")], "before all of the crowd"
        assert world.last().waiting == 2

    played(scenario)


def test_an_abort_ends_what_it_names_at_once_wherever_it_is() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, *[one(echo=True, logprobs=0) for _ in range(2)], *[one((index,)) for index in range(4)])
        for seq in (0, 5):  # the leader, whose follower succeeds it; one that waits
            world.worker.receive(Abort(1, seq))
        await world.settle()
        assert world.finishes(1) == {0: Finish.ABORT, 5: Finish.ABORT}
        assert world.core.left == ["1"], "vLLM computes no more of it"
        world.worker.receive(Abort(1, None))
        world.worker.receive(Abort(1, None))
        world.worker.receive(Abort(77, None))
        await world.settle()
        assert world.finishes(1) == dict.fromkeys(range(6), Finish.ABORT)
        assert len(world.rows(1)) == 6
        world.worker.receive(Ping())
        await world.settle()
        assert (world.last().running, world.last().waiting) == (0, 0)

    played(scenario)


def test_what_is_called_off_before_it_begins_leaves_its_place() -> None:
    async def scenario(world: World) -> None:
        for request_id in range(1, 9):
            world.worker.receive(Submit.of(request_id, [one()], 5.0))
            world.worker.receive(Abort(request_id, None))
        await world.settle()
        assert world.core.asked == {}
        await world.submit(9, one())
        (name,) = world.core.asked
        await world.say(name, 70, 71, 72)
        assert world.finishes(9) == {0: Finish.LENGTH}

    played(scenario)


def test_the_follower_of_a_leader_that_was_called_off_leads() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, *[one(echo=True, logprobs=0) for _ in range(2)])
        world.worker.receive(Abort(1, 0))
        await world.settle()
        assert world.core.asked["2"].prompt_logprobs == 0
        await world.say("2", 70, prompt=((-1.0, ()), (-2.0, ())), scored=((-1.0, ()),))
        assert [(row.seq, row.token) for row in world.rows(1)] == [(0, -1), (1, 1), (1, 2), (1, 3), (1, 70)]

    played(scenario)


def test_what_could_not_be_chosen_ends_its_sequence_alone_with_the_reason() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(max_tokens=9), one((4,), max_tokens=9))
        await world.say("1", 70)
        world.sidecar.refused[1] = Refused(1, 4, Outcome.NOT_FINITE)
        world.sidecar.refused[2] = Refused(2, 1, Outcome.NOT_DRAWN)
        await world.say("1", 0)
        await world.say("2", 0)
        ends = [row for row in world.rows(1) if isinstance(row, EventRow) and row.finish]
        assert [(end.seq, end.token, end.error, end.blame) for end in ends] == [
            (0, -1, NUMERICAL, Blame.NUMBERS),
            (1, -1, BROKEN, Blame.SERVER),
        ]
        await world.submit(2, one(max_tokens=9, echo=True, logprobs=0))
        await world.say("3", 70, prompt=((float("nan"), ()), (-1.0, ())))
        (end,) = world.rows(2)
        assert isinstance(end, EventRow)
        assert (end.finish, end.error) == (Finish.ERROR, NUMERICAL)

    played(scenario)


def test_a_request_that_vllm_rejects_ends_and_others_go_on() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(), one((4,)))
        world.core.outputs["1"].put_nowait(RejectedError())
        await world.settle()
        (end,) = world.rows(1)
        assert isinstance(end, EventRow)
        assert (end.finish, end.error) == (Finish.ERROR, REJECTED)
        await world.say("2", 70)
        assert world.rows(1)[-1].token == 70

    played(scenario)


def test_the_cores_death_is_the_workers_whether_somebody_waits_or_not() -> None:
    async def told(world: World) -> None:
        await world.submit(1, one())
        world.core.outputs["1"].put_nowait(CoreDeadError())
        assert await asyncio.wait_for(world.worker.run(), 30) == Died(DEAD)

    async def seen(world: World) -> None:
        world.core.dead = True
        assert await asyncio.wait_for(world.worker.run(), 30) == Died(DEAD)

    async def stopped(world: World) -> None:
        await world.submit(1, one())
        world.worker.receive(Stop())
        assert await asyncio.wait_for(world.worker.run(), 30) == Died()

    for scenario in (told, seen, stopped):
        played(scenario)


def test_statistics_are_counted_by_vllms_steps() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one())
        world.worker.stepped(Step(1, 0, 0.25, 3, 1, 0, 3, 0))
        world.worker.stepped(Step(1, 0, 0.5, 0, 1, 2, 0, 0))
        await world.settle()
        told = world.last()
        assert told.counts[:6] == (2, 5, 3, 2, 3, 0)
        assert (told.pages.total, told.pages.size, told.pages.used) == (100, 16, 50)

    played(scenario)


def test_guides_are_compiled_before_a_request_may_enter_vllm() -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(grammar="start: /a/"), one(grammar="start: /a/"))
        await world.submit(2, one((4,)))
        assert [asked.tokens for asked in world.core.asked.values()] == [(4,)]
        world.worker.receive(Abort(1, 1))
        await world.compiled("start: /a/")
        assert [asked.tokens for asked in world.core.asked.values()] == [(4,), (1, 2, 3)]
        assert world.finishes(1) == {1: Finish.ABORT}

    played(scenario)


def test_a_guide_is_asked_for_again_once_another_was_for_which_it_may_have_been_dropped() -> None:
    """Or it would be compiled within a step, which holds up the whole batch."""

    async def scenario(world: World) -> None:
        first, second = "start: /a/", "start: /b/"
        for request_id, grammar in ((1, first), (2, second)):
            await world.submit(request_id, one((request_id,), grammar=grammar))
        for request_id, grammar in ((1, first), (2, second)):
            await world.compiled(grammar)
            await world.say(str(request_id), 70, 71, 72)
        await world.submit(3, one((3,), grammar=second))
        assert world.core.asked["3"].tokens == (3,), "it is the one that they have just told of"
        await world.submit(4, one((4,), grammar=first))
        assert list(world.core.asked) == ["1", "2", "3"]
        await world.compiled(first)
        assert world.core.asked["4"].tokens == (4,)

    played(scenario)


def test_an_adapter_is_there_before_a_sequence_that_needs_it_and_goes_when_another_needs_its_place() -> None:
    async def scenario(world: World) -> None:
        first, second, third = (Adapter(number, f"/adapters/{number}", "digest") for number in (1, 2, 3))
        await world.submit(1, one(), one(), adapter=first)
        await world.submit(2, one())
        assert world.core.adapters == [1], "once for both"
        assert [world.core.asked[name].adapter for name in ("1", "2", "3")] == [first, first, None]
        await world.say("1", 70, 71, 72)
        await world.say("2", 70, 71, 72)
        await world.say("3", 70, 71, 72)
        await world.submit(3, one(max_tokens=9), adapter=second)
        await world.submit(4, one(), adapter=third)
        assert world.core.adapters == [1, 2, -1, 3], "two have places, and nobody uses the first"

    played(scenario)


def test_while_an_adapter_is_loaded_the_front_hears_that_something_goes_on_but_not_for_ever() -> None:
    """It would have the engine killed, which finishes no step meanwhile."""

    async def scenario(world: World) -> None:
        async def heard() -> bool:
            before = len(world.told)
            world.worker._look()
            await world.settle()
            return len(world.told) > before

        world.core.slow = asyncio.Event()
        await world.submit(1, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        for _ in range(4):
            world.now += 60
            assert await heard()
        world.now += 100
        assert not await heard(), "it hangs"
        world.core.slow.set()
        await world.settle()
        await world.submit(2, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        assert not await heard(), "it is for vLLM to finish steps"

    played(scenario)


def test_an_adapter_that_cannot_be_loaded_fails_its_request_alone() -> None:
    async def scenario(world: World) -> None:
        world.core.bad = {7}
        await world.submit(1, one(), adapter=Adapter(7, "/adapters/7", "digest"))
        await world.submit(2, one())
        assert world.finishes(1) == {0: Finish.ERROR}
        assert [row.error for row in world.rows(1) if isinstance(row, EventRow)] == ["no such adapter"]
        await world.say(next(iter(world.core.outputs)), 70, 71, 72)
        assert world.finishes(2) == {0: Finish.LENGTH}

    played(scenario)


def test_who_leaves_while_an_adapter_is_loaded_leaves_it_loaded() -> None:
    async def scenario(world: World) -> None:
        adapter = Adapter(1, "/adapters/1", "digest")
        world.worker.receive(Submit.of(1, [one()], 5.0, adapter=adapter))
        await asyncio.sleep(0)
        world.worker.receive(Abort(1, None))
        await world.settle()
        await world.submit(2, one(), adapter=adapter)
        assert world.core.adapters == [1]
        await world.say(next(iter(world.core.outputs)), 70, 71, 72)
        assert world.finishes(2) == {0: Finish.LENGTH}

    played(scenario)
