"""The child's loop around a core that is played: echoes, turns, aborts, ends and deaths, as vLLM's outputs bring them about."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.backends.vllm.playing import EOS, GREEDY, World, one, played

from quintet.backends.native.core.types import Outcome
from quintet.backends.native.schedule.emit import FAILED, NUMERICAL
from quintet.backends.native.wire.messages import Abort, Died, EventRow, Ping, Started, Stop, Submit, TokenRow
from quintet.backends.vllm.sequences import BROKEN
from quintet.backends.vllm.values import CoreDeadError, RejectedError, Step
from quintet.backends.vllm.wire import Refused, decode_choose
from quintet.backends.vllm.worker import DEAD, REJECTED
from quintet.events import Blame, Finish


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


@pytest.mark.parametrize(("error", "told"), [(RejectedError(), REJECTED), (RejectedError("why"), "why"), (ValueError("a defect"), FAILED)])
def test_a_request_that_vllm_rejects_or_a_defect_ends_is_told_so_and_others_go_on(error: Exception, told: str) -> None:
    async def scenario(world: World) -> None:
        await world.submit(1, one(), one((4,)))
        world.core.outputs["1"].put_nowait(error)
        await world.settle()
        (end,) = world.rows(1)
        assert isinstance(end, EventRow)
        assert (end.finish, end.error) == (Finish.ERROR, told)
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
