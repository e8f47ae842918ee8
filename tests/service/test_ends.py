"""Every request ends exactly once, whatever the engine and the client do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.preparing import service
from tests.support.scripted_backend import Script, ScriptedBackend, collect, done, request, serve, texts

from quintet.events import ChoiceDone, Event, Failed, Finish, Finished, TokenEvent, Usage
from quintet.service.job import Job

TERMINALS = [Finish.EOS, Finish.LENGTH, Finish.ERROR, Finish.ABORT]


def test_an_engine_error_ends_the_request_and_stops_its_neighbours() -> None:
    backend = ScriptedBackend([Script(b"abc", Finish.ERROR), Script(b"x" * 50)])
    events = serve(backend, request("a", "b"))
    assert events[-1] == Failed("The engine failed.")
    assert not any(isinstance(event, Finished) for event in events)
    assert backend.aborts == [(backend.request_id, None)]


def test_of_a_request_that_ended_in_an_error_as_many_tokens_of_its_prompt_count_as_were_computed() -> None:
    async def go() -> list[int]:
        counted = []
        for finish in (Finish.ERROR, Finish.ABORT, Finish.LENGTH):
            job = await service(backend := ScriptedBackend([Script(b"a")])).prepare(request("a prompt"))
            backend.submit = lambda _, finish=finish: told([TokenEvent(0, -1, finish=finish, computed=3)])  # type: ignore[method-assign, misc]
            [event async for batch in job.events() for event in batch]
            counted.append(job.usage.prompt_tokens)
        return counted

    assert asyncio.run(go()) == [3, 3, len("a prompt")]


async def told(events: list[TokenEvent]) -> AsyncIterator[list[TokenEvent]]:
    yield events


@pytest.mark.parametrize("raises", [False, True])
def test_a_backend_that_breaks_its_promise_still_gives_the_client_an_end(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    backend = ScriptedBackend([Script(b"abcdefgh" * 9)], dies_after=3, raises=raises)
    assert serve(backend, request())[-1] == Failed("The engine stopped before the request was complete.")
    assert ("the pipe broke" in caplog.text) == raises
    assert backend.aborts == [(backend.request_id, None)]


def test_a_job_dropped_after_prepare_leaves_no_trace() -> None:
    backend = ScriptedBackend([Script(b"x")])
    asyncio.run(service(backend).prepare(request()))
    assert (backend.submitted, backend.aborts) == (0, [])


def test_a_job_runs_once() -> None:
    async def go() -> None:
        job = await service(ScriptedBackend([Script(b"x")])).prepare(request())
        await collect(job)
        with pytest.raises(RuntimeError, match="runs once"):
            await collect(job)

    asyncio.run(go())


def test_cancel_before_the_start_submits_nothing_and_ends_every_choice() -> None:
    async def go() -> None:
        backend = ScriptedBackend([Script(b"x")])
        job = await service(backend).prepare(request("a", "b"))
        job.cancel()
        assert await collect(job) == [ChoiceDone(0, Finish.ABORT, "", 5), ChoiceDone(1, Finish.ABORT, "", 6), Finished(Usage(0, 0))]
        assert backend.submitted == 0

    asyncio.run(go())


def test_cancel_under_way_ends_every_choice_with_abort() -> None:
    async def go() -> None:
        backend = ScriptedBackend([Script(b"x" * 500)])
        job = await service(backend).prepare(request("a", "b"))
        events: list[Event] = []
        async for batch in job.events():
            job.cancel()
            events += batch
        assert {index: event.finish for index, event in done(events).items()} == {0: Finish.ABORT, 1: Finish.ABORT}
        assert events[-1] == Finished(job.usage)
        assert job.usage.completion_tokens == sum(len(text) for text in texts(events).values())

    asyncio.run(go())


def test_a_client_that_leaves_stops_the_work() -> None:
    """Closing the events, as the server does when the connection is gone."""

    async def go() -> None:
        backend = ScriptedBackend([Script(b"x" * 500)])
        job = await service(backend).prepare(request("a", "b"))
        async with aclosing(job.events()) as events:
            await anext(events)
        assert backend.aborts == [(backend.request_id, None)]
        assert backend.closed_iterators == 1
        assert job.usage.prompt_tokens == 1, "nothing is known of the other"

    asyncio.run(go())


def test_a_cancelled_task_stops_the_work() -> None:
    async def go() -> None:
        backend = ScriptedBackend([Script(b"x" * 10_000)])
        job = await service(backend).prepare(request())
        task = asyncio.create_task(collect(job))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.aborts == [(backend.request_id, None)]

    asyncio.run(go())


@pytest.mark.fault("E07")
def test_a_client_that_leaves_after_the_last_event_aborts_nothing() -> None:
    async def go() -> None:
        backend = ScriptedBackend([Script(b"ab")])
        job = await service(backend).prepare(request())
        async with aclosing(job.events()) as stream:
            async for batch in stream:
                if isinstance(batch[-1], Finished):
                    break
        job.cancel()
        assert backend.aborts == []

    asyncio.run(go())


GENERATED = st.lists(st.sampled_from([b"a", b"b", b"<", b">", "€".encode(), b"\xe2"]), max_size=8).map(b"".join)
SCRIPTS = st.lists(st.builds(Script, GENERATED, st.sampled_from(TERMINALS)), min_size=1, max_size=6)


@settings(deadline=None)
@given(
    scripts=SCRIPTS,
    seed=st.integers(0, 999),
    stop=st.sampled_from([(), ("<>",), ("a", "ab"), ("€",)]),
    logprobs=st.sampled_from([None, 1]),
    echo=st.booleans(),
    lag=st.integers(0, 3),
    dies=st.one_of(st.none(), st.integers(0, 12)),
    leave=st.one_of(st.none(), st.tuples(st.integers(0, 12), st.booleans())),
)
def test_every_request_ends_exactly_once(
    scripts: list[Script],
    seed: int,
    stop: tuple[str, ...],
    logprobs: int | None,
    echo: bool,
    lag: int,
    dies: int | None,
    leave: tuple[int, bool] | None,
) -> None:
    """Whatever the steps, stops, errors, deaths and departures: one end, it is last, and nothing is left running."""

    async def go() -> None:
        backend = ScriptedBackend(scripts, random.Random(seed), dies_after=dies, abort_lag=lag)
        job = await service(backend).prepare(request(*["p"] * len(scripts), logprobs=logprobs, echo=echo, stop=stop))
        events: list[Event] = []
        left = False
        async with aclosing(job.events()) as stream:
            async for batch in stream:
                assert batch
                events += batch
                if leave and len(events) > leave[0]:
                    job.cancel()
                    if left := leave[1]:
                        break
        check_ended(backend, job, events, left)

    asyncio.run(go())


def check_ended(backend: ScriptedBackend, job: Job, events: list[Event], left: bool) -> None:
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    indexes = [event.index for event in events if isinstance(event, ChoiceDone)]
    assert len(indexes) == len(set(indexes))
    assert len(ends) <= 1
    assert ends or left
    if ends:
        assert events[-1] is ends[0]
    if ends and isinstance(ends[0], Finished):
        assert sorted(indexes) == list(range(len(backend.specs)))
        assert not backend.running
        assert ends[0].usage == job.usage
    assert not backend.running or (backend.request_id, None) in backend.aborts
    assert backend.closed_iterators == backend.submitted == 1
