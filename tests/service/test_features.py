"""best_of, echo of the prompt's end, token ids without log-probabilities, min_tokens and timing, against a scripted backend."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.preparing import service
from tests.support.scripted_backend import Script, ScriptedBackend, collect, done, request, serve, texts

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import CONTEXT, toy_loader
from quintet.config import EngineConfig
from quintet.errors import BadRequest
from quintet.events import ChoiceDelta, Event, Finish, Finished, Timing, TokenText
from quintet.request import CompletionRequest, StopRules


def entries(events: list[Event]) -> list[TokenText]:
    return [token for event in events if isinstance(event, ChoiceDelta) for token in event.tokens]


def toy(asked: CompletionRequest) -> list[Event]:
    """What the embedded engine answers on the toy model."""

    async def go() -> list[Event]:
        engine = Engine(toy_loader(), EngineConfig(kv_bytes=1 << 20))
        try:
            while engine.health().state is not State.READY:
                await asyncio.sleep(0.001)
            return await collect(await service(engine).prepare(asked))
        finally:
            await engine.close()

    return asyncio.run(go())


def test_a_prompts_ids_come_first_without_its_being_echoed_or_scored() -> None:
    """With log-probabilities an echo is scored, so none is asked of the engine but for what is shown."""
    backend = ScriptedBackend([Script(b"xy")])
    asked = replace(request("ab"), n=2, logprobs=1, token_ids=True, prompt_ids=True)
    events = [event for event in serve(backend, asked) if isinstance(event, ChoiceDelta)]
    assert not any(spec.echo for spec in backend.specs)
    firsts = {event.index: event for event in reversed(events)}
    assert {(index, event.text, event.tokens, event.prompt) for index, event in firsts.items()} == {(i, "", (), (97, 98)) for i in (0, 1)}
    assert [event.prompt for event in events if event not in firsts.values()] == [None] * (len(events) - 2)
    assert texts(list(events)) == {0: "xy", 1: "xy"}


@pytest.mark.parametrize("last", [None, 1])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_asking_for_the_prompts_ids_changes_nothing_else(last: int | None, logprobs: int | None) -> None:
    """On an engine: the echo's text, numbers and offsets."""
    asked = replace(request("abc"), echo=True, echo_last=last, logprobs=logprobs, token_ids=True)
    plain, told = toy(asked), toy(replace(asked, prompt_ids=True))
    assert [msgspec.structs.replace(event, prompt=None) if isinstance(event, ChoiceDelta) else event for event in told[:-1]] == plain[:-1]
    assert isinstance(told[-1], Finished) and isinstance(plain[-1], Finished) and told[-1].usage == plain[-1].usage
    assert isinstance(told[0], ChoiceDelta) and told[0].prompt == (97, 98, 99)
    nothing = toy(replace(asked, prompt_ids=True, max_tokens=0, echo=False, echo_last=None))
    assert isinstance(nothing[0], ChoiceDelta) and (nothing[0].text, nothing[0].prompt) == ("", (97, 98, 99))


def best(**wanted: object) -> CompletionRequest:
    return replace(request("a", "b"), **{"best_of": 3, **wanted})  # type: ignore[arg-type]


def test_the_candidates_with_the_highest_mean_are_returned_in_rank_order() -> None:
    """Means, not sums: the long candidate has the lowest sum. The seed tells which candidate a choice was."""
    scripts = [
        *(Script(b"bad", logprob=-2.0), Script(b"x" * 50, logprob=-0.25), Script(b"good", logprob=-0.5)),
        *(Script(b"0", logprob=-1.0), Script(b"1", logprob=-3.0), Script(b"2", logprob=-1.0)),
    ]
    events = serve(ScriptedBackend(scripts), best(n=2))
    assert texts(events) == {0: "x" * 50, 1: "good", 2: "0", 3: "2"}, "equal means: the lower candidate first"
    assert {index: end.seed - 5 for index, end in done(events).items()} == {0: 1, 1: 2, 2: 3, 3: 5}


def test_the_ranking_asks_for_log_probabilities_that_the_client_does_not_see() -> None:
    backend = ScriptedBackend([Script(b"x")])
    events = serve(backend, best(token_ids=True))
    assert {spec.logprobs for spec in backend.specs} == {0}
    assert entries(events) and all(token.logprob is None and not token.top for token in entries(events))
    serve(backend, best(logprobs=3))
    assert {spec.logprobs for spec in backend.specs} == {3}
    serve(backend, replace(request(), n=2, best_of=2))
    assert {spec.logprobs for spec in backend.specs} == {None}, "nothing to rank"


@pytest.mark.fault("H08")
def test_usage_counts_the_tokens_of_every_candidate_and_a_prompt_once() -> None:
    scripts = [Script(b"1"), Script(b"22", cached=1), Script(b"333", cached=2)] * 2
    last = serve(ScriptedBackend(scripts), best())[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (2, 2 * (2 + 3 + 4), 0)


@pytest.mark.fault("B03")
def test_more_candidates_than_the_engine_takes_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        serve(ScriptedBackend([Script(b"x")]), best(best_of=9))
    assert caught.value.param == "best_of"


@pytest.mark.parametrize("quick", [0, 1])
def test_no_best_is_chosen_among_candidates_of_which_one_was_called_off(quick: int) -> None:
    """The one that had ended by itself once was the answer, though the other might have been better."""

    async def go() -> None:
        scripts = [Script(b"x" * 50_000, logprob=-9.0)] * 2
        scripts[quick] = Script(b"ab", logprob=-0.1)
        job = await service(ScriptedBackend(scripts)).prepare(replace(request(), best_of=2))
        task = asyncio.create_task(collect(job))
        for _ in range(60):
            await asyncio.sleep(0)
        job.cancel()
        assert {end.finish for end in done(await task).values()} == {Finish.ABORT}

    asyncio.run(go())


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.data())
def test_best_of_returns_what_all_of_its_candidates_would(seed: int, candidates: int, data: st.DataObject) -> None:
    """On the engine: the best of k is the best, by mean, of the k choices that n = k gives."""
    n = data.draw(st.integers(1, candidates - 1))
    asked = replace(request("once ", seed=seed), max_tokens=12, logprobs=0)
    everything = toy(replace(asked, n=candidates, best_of=candidates))
    means = {}
    for index in range(candidates):
        tokens = [token for event in everything if isinstance(event, ChoiceDelta) and event.index == index for token in event.tokens]
        means[index] = sum(token.logprob or 0.0 for token in tokens) / len(tokens)
    ranked = sorted(means, key=lambda index: (-means[index], index))
    chosen = toy(replace(asked, n=n, best_of=candidates))
    assert texts(chosen) == {rank: texts(everything)[index] for rank, index in enumerate(ranked[:n])}


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("ids", [False, True])
def test_the_echo_of_the_last_tokens_is_the_end_of_the_whole_echo(logprobs: int | None, ids: bool) -> None:
    """The same entries, and offsets that still count from the start of the prompt, in the middle of a character too."""
    prompt = "na\u00efve \u20ac!"
    asked = replace(request(prompt, echo=True, logprobs=logprobs), token_ids=ids, max_tokens=3)
    whole, size = entries(toy(replace(asked, token_ids=True))), len(prompt.encode())
    for last in range(12):
        events = toy(replace(asked, echo_last=last))
        kept = whole[max(0, size - last) :]
        assert texts(events)[0] == "".join(token.text for token in kept)
        assert entries(events) == (kept if ids or logprobs is not None else [])


def test_ids_come_without_log_probabilities() -> None:
    tokens = entries(toy(replace(request("ab", echo=True), token_ids=True, max_tokens=2)))
    assert [token.token for token in tokens[:2]] == [97, 98]
    assert len(tokens) == 4 and all(token.logprob is None for token in tokens)


@pytest.mark.parametrize(("least", "text", "finish"), [(0, "a", Finish.STOP), (4, "a<>b", Finish.STOP), (6, "a<>b", Finish.STOP)])
def test_stop_strings_end_nothing_before_min_tokens(least: int, text: str, finish: Finish) -> None:
    """One that begins before and completes with the last token that is needed counts."""
    asked = request(stop=("<>",))
    asked = replace(asked, sampling=replace(asked.sampling, min_tokens=least))
    events = serve(ScriptedBackend([Script(b"a<>b<>c")]), asked)
    assert (texts(events)[0], done(events)[0].finish) == (text, finish)


@pytest.mark.parametrize("least", [7, -1])
def test_min_tokens_beyond_every_stop_string_keep_the_whole_text(least: int) -> None:
    asked = request(stop=("<>", "<>c"))
    asked = replace(asked, sampling=replace(asked.sampling, min_tokens=least))
    events = serve(ScriptedBackend([Script(b"a<>b<><>", Finish.LENGTH)]), asked)
    assert texts(events)[0] == ("a<>b<>" if least == 7 else "a<>b<><>")


def test_min_tokens_that_are_lowered_with_max_tokens_are_lowered_for_stop_strings_too() -> None:
    """A stop string that completes with the last token that fits the context."""
    asked = replace(request("a" * (CONTEXT - 4)), max_tokens=512, truncate=True)
    asked = replace(asked, sampling=replace(asked.sampling, min_tokens=100))
    whole = texts(toy(asked))[0]
    events = toy(replace(asked, stop=StopRules((whole[-2:],))))
    assert (texts(events)[0], done(events)[0].finish) == (whole[:-2], Finish.STOP)


def test_timing_splits_the_time_at_the_first_step_and_at_the_first_token() -> None:
    """Arrival at 0, submission at 1, one step each second; the sequence waited half a second."""
    ticks = itertools.count()
    backend = ScriptedBackend([Script(b"abc", waited=0.5)], step_budget=(1,))

    async def go() -> list[Event]:
        return await collect(await service(backend, lambda: float(next(ticks))).prepare(request(logprobs=0, echo=True)))

    last = asyncio.run(go())[-1]
    assert isinstance(last, Finished)
    assert last.timing == Timing(queue=0.5, prompt=3 - 1 - 0.5, completion=3.0, total=6.0)
