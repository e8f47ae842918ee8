"""What every backend owes the service, whatever model is behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs
from tests.backends.contract.conftest import CONFIG, Check
from tests.support.preparing import prepare, preparer_of

from quintet.backends.base import Backend, State
from quintet.errors import BadRequest, Overloaded, PromptTooLong
from quintet.events import NO_DRAFTS, Finish, TokenEvent
from quintet.inputs.capabilities import Capabilities, Feature
from quintet.inputs.sequence import SequenceSpec, Urgency
from quintet.request import Prompt, Sampling

STORY = "Once upon a time there was a little fox who lived at the edge of the forest"


def spec(
    prompt: Prompt = STORY,
    max_tokens: int | None = 12,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    logprobs: int | None = None,
    echo: bool = False,
) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(temperature, 0.9, seed), logprobs, echo)


def within(asked: SequenceSpec, capabilities: Capabilities) -> SequenceSpec:
    """As much of it as the engine has."""
    features = capabilities.supported.features
    if Feature.LOGPROBS not in features:
        asked = replace(asked, logprobs=None)
    if Feature.ECHO not in features or (asked.logprobs is not None and Feature.PROMPT_LOGPROBS not in features):
        asked = replace(asked, echo=False)
    return asked


def need(backend: Backend, *features: Feature) -> None:
    """Skip a test of what the engine lacks."""
    if lacking := set(features) - backend.capabilities.supported.features:
        pytest.skip(f"the engine lacks {lacking}")


def need_pages(backend: Backend) -> None:
    """Skip a test of the prefix cache where there is none; nothing a client sees depends on it."""
    if not backend.health().pages.total:
        pytest.skip("the engine counts no pages")


async def run(backend: Backend, *specs: SequenceSpec, urgency: Urgency = Urgency.NOW) -> list[list[TokenEvent]]:
    """The events of each sequence, checked for what holds of every answer; less of what the engine lacks."""
    prepared = await prepare(backend, [within(one, backend.capabilities) for one in specs])
    events: list[list[TokenEvent]] = [[] for _ in specs]
    async for batch in backend.submit(replace(prepared, urgency=urgency)):
        assert batch, "an empty batch"
        for event in batch:
            events[event.seq].append(event)
    for sequence, mine in zip(prepared.sequences, events, strict=True):
        assert [event.finish is not None for event in mine] == [False] * (len(mine) - 1) + [True], "one terminal event, the last"
        assert len([event for event in mine if event.token >= 0 and not event.prompt]) <= sequence.max_tokens
        for event in mine:
            assert -1 <= event.token < backend.capabilities.vocab
            assert event.piece == (backend.capabilities.pieces[event.token] if event.token >= 0 else b"")
    return events


def told(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """Events without what may differ between runs of the same request."""
    return [structs.replace(event, seq=0, cached_tokens=0, waited=0.0, drafts=NO_DRAFTS) for event in events]


def scores(events: Sequence[TokenEvent]) -> list[tuple[int, object, object]]:
    """Tokens and their log-probabilities."""
    return [(event.token, event.logprob, event.top) for event in events]


CROWD = [
    spec(f"{STORY[:20]} number {index}", 9, temperature=1.0, seed=index, logprobs=index % 3, echo=index % 2 == 1) for index in range(8)
]


def test_a_sequence_ends_by_length_or_by_the_model(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        (events,) = await run(backend, spec(max_tokens=20))
        assert events[-1].finish is Finish.EOS or (events[-1].finish is Finish.LENGTH and len(events) == 20)
        assert all(event.logprob is None and not event.top for event in events)

    check(scenario)


@pytest.mark.fault("H07")
def test_log_probabilities_are_sorted_and_agree_with_the_chosen_token(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        most = min(5, backend.capabilities.max_logprobs)
        (events,) = await run(backend, spec(logprobs=most, temperature=1.0, seed=1))
        for event in events:
            assert event.logprob is not None
            assert event.logprob <= 0
            values = [value for _, value in event.top]
            assert len(values) == most
            assert values == sorted(values, reverse=True)
            assert dict(event.top).get(event.token, event.logprob) == event.logprob

    check(scenario)


def test_greedy_takes_the_most_likely_token(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        (events,) = await run(backend, spec(logprobs=1))
        assert all(event.top[0] == (event.token, event.logprob) for event in events)

    check(scenario)


@pytest.mark.fault("C12", "H01", "H02", "H04")
def test_the_same_request_gives_the_same_bytes_alone_in_a_crowd_and_from_the_cache(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        alone = [told((await run(backend, one))[0]) for one in CROWD]
        together = await run(backend, *CROWD)
        assert [told(events) for events in together] == alone
        apart = await asyncio.gather(*(run(backend, one) for one in reversed(CROWD)))
        assert [told(events) for (events,) in reversed(apart)] == alone

    check(scenario)


@pytest.mark.parametrize("urgency", [Urgency.SOON, Urgency.END])
def test_events_are_the_same_however_soon_they_are_wanted(check: Check, urgency: Urgency) -> None:
    async def scenario(backend: Backend) -> None:
        many = [*CROWD, *CROWD[:3]]
        for specs in (many[:1], many) if backend.capabilities.max_sequences >= len(many) else (many[:1],):
            expected = await run(backend, *specs)
            assert [told(one) for one in await run(backend, *specs, urgency=urgency)] == [told(one) for one in expected]

    check(scenario)


@pytest.mark.fault("H05")
def test_samples_of_one_prompt_are_those_of_its_seeds_alone(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        samples = [spec(temperature=1.0, seed=seed) for seed in range(12)]
        together = await run(backend, *samples)
        for index in (0, 7, 11):
            assert told(together[index]) == told((await run(backend, samples[index]))[0])
        assert len({tuple(event.token for event in events) for events in together}) > 1

    check(scenario)


@pytest.mark.fault("A14")
def test_echoed_log_probabilities_are_those_of_generating_the_same_tokens(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        need(backend, Feature.ECHO, Feature.PROMPT_LOGPROBS)
        prompt = (await prepare(backend, [spec()])).sequences[0].tokens
        (generated,) = await run(backend, spec(prompt, 24, logprobs=2))
        whole = (*prompt, *(event.token for event in generated))
        for max_tokens in (0, 1):
            (echoed,) = await run(backend, spec(whole, max_tokens, logprobs=2, echo=True))
            assert [event.token for event in echoed if event.prompt] == list(whole)
            assert echoed[0].logprob is None
            assert scores(echoed[len(prompt) : len(whole)]) == scores(generated)
            assert len(echoed) == len(whole) + 1

    check(scenario)


@pytest.mark.fault("A14")
def test_no_tokens_wanted_gives_an_end_without_a_token(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        (plain,) = await run(backend, spec(max_tokens=0))
        assert [(event.token, event.finish) for event in plain] == [(-1, Finish.LENGTH)]
        need(backend, Feature.ECHO)
        (echoed,) = await run(backend, spec(max_tokens=0, echo=True))
        assert b"".join(event.piece for event in echoed).decode().strip() == STORY
        assert echoed[-1].token == -1

    check(scenario)


@pytest.mark.fault("H05")
def test_a_text_is_its_token_ids(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        tokens = (await prepare(backend, [spec()])).sequences[0].tokens
        assert told((await run(backend, spec(tokens)))[0]) == told((await run(backend, spec(STORY)))[0])

    check(scenario)


@pytest.mark.fault("A03")
def test_an_empty_prompt_generates(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        text, ids = await run(backend, spec(""), spec(()))
        assert told(text)
        assert told(ids)

    check(scenario)


@pytest.mark.fault("A16")
def test_a_prompt_to_the_last_token_of_the_context_works_and_one_more_is_refused(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        context = backend.capabilities.context
        filler = (5,) * (context - 2)
        (events,) = await run(backend, spec(filler, None))
        assert events[-1].finish is Finish.EOS or len(events) == 2
        with pytest.raises(PromptTooLong) as caught:
            await prepare(backend, [spec(filler, 3)])
        assert caught.value.param == "max_tokens"
        with pytest.raises(PromptTooLong) as caught:
            await prepare(backend, [spec((*filler, 5, 5, 5), 0)])
        assert caught.value.param == "prompt"

    check(scenario)


def test_a_prompt_of_the_whole_context_is_scored_to_its_last_token(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        features = backend.capabilities.supported.features
        if Feature.PROMPT_LOGPROBS not in features or Feature.ECHO not in features:
            return
        prompt = (7, *(5,) * (backend.capabilities.context - 2), 9)
        (scored,) = await run(backend, spec(prompt, 0, logprobs=2, echo=True))
        assert [event.token for event in scored if event.prompt] == [*prompt]
        assert scored[-1].finish is Finish.LENGTH
        own = [event for event in scored if event.prompt][-1]
        (shorter,) = await run(backend, spec(prompt[:-1], 1, logprobs=2))
        assert own.logprob is not None
        assert [token for token, _ in own.top] == [token for token, _ in shorter[0].top]
        assert [value for _, value in own.top] == pytest.approx([value for _, value in shorter[0].top], abs=1e-3)
        assert own.logprob <= own.top[0][1] + 1e-3

    check(scenario)


@pytest.mark.fault("A05")
def test_what_cannot_run_is_refused_before_anything_starts(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        for bad in ([spec((1, backend.capabilities.vocab))], [spec((-1,))], [spec(logprobs=backend.capabilities.max_logprobs + 1)]):
            with pytest.raises(BadRequest):
                await prepare(backend, bad)
        assert backend.health().counts.steps == 0

    check(scenario)


@pytest.mark.fault("B18")
def test_more_than_the_queue_holds_is_refused_and_what_was_taken_ends(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        taken = []
        with pytest.raises(Overloaded):
            for _ in range(CONFIG.max_waiting):
                prepared = await prepare(backend, [spec("x", 2)] * 12)
                taken.append(backend.submit(prepared))
        assert len(taken) * 12 > CONFIG.max_waiting - 12
        for stream in taken:
            events = [event async for batch in stream for event in batch]
            assert sum(event.finish is not None for event in events) == 12
        await run(backend, spec("after"))

    check(scenario)


@pytest.mark.fault("E08")
def test_an_abort_ends_what_it_names_and_leaves_neighbours_as_they_are_alone(check: Check) -> None:
    """A running one, a queued one, and a whole request."""

    async def scenario(backend: Backend) -> None:
        expected = [told((await run(backend, one))[0]) for one in CROWD]
        neighbour = asyncio.create_task(run(backend, *CROWD))
        await asyncio.sleep(0)
        prepared = await prepare(backend, [spec(f"{index} {STORY}", 60) for index in range(10)])
        stream = backend.submit(prepared)
        backend.abort(prepared.request_id, 9)
        ends: dict[int, Finish] = {}
        whole = False
        async for batch in stream:
            ends |= {event.seq: event.finish for event in batch if event.finish}
            assert whole or {seq for seq, finish in ends.items() if finish is Finish.ABORT} <= {0, 9}
            backend.abort(prepared.request_id, 0)
            if whole := len(ends) > 1:
                backend.abort(prepared.request_id)
        assert ends[9] is Finish.ABORT
        assert len(ends) == 10
        backend.abort(prepared.request_id)
        backend.abort(10**9)
        assert [told(events) for events in await neighbour] == expected

    check(scenario)


@pytest.mark.fault("E08")
def test_a_hundred_aborted_requests_leave_no_trace(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        expected = told((await run(backend, spec()))[0])

        async def cancelled(index: int) -> None:
            prepared = await prepare(backend, [spec(f"{index} {STORY}", 50)])
            stream = backend.submit(prepared)
            if index % 3:
                await anext(stream)
            backend.abort(prepared.request_id)
            ends = [event.finish async for batch in stream for event in batch if event.finish]
            assert len(ends) <= 1

        await asyncio.gather(*(cancelled(index) for index in range(100)))
        assert told((await run(backend, spec()))[0]) == expected
        assert (backend.health().running, backend.health().waiting) == (0, 0)

    check(scenario)


def test_a_dropped_iterator_or_prepared_request_holds_nobody_up(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        await prepare(backend, [spec()])
        backend.submit(await prepare(backend, [spec()]))
        await run(backend, spec())

    check(scenario)


def test_health_counts_steps_and_goes_back_to_idle(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        before = backend.health()
        await run(backend, spec(max_tokens=6), spec("other", 6))
        after = backend.health()
        assert (before.state, after.state) == (State.READY, State.READY)
        assert (before.counts.steps, before.progress) == (0, 1.0)
        assert after.counts.steps >= 1
        assert (after.running, after.waiting) == (0, 0)

    check(scenario)


def test_a_prompt_is_computed_once_for_all_its_samples_and_not_again_where_it_is_cached(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        need_pages(backend)
        length = len(await preparer_of(backend).tokenize(STORY, False))
        await run(backend, *(spec(temperature=1.0, seed=seed) for seed in range(5)))
        assert backend.health().counts[2:6] == (length, 0, length, 0), "prefilled, preempted, queried, found"
        ((*_, last),) = await run(backend, spec())
        assert last.cached_tokens > 0
        assert backend.health().counts[2:6] == (2 * length - last.cached_tokens, 0, 2 * length, last.cached_tokens)

    check(scenario)


def test_pages_are_held_while_something_runs_and_only_cached_afterwards(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        need_pages(backend)
        before = backend.health().pages
        assert (before.used, before.cached, before.size > 0) == (0, 0, True)
        # So many sequences that they are not all at their ends by the time that the first token is read: a single one may be
        # (the tiny model answers with its end after some fifty tokens, which are a few milliseconds).
        asked = [spec(max_tokens=100, temperature=1.0, seed=index) for index in range(16)]
        stream = backend.submit(await prepare(backend, asked))
        batches = [await anext(stream)]
        assert backend.health().pages.used >= len(await preparer_of(backend).tokenize(STORY, False)) // before.size
        batches += [batch async for batch in stream]
        generated = sum(event.token >= 0 for batch in batches for event in batch)
        after = backend.health()
        assert after.pages.used == 0
        assert after.pages.cached > 0
        assert sum(after.batches) == after.counts.steps
        assert after.counts.tokens == after.counts.prefilled + generated, "every token is counted: of the prompt, and generated"

    check(scenario)


def test_closing_ends_everything_that_runs_and_refuses_what_comes(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        prepared = await prepare(backend, [spec(f"{index} {STORY}", 60) for index in range(10)])
        stream = backend.submit(prepared)
        late = await prepare(backend, [spec()])
        await backend.close()
        ends = [event async for batch in stream for event in batch if event.finish]
        assert sorted(event.seq for event in ends) == list(range(10))
        assert Finish.ABORT in {event.finish for event in ends}
        assert backend.health().state is State.CLOSED
        with pytest.raises(Overloaded):
            await prepare(backend, [spec()])
        assert [event.finish async for batch in backend.submit(late) for event in batch] == [Finish.ABORT]
        await backend.close()

    check(scenario)
