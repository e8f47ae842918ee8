"""A request whose prompt and outputs are judged: what may be seen, what is told of the rest, and that nothing else changes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.guard import FORM, Guard, judged, moderator
from tests.support.preparing import preparer_of
from tests.support.scripted_backend import Script, ScriptedBackend, collect, done, encode, request, texts

from quintet.backends.base import State
from quintet.errors import EngineFailed, Loading, PromptTooLong, QuintetError, TooManyRequests, UnsafePrompt
from quintet.events import Blame, ChoiceDelta, ChoiceDone, DraftCounts, Event, Failed, Finish, Finished, Flagged, TokenEvent, Usage
from quintet.inputs.sequence import Prepared
from quintet.moderation.judge import AT_ONCE
from quintet.request import CompletionRequest
from quintet.service.job import Job
from quintet.service.moderated import CHUNK_TOKENS, FIRST_TOKENS
from quintet.service.service import Service

LONG = b"one two three four five six seven eight nine ten eleven twelve"
BAD = b"one two three four five six BAD eight nine ten eleven twelve"
FOUND = Flagged("guard", (("S2", "Weapons"), ("S10", "Lies")))


async def prepared(backend: ScriptedBackend, guard: Guard, asked: CompletionRequest, **more: Any) -> Job:
    told: Callable[[str, str, float], None] = more.get("told", lambda *_: None)
    judging = moderator(guard, more.get("form", FORM), told)
    service = Service(backend, preparer_of(backend), lambda: 0.0, moderator=judging)
    return await service.prepare(replace(asked, safety_model="guard"))


def serve(backend: ScriptedBackend, guard: Guard, asked: CompletionRequest | None = None, **more: Any) -> list[Event]:
    async def go() -> list[Event]:
        events = await collect(await prepared(backend, guard, asked or request(), **more))
        await guard.close()
        return events

    return asyncio.run(asyncio.wait_for(go(), 60))


def backend(*scripts: bytes, seed: int = 0, **settings: Any) -> ScriptedBackend:
    return ScriptedBackend([Script(text) for text in scripts], random.Random(seed), **settings)


def test_what_is_safe_comes_through_as_it_is_and_every_chunk_is_judged_with_all_before_it() -> None:
    guard = Guard()
    events = serve(backend(LONG), guard)
    assert texts(events) == {0: LONG.decode()}
    assert done(events) == {0: ChoiceDone(0, Finish.EOS, "", 5, tokens=len(LONG) + 1)}
    assert events[-1] == Finished(Usage(1, len(LONG) + 1))
    assert guard.asked[0] == "judge <p>"
    ends = [FIRST_TOKENS, *range(FIRST_TOKENS + CHUNK_TOKENS, len(LONG), CHUNK_TOKENS), len(LONG)]
    assert [judged(text) for text in guard.asked[1:]] == [LONG[:end].decode() for end in ends]
    assert all(text.startswith("judge <p|") for text in guard.asked[1:])


def test_what_became_of_drafts_is_told_in_the_end_as_without_a_guard() -> None:
    drafts = DraftCounts(2, 3, 1)
    events = serve(ScriptedBackend([Script(LONG, drafts=drafts)], random.Random(0)), Guard())
    assert events[-1] == Finished(Usage(1, len(LONG) + 1), drafts=drafts)


def test_what_the_guard_has_cached_for_one_key_no_other_is_told_of_by_its_time() -> None:
    salts: list[bytes] = []

    class Noting(Guard):
        def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
            salts.extend(sequence.salt for sequence in prepared.sequences)
            return super().submit(prepared)

    for salt in ("a key's", "another's"):
        serve(backend(LONG), Noting(), replace(request(), cache_salt=salt))
    half = len(salts) // 2
    assert half > 2
    assert ({*salts[:half]}, {*salts[half:]}) == ({salts[0]}, {salts[-1]})
    assert salts[0] != salts[-1] and all(salts)


def test_a_guard_that_drains_judges_what_is_under_way_to_its_end() -> None:
    guard = Guard()

    def bad(text: str) -> bool:
        if text != "p":
            guard.state = State.DRAINING
        return False

    guard.bad = bad
    events = serve(backend(LONG), guard)
    assert texts(events) == {0: LONG.decode()}
    assert events[-1] == Finished(Usage(1, len(LONG) + 1))


def test_an_unsafe_output_ends_before_the_chunk_in_which_it_is_and_its_sequence_is_stopped() -> None:
    played = backend(BAD, step_budget=(1,))
    events = serve(played, Guard())
    shown = FIRST_TOKENS + CHUNK_TOKENS
    assert texts(events) == {0: BAD[:shown].decode()}
    assert done(events) == {0: ChoiceDone(0, Finish.FILTER, "", 5, FOUND, tokens=FIRST_TOKENS + 2 * CHUNK_TOKENS)}
    assert events[-1] == Finished(Usage(1, shown + CHUNK_TOKENS)), "what was generated and judged counts"
    assert played.aborts == [(played.request_id, 0)]


@pytest.mark.parametrize("scripts", [(LONG, BAD), (BAD, LONG)])
def test_of_several_choices_only_the_unsafe_one_ends(scripts: tuple[bytes, bytes]) -> None:
    events = serve(backend(*scripts), Guard(), request(n=2))
    bad, good = scripts.index(BAD), scripts.index(LONG)
    assert texts(events) == {bad: BAD[:20].decode(), good: LONG.decode()}
    assert {index: one.finish for index, one in done(events).items()} == {bad: Finish.FILTER, good: Finish.EOS}
    assert done(events)[bad].seed == 5 + bad


def test_an_unsafe_prompt_is_refused_before_anything_is_generated() -> None:
    played = backend(LONG)
    with pytest.raises(UnsafePrompt, match=r"^'prompt' was judged unsafe by guard: S2 \(Weapons\), S10 \(Lies\)\.$"):
        serve(played, Guard(), request("so BAD"))
    with pytest.raises(UnsafePrompt, match=r"^'prompt\[1\]' was judged unsafe"):
        serve(played, Guard(), request("good", "so BAD"))
    assert played.submitted == 0


def test_each_prompt_is_judged_once_and_its_outputs_with_it() -> None:
    guard = Guard()
    serve(backend(b"xy"), guard, request("a", "b", "a", n=2))
    assert guard.asked[:2] == ["judge <a>", "judge <b>"]
    assert sorted(guard.asked[2:]) == ["judge <a|xy>"] * 4 + ["judge <b|xy>"] * 2


def test_an_echo_is_not_judged_again_and_entries_come_through() -> None:
    guard = Guard()
    events = serve(backend(BAD), guard, request("say", logprobs=0, echo=True))
    assert texts(events) == {0: "say" + BAD[:20].decode()}
    deltas = [event for event in events if isinstance(event, ChoiceDelta)]
    assert "".join(token.text for delta in deltas for token in delta.tokens) == "say" + BAD[:20].decode()
    assert guard.asked[:2] == ["judge <say>", f"judge <say|{BAD[:4].decode()}>"]


def test_a_stop_string_ends_it_as_ever() -> None:
    events = serve(backend(LONG), Guard(), request(stop=("six",)))
    assert texts(events) == {0: "one two three four five "}
    assert done(events)[0].finish is Finish.STOP


def test_the_best_of_several_candidates_are_judged_as_they_are_told() -> None:
    played = ScriptedBackend([Script(BAD, logprob=-0.1), Script(LONG, logprob=-0.2), Script(b"worst", logprob=-9.0)])
    events = serve(played, Guard(), replace(request(n=2), best_of=3))
    assert texts(events) == {1: LONG.decode()}
    assert {index: one.finish for index, one in done(events).items()} == {0: Finish.FILTER, 1: Finish.EOS}
    assert events[-1] == Finished(Usage(1, len(BAD) + 1 + len(LONG) + 1 + len(b"worst") + 1))


WORDS = st.lists(st.sampled_from([b"a", b" b", b"BAD", b"BA", b"D", "€".encode(), b"<", b"<>", b"longer words "]), max_size=30).map(
    b"".join
)


@pytest.mark.fault("C13")
@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=3), st.integers(0, 99), st.sampled_from([None, 1]), st.booleans())
def test_no_unsafe_text_is_ever_shown_whatever_the_chunks_and_nothing_depends_on_who_is_faster(
    scripts: list[bytes], seed: int, logprobs: int | None, slow: bool
) -> None:
    """What was told up to any moment is a text that the guard calls safe; all of it is a function of the tokens alone."""
    asked = request(n=len(scripts), logprobs=logprobs, stop=("<>",))

    def outcome(seed: int, pause: float) -> tuple[object, list[Event]]:
        events = serve(backend(*scripts, seed=seed), Guard(pause=pause), asked)
        return (texts(events), done(events), events[-1]), events

    first, events = outcome(seed, 0.0005 if slow else 0.0)
    shown = dict.fromkeys(range(len(scripts)), "")
    for event in events:
        if isinstance(event, ChoiceDelta):
            shown[event.index] += event.text
            assert "BAD" not in shown[event.index]
    assert first == outcome(seed + 1, 0.0)[0]
    for index, script in enumerate(scripts):
        text = script.split(b"<>")[0].decode()
        ended = done(events)[index].finish
        assert (shown[index] == text) if "BAD" not in text else (ended is Finish.FILTER and text.startswith(shown[index]))


def test_one_chunk_of_a_choice_is_judged_at_a_time_while_the_next_is_generated() -> None:
    guard = Guard(pause=0.001)
    played = backend(LONG, step_budget=(9,))
    serve(played, guard)
    assert guard.most_running == 1
    other = Guard(pause=0.001)
    serve(backend(LONG, LONG, step_budget=(9,)), other, request(n=2))
    assert other.most_running == 2


def test_a_request_of_many_choices_takes_no_more_of_the_guards_queue_than_there_is_for_one() -> None:
    """It had been asked whether there was room for one text, and most of the choices ended in an error."""
    asked_of_each = 4

    class Queue(Guard):
        """As an engine's: who has a part of it leaves as much as it takes."""

        def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
            own = asked_of_each * len(self.running)
            if own and own + count > 40 - own - count:
                raise TooManyRequests("This API key has its share of the queue; try again later.")

        def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
            self.running.add(prepared.request_id)
            return super().submit(prepared)

    guard = Queue(pause=0.001)
    events = serve(backend(LONG, step_budget=(9,)), guard, request(n=8), form=replace(FORM, questions=FORM.questions * asked_of_each))
    assert texts(events) == dict.fromkeys(range(8), LONG.decode())
    assert guard.most_running == AT_ONCE // asked_of_each


@pytest.mark.parametrize(("state", "error"), [(State.LOADING, Loading), (State.DEAD, EngineFailed)])
def test_without_a_guard_there_is_an_error_and_no_text(state: State, error: type[QuintetError]) -> None:
    played = backend(LONG)
    with pytest.raises(error):
        serve(played, Guard(state=state))
    assert played.submitted == 0


@pytest.mark.fault("C13")
@pytest.mark.parametrize("judgements", [1, 2, 3])
def test_a_guard_that_dies_ends_the_request_with_what_it_had_called_safe(judgements: int) -> None:
    told: list[tuple[str, str]] = []
    played = backend(LONG, step_budget=(1,))
    events = serve(played, Guard(dies_after=judgements), told=lambda what, verdict, _: told.append((what, verdict)))
    shown = {1: 0, 2: FIRST_TOKENS, 3: FIRST_TOKENS + CHUNK_TOKENS}[judgements]
    assert "".join(texts(events).values()) == LONG[:shown].decode()
    assert events[-1] == Failed("The moderation model failed.")
    assert (played.request_id, None) in played.aborts
    assert told == [("prompt", "safe"), *[("output", "safe")] * (judgements - 1), ("output", "failed")]


def test_a_failure_is_the_last_event_whatever_else_was_judged_at_the_same_time() -> None:
    """Whoever counts the ends of choices would count one more than there are."""

    class Unclear(Guard):
        def _answer(self, text: str) -> bytes:
            return b"none" if text == "odd" else super()._answer(text)

    events = serve(backend(b"one", b"odd", b"two", step_budget=(9,)), Unclear(), request(n=3))
    assert [event for event in events if isinstance(event, Failed)] == [events[-1]]
    assert (texts(events), set(done(events))) == ({0: "one"}, {0})


def test_a_guard_that_is_started_again_meanwhile_is_waited_for_until_it_is_given_up() -> None:
    """As a judgement is that was under way: a client would lose an answer of which it has a part."""

    class Restarting(Guard):
        tries = 0

        def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
            self.tries += self.state is not State.READY
            if 0 < self.tries <= 3:
                raise Loading("The engine has failed, and is being started again.")

    async def go(state: State) -> tuple[list[Event], int]:
        guard = Restarting()
        job = await prepared(backend(LONG), guard, request())
        guard.state = state
        return await collect(job), guard.tries

    events, tries = asyncio.run(go(State.LOADING))
    assert (texts(events), tries > 3) == ({0: LONG.decode()}, True)
    assert events[-1] == Finished(Usage(1, len(LONG) + 1))
    events, tries = asyncio.run(go(State.DEAD))
    assert (events, tries) == ([Failed("The engine has failed, and is being started again.", Blame.LOAD)], 1)


def test_an_answer_in_other_terms_is_no_verdict() -> None:
    with pytest.raises(EngineFailed, match="'guard' did not say whether the text is safe"):
        serve(backend(LONG), Guard(says=b"   maybe"))
    with pytest.raises(EngineFailed, match="did not say"):
        serve(backend(LONG), Guard(says=b"     "))


def test_what_does_not_fit_the_guards_context_is_refused_and_never_shown_unjudged() -> None:
    with pytest.raises(PromptTooLong, match="'safety_model' must be a model whose context holds what it is to judge"):
        serve(backend(LONG), Guard(context=64), request("a" * 60))
    events = serve(backend(LONG), Guard(context=80))
    assert isinstance(events[-1], Failed)
    assert events[-1].blame is Blame.REQUEST
    assert LONG.decode().startswith(texts(events)[0])
    assert len(texts(events)[0]) < 80 - 32


def test_cancelling_stops_the_completion_and_the_judgement_and_shows_nothing_more() -> None:
    async def go() -> None:
        guard = Guard()
        played = backend(LONG, step_budget=(1,))
        job = await prepared(played, guard, request())
        guard.pause = 60
        events = job.events()
        reading = asyncio.ensure_future(collect_from(events))
        while not guard.running:
            await asyncio.sleep(0)
        job.cancel()
        told = await reading
        assert texts(told) == {}
        assert done(told)[0].finish is Finish.ABORT
        assert isinstance(told[-1], Finished)
        await job.settled()
        assert not guard.running
        assert (played.request_id, None) in played.aborts
        assert guard.aborted

    async def collect_from(events: Any) -> list[Event]:
        return [event for batch in [batch async for batch in events] for event in batch]

    asyncio.run(asyncio.wait_for(go(), 60))


def test_cancelling_what_was_generated_and_not_yet_judged_ends_it() -> None:
    async def go() -> None:
        guard = Guard()
        played = backend(b"abc")
        job = await prepared(played, guard, request())
        guard.pause = 60
        reading = asyncio.ensure_future(collect(job))
        while not guard.running or played.running:
            await asyncio.sleep(0)
        job.cancel()
        told = await reading
        assert (texts(told), done(told)[0].finish) == ({}, Finish.ABORT)
        assert isinstance(told[-1], Finished)

    asyncio.run(asyncio.wait_for(go(), 60))


def test_leaving_early_stops_both() -> None:
    async def go() -> None:
        guard = Guard()
        played = backend(LONG, step_budget=(1,))
        events = (await prepared(played, guard, request())).events()
        assert texts(await anext(events)) == {0: "one "}
        await events.aclose()
        assert not guard.running
        assert played.closed_iterators == 1

    asyncio.run(go())


def test_without_a_safety_model_nobody_is_asked() -> None:
    async def go() -> None:
        played = backend(BAD)
        job = await Service(played, preparer_of(played), lambda: 0.0).prepare(request())
        assert type(job) is Job
        assert texts(await collect(job)) == {0: BAD.decode()}

    asyncio.run(go())


def test_bytes_of_a_prompt_of_ids_are_judged_as_its_text() -> None:
    guard = Guard()
    serve(backend(b"x"), guard, request(encode("ab")))
    assert guard.asked[0] == "judge <ab>"
