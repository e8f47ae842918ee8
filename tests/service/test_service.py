"""The service against a scripted backend: fan-out, refusals, joining and counting."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.preparing import service
from tests.support.scripted_backend import PIECES, Script, ScriptedBackend, done, request, serve, texts

from quintet.backends.base import State
from quintet.errors import BadRequest, EngineFailed, Loading, Overloaded, PromptTooLong, QuintetError
from quintet.events import ChoiceDelta, ChoiceDone, DraftCounts, Event, Finish, Finished, TokenEvent, Usage
from quintet.inputs.sequence import Prepared, PreparedSequence, Urgency
from quintet.request import CompletionRequest
from quintet.service import service as module
from quintet.service.fan_out import choices_of
from quintet.text.labels import Labels


def test_choices_are_numbered_prompts_by_samples_with_one_seed_each() -> None:
    """Sample j of each prompt draws with seed + j, modulo 2**64; without a seed of the client's no two choices draw alike."""
    for seeded, seeds in ((True, [2**64 - 1, 0, 2**64 - 1, 0]), (False, [2**64 - 1, 0, 1, 2])):
        backend = ScriptedBackend([Script(b"x")])
        asked = request("a", (98,), n=2, seed=2**64 - 1)
        events = serve(backend, replace(asked, sampling=replace(asked.sampling, seeded=seeded)))
        assert [spec.prompt for spec in backend.specs] == ["a", "a", (98,), (98,)]
        assert [spec.sampling.seed for spec in backend.specs] == seeds
        assert {index: event.seed for index, event in done(events).items()} == dict(enumerate(seeds))


@pytest.mark.fault("H08")
def test_a_prompt_counts_once_and_as_cached_only_what_no_sample_computed() -> None:
    first = [Script(b"12", cached=0), Script(b"345", Finish.LENGTH, cached=2)]
    second = [Script(b"", cached=1), Script(b"6", cached=3)]
    events = serve(ScriptedBackend([*first, *second]), request("ab", "cde", n=2))
    assert events[-1] == Finished(Usage(prompt_tokens=5, completion_tokens=3 + 3 + 1 + 2, cached_tokens=0 + 1))


@pytest.mark.parametrize(
    ("stream", "fields", "urgency"),
    [
        (True, {}, Urgency.SOON),
        (False, {}, Urgency.END),
        (False, {"n": 2, "logprobs": 1, "echo": True}, Urgency.END),
        (True, {"stop": ("<>",)}, Urgency.NOW),
        (False, {"stop": ("<>",)}, Urgency.NOW),
    ],
)
def test_tokens_are_wanted_with_their_step_where_the_text_may_end_what_runs_and_only_streams_are_shown_before_their_end(
    stream: bool, fields: dict[str, Any], urgency: Urgency
) -> None:
    backend = ScriptedBackend([Script(b"x"), Script(b"x")])
    asked = replace(request("a", **fields), stream=stream)
    job = asyncio.run(service(backend).prepare(asked))
    job.start()
    assert (backend.urgency, backend.shown) == (urgency, stream)


def test_what_the_engine_drafts_by_itself_is_no_client_s_prediction() -> None:
    scripts = [Script(b"12", drafts=DraftCounts(1, 2, 3)), Script(b"345", Finish.LENGTH, drafts=DraftCounts(2, 1, 4))]
    assert serve(ScriptedBackend(scripts), request("ab", n=2))[-1] == Finished(
        Usage(prompt_tokens=2, completion_tokens=6), drafts=DraftCounts(3, 3, 7)
    )


def test_all_choices_follow_one_prediction_whose_index_is_made_once() -> None:
    """It is two hundred bytes for each of its tokens."""
    sampling, tokens = request().sampling, tuple(range(300, 20_300))
    asked = replace(request("a", "b", n=32), prediction=tokens)
    sequences = tuple(PreparedSequence((97,), 9, sampling, None, False, prediction=tokens) for _ in range(64))
    choices = choices_of(asked, Prepared(1, sequences), ["a", "b"], [], [], Labels(PIECES))
    tracemalloc.start()
    try:
        for choice in choices:
            for _ in range(3):
                choice.feed(TokenEvent(0, 97, b"a"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 400 * len(tokens)
    assert {choice.predicted for choice in choices} == {(0, len(tokens))}


@pytest.mark.fault("H08")
def test_a_stop_aborts_its_sequence_only_and_later_tokens_are_neither_shown_nor_counted() -> None:
    backend = ScriptedBackend([Script(b"ab<>cdefghij", cached=1), Script(b"abcdef", cached=1)], abort_lag=2)
    events = serve(backend, request("a", "b", stop=("<>",)))
    assert texts(events) == {0: "ab", 1: "abcdef"}
    assert done(events) == {0: ChoiceDone(0, Finish.STOP, "<>", 5, tokens=4), 1: ChoiceDone(1, Finish.EOS, "", 6, tokens=7)}
    assert backend.aborts == [(backend.request_id, 0)]
    assert events[-1] == Finished(Usage(2, 4 + 7, cached_tokens=2))


def test_a_stop_on_the_last_token_aborts_nothing() -> None:
    backend = ScriptedBackend([Script(b"ab", Finish.LENGTH)])
    assert done(serve(backend, request(stop=("b",))))[0].finish is Finish.STOP
    assert backend.aborts == []


def test_an_engine_error_after_a_stop_does_not_spoil_the_choice() -> None:
    backend = ScriptedBackend([Script(b"a<>", Finish.ERROR)], abort_lag=9)
    events = serve(backend, request(stop=("<>",)))
    assert texts(events) == {0: "a"}
    assert isinstance(events[-1], Finished)


def test_echo_without_logprobs_needs_no_prompt_tokens_from_the_engine() -> None:
    backend = ScriptedBackend([Script(b"x")])
    events = serve(backend, request("e\u0301 ", tuple("€".encode()), echo=True))
    assert [spec.echo for spec in backend.specs] == [False, False]
    assert texts(events) == {0: "e\u0301 x", 1: "€x"}


def test_echo_with_logprobs_has_every_prompt_token_and_the_offsets_of_a_plain_answer() -> None:
    plain = serve(ScriptedBackend([Script("é!".encode())]), request("€", logprobs=0))
    echoed = serve(ScriptedBackend([Script("é!".encode())]), request("€", logprobs=0, echo=True))

    def entries(events: list[Event]) -> list[tuple[str, int]]:
        return [(token.text, token.offset) for event in events if isinstance(event, ChoiceDelta) for token in event.tokens]

    assert entries(plain) == [("", 1), ("é", 1), ("!", 2), ("", 3)]
    assert entries(echoed) == [("", 0), ("", 0), ("€", 0), *entries(plain)]


MOST = "must give at most 8 choices (prompts times n), which is this server's limit (--max-choices)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(logprobs=6), "'logprobs' must be at most 5, got 6."),
        (request(n=9), f"'n' {MOST}, got 1 prompt with n = 9."),
        (request(*"abc", n=3), f"'prompt' {MOST}, got 3 prompts with n = 3."),
    ],
)
def test_what_the_engine_does_not_offer_is_refused_by_name(asked: CompletionRequest, message: str) -> None:
    backend = ScriptedBackend([Script(b"x")])
    with pytest.raises(BadRequest) as caught:
        serve(backend, asked)
    assert str(caught.value) == message
    assert backend.specs == []


@pytest.mark.fault("B02")
def test_prompts_times_samples_are_bounded_though_neither_is_many() -> None:
    """8 are as many as this engine offers."""
    with pytest.raises(BadRequest, match="3 prompts with n = 3"):
        serve(ScriptedBackend([]), request("a", "b", "c", n=3))


@pytest.mark.fault("B01", "B02")
def test_a_huge_fan_out_is_refused_before_it_is_spelled_out() -> None:
    with pytest.raises(BadRequest):
        serve(ScriptedBackend([]), request(*["x"] * 1000, n=10**12))


def test_more_choices_than_there_is_room_for_are_refused_before_they_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_backend: ScriptedBackend, count: int, _tenant: str = "", *, begun: bool = False) -> None:
        if count > 3:
            raise Overloaded("The queue is full")

    monkeypatch.setattr(ScriptedBackend, "require_room", full)
    monkeypatch.setattr(module, "specs_of", None)
    for asked in (request(n=4), replace(request(n=1), best_of=4), request(*"ab", n=2)):
        with pytest.raises(Overloaded):
            serve(ScriptedBackend([]), asked)


@pytest.mark.parametrize(
    ("state", "error"),
    [(State.LOADING, Loading), (State.DEAD, EngineFailed), (State.DRAINING, Overloaded), (State.CLOSED, Overloaded)],
)
def test_an_engine_that_takes_no_work_refuses_before_anything_is_read_of_it(state: State, error: type[QuintetError]) -> None:
    with pytest.raises(error):
        serve(ScriptedBackend([Script(b"x")], state=state), request())


def test_what_the_backend_refuses_is_raised_by_prepare() -> None:
    backend = ScriptedBackend([Script(b"x")], refuse=PromptTooLong("prompt", "must fit"))
    with pytest.raises(PromptTooLong):
        asyncio.run(service(backend).prepare(request()))
    assert backend.submitted == 0


def test_the_events_of_a_step_come_together() -> None:
    async def go() -> None:
        backend = ScriptedBackend([Script(b"x")], step_budget=(1,))
        job = await service(backend).prepare(request(*"abcd"))
        assert [[type(event) for event in batch] async for batch in job.events()] == [[ChoiceDelta] * 4, [ChoiceDone] * 4 + [Finished]]

    asyncio.run(go())


GENERATED = st.lists(st.sampled_from([b"a", b"b", b"<", b">", "€".encode(), b"\xe2"]), max_size=8).map(b"".join)


@settings(deadline=None)
@given(st.lists(st.builds(Script, GENERATED), min_size=1, max_size=6), st.integers(0, 999), st.integers(0, 999), st.sampled_from([None, 1]))
def test_how_tokens_fall_into_steps_changes_nothing(scripts: list[Script], one: int, other: int, logprobs: int | None) -> None:
    """Text, entries, finishes and usage of a request that no one disturbs are a function of its tokens."""
    asked = request(*["p"] * len(scripts), logprobs=logprobs, stop=("<>", "b€"))

    def outcome(seed: int) -> object:
        events = serve(ScriptedBackend(scripts, random.Random(seed)), asked)
        tokens = [(event.index, token) for event in events if isinstance(event, ChoiceDelta) for token in event.tokens]
        return texts(events), sorted(tokens, key=lambda entry: entry[0]), done(events), events[-1]

    assert outcome(one) == outcome(other)
