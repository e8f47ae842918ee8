"""Beam search gives what vLLM's gives: against an oracle in numpy over the toy's logits that shares no code with it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import Answer, acall
from tests.server.one import create_app
from tests.server.toy import toy_app
from tests.support.preparing import service
from tests.support.scripted_backend import ScriptedBackend, collect, request

from quintet.backends.base import Backend
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import Batch
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, ToyRunner, toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.errors import BadRequest, EngineFailed
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, TokenEvent, Usage
from quintet.inputs.capabilities import Control
from quintet.inputs.sequence import Prepared
from quintet.request import Beams, Dry, Sampling
from quintet.service import beams
from quintet.service.beams import HEEDED, require_beams
from quintet.service.job import Job
from quintet.text.choice import Choice

LONG = 96


@cache
def logprobs(tokens: tuple[int, ...]) -> Any:
    """Of each token after these, float64 [257]."""
    runner, size = ToyRunner(), len(tokens)
    runner.allocate(LONG // PAGE)
    one = np.zeros(1, np.int32)
    batch = Batch(
        np.array(tokens, np.int32), np.array([size], np.int32), one, np.arange(LONG // PAGE, dtype=np.int32)[None], one + size - 1
    )
    row = runner.logits(runner.forward(batch))[0].astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def oracle(prompt: bytes, n: int, most: int, penalty: float, ends: bool, early: bool) -> list[tuple[tuple[int, ...], float]]:
    """The best beams and their sums, after vLLM's description; over all tokens at once."""
    live, complete = [((), 0.0)], list[tuple[tuple[int, ...], float]]()
    for _ in range(most):
        table = np.array([total + logprobs((*prompt, *beam)) for beam, total in live])
        for row, (beam, _) in enumerate(live):
            if ends and EOS in np.argsort(-table[row])[: 2 * n]:  # only what is among the likeliest is seen at all
                complete.append(((*beam, EOS), table[row, EOS]))
        if ends:
            table[:, EOS] = -np.inf
        order = np.argsort(-table, axis=None)[:n]
        live = [((*live[at // 257][0], int(at % 257)), float(table.flat[at])) for at in order]
        if early and len(complete) >= n:
            live = []
            break

    def score(beam: tuple[int, ...], total: float) -> float:
        """vLLM's ``get_beam_search_score``, whose tokens include the prompt, and not the EOS that ended a beam."""
        length = len(prompt) + len(beam) - (ends and beam[-1] == EOS)
        return float(total / length**penalty)

    return sorted([*complete, *live], key=lambda one: -score(*one))[:n]


def posted(*bodies: dict[str, Any]) -> list[Answer]:
    async def ask() -> list[Answer]:
        async with toy_app("cerebras") as app:
            return [await acall(app, json.dumps({"use_beam_search": True, **body}).encode()) for body in bodies]

    return asyncio.run(ask())


CASES = [
    (prompt, n, penalty, ignore, early)
    for prompt in (b"Once upon", b"The end. ")
    for n, penalty in ((1, 1.0), (2, 1.0), (4, 0.0), (3, 2.0), (4, -1.0), (8, 1.0))
    for ignore, early in ((False, False), (True, False), (False, True))
]


@pytest.mark.parametrize("most", [1, 9])
def test_the_choices_are_the_best_beams_in_their_order_with_their_log_probabilities(most: int) -> None:
    asked = [
        {"prompt": p.decode(), "n": n, "max_tokens": most, "length_penalty": lp, "ignore_eos": i, "early_stopping": e, "logprobs": 2}
        | {"return_token_ids": True}
        for p, n, lp, i, e in CASES
    ]
    ended = 0
    for (prompt, n, penalty, ignore, early), answer in zip(CASES, posted(*asked), strict=True):
        assert answer.status == 200, answer.body
        wanted = oracle(prompt, n, most, penalty, not ignore, early)
        choices = answer.json()["choices"]
        assert [tuple(choice["token_ids"]) for choice in choices] == [beam for beam, _ in wanted], (prompt, n, penalty, ignore, early)
        sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
        assert sums == pytest.approx([total for _, total in wanted], abs=1e-4)
        for choice, (beam, _) in zip(choices, wanted, strict=True):
            end = beam[-1] == EOS and not ignore
            ended += end
            assert choice["text"] == bytes(token for token in beam if token != EOS).decode("utf-8", "replace")
            assert choice["finish_reason"] == ("stop" if end else "length")
        assert answer.json()["usage"]["completion_tokens"] == sum(len(beam) for beam, _ in wanted)
    assert ended or most == 1


def test_prompts_in_a_list_are_searched_each_by_itself_and_nothing_is_left_to_chance() -> None:
    asked: dict[str, Any] = {"prompt": ["Once upon", "A cat"], "n": 3, "max_tokens": 5, "temperature": 1.0}
    several, first, second, again = posted(asked, {**asked, "prompt": "Once upon"}, {**asked, "prompt": "A cat"}, {**asked, "seed": 5})
    texts = [[choice["text"] for choice in answer.json()["choices"]] for answer in (several, first, second, again)]
    assert texts[0] == texts[1] + texts[2] == texts[3]
    assert several.json()["usage"]["prompt_tokens"] == len("Once upon") + len("A cat")


def test_no_tokens_are_no_search() -> None:
    (answer,) = posted({"prompt": "a", "n": 2, "max_tokens": 0})
    assert [(choice["text"], choice["finish_reason"]) for choice in answer.json()["choices"]] == [("", "length")] * 2
    assert answer.json()["usage"]["prompt_tokens"] == 1


ON: dict[Control, Any] = {
    Control.TOP_P: 0.5,
    Control.TOP_K: 3,
    Control.MIN_P: 0.5,
    Control.MIN_PROBABILITY: 0.5,
    Control.TYPICAL_P: 0.5,
    Control.TOP_N_SIGMA: 1.0,
    Control.XTC: 0.5,
    Control.REPETITION_PENALTY: 1.1,
    Control.FREQUENCY_PENALTY: 1.0,
    Control.PRESENCE_PENALTY: 1.0,
    Control.DRY: Dry(1.0),
    Control.MIROSTAT: 5.0,
    Control.LOGIT_BIAS: ((5, 1.0),),
    Control.ALLOWED_TOKEN_IDS: (5,),
    Control.BAD_WORDS: ("a",),
    Control.MIN_TOKENS: 1,
    Control.STOP_TOKEN_IDS: (5,),
}


@pytest.mark.parametrize("control", [control for control in Control if control not in HEEDED], ids=str)
def test_every_control_that_a_search_does_not_heed_is_refused_by_the_name_of_its_field(control: Control) -> None:
    """``min_p`` is two controls, of which one was forgotten."""
    asked = replace(request(n=2), sampling=replace(Sampling(1.0, 1.0, 0), **{control.value: ON[control]}), beams=Beams())
    with pytest.raises(BadRequest, match=f"'{control.param}' cannot be combined with use_beam_search"):
        require_beams(asked, ScriptedBackend([]).capabilities, moderated=False)


def test_what_of_a_prompt_was_in_the_cache_is_told_of_a_search_as_of_any_other_request() -> None:
    asked: dict[str, Any] = {"prompt": "Once upon a time, " * 20, "n": 2, "max_tokens": 3}
    first, again, plain = posted(asked, asked, {**asked, "use_beam_search": False, "n": 1})
    cached = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again, plain)]
    assert cached[0] == 0 < cached[1] <= cached[2]


def test_a_choice_is_told_with_the_seed_that_was_sent() -> None:
    async def ask() -> Answer:
        async with toy_app("together") as app:
            return await acall(app, json.dumps({"prompt": "Once", "max_tokens": 2, "n": 2, "use_beam_search": True, "seed": 42}).encode())

    assert [choice["seed"] for choice in asyncio.run(ask()).json()["choices"]] == [42, 42]


@pytest.mark.parametrize("found", [False, True])
def test_a_search_that_is_called_off_has_used_its_prompt_and_the_tokens_of_its_beams(found: bool) -> None:
    async def ask() -> Usage:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22, speculation=False))) as engine:
            asked = replace(request("Once upon a time. " * 4), n=2, best_of=2, max_tokens=900, beams=Beams())
            asked = replace(asked, sampling=replace(asked.sampling, ignore_eos=True))
            jobs = service(engine)
            if found:
                await collect(await jobs.prepare(replace(asked, max_tokens=1)))
            job = await jobs.prepare(asked)
            task = asyncio.create_task(collect(job))
            while job.usage.completion_tokens < 10:
                await asyncio.sleep(0.001)
            job.cancel()
            last = (await task)[-1]
            assert isinstance(last, Finished) and last.usage == job.usage
            return last.usage

    usage = asyncio.run(ask())
    assert (usage.prompt_tokens, usage.cached_tokens > 0) == (72, found)
    assert 10 <= usage.completion_tokens < 1800


def test_at_the_deadline_of_a_search_whose_prompt_was_in_the_cache_the_client_is_told_so() -> None:
    """It once was a 500, as fewer tokens seemed to be computed than were found."""

    async def ask() -> Answer:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22, speculation=False))) as engine:
            asked = {"prompt": "Once upon a time. " * 4, "n": 2, "use_beam_search": True, "ignore_eos": True}
            assert (await acall(create_app(engine, ServerConfig(), ("toy",)), {**asked, "max_tokens": 2})).status == 200
            return await acall(create_app(engine, ServerConfig(timeout=0.3), ("toy",)), {**asked, "max_tokens": 3000})

    answer = asyncio.run(ask())
    assert (answer.status, answer.header("x-should-retry")) == (504, "false"), answer.body


def test_an_engine_that_is_dead_between_two_steps_of_a_search_is_no_load() -> None:
    async def ask() -> Answer:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
            asked = {"prompt": "Once", "n": 2, "max_tokens": 5, "use_beam_search": True}
            require, calls = engine.require_room, [0]

            def room(count: int, tenant: str = "", *, begun: bool = False) -> None:
                calls[0] += 1
                if calls[0] > 3:
                    raise EngineFailed("The engine is dead.")
                require(count, tenant, begun=begun)

            engine.require_room = room  # type: ignore[method-assign]
            return await acall(create_app(engine, ServerConfig(), ("toy",)), asked)

    assert asyncio.run(ask()).status == 500


def test_a_search_that_was_taken_is_finished_though_the_server_drains_between_two_steps() -> None:
    async def ask() -> tuple[Answer, Answer]:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
            app = create_app(engine, ServerConfig(), ("toy",))
            asked = {"prompt": "Once", "n": 2, "max_tokens": 5, "use_beam_search": True, "ignore_eos": True}
            whole, submit, calls = await acall(app, asked), engine.submit, [0]

            def drained(prepared: Prepared) -> Any:
                calls[0] += 1
                if calls[0] == 2:
                    engine.drain()
                return submit(prepared)

            engine.submit = drained  # type: ignore[method-assign]
            return whole, await acall(app, asked)

    whole, answer = asyncio.run(ask())
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["choices"] == json.loads(whole.body)["choices"]


def test_searches_never_have_more_in_the_engine_than_its_queue_holds() -> None:
    """Each begins with one sequence and goes on with six, which count as any others do: one that finds no room for them waits."""

    async def ask() -> tuple[int, list[int]]:
        config = EngineConfig(kv_bytes=1 << 22, max_running=2, max_waiting=10, speculation=False)
        async with ready(Engine(toy_loader(), config)) as engine:
            app, submit, most = create_app(engine, ServerConfig(), ("toy",)), engine.submit, [0]

            def seen(prepared: Prepared) -> Any:
                stream = submit(prepared)
                most[0] = max(most[0], engine.live)
                return stream

            engine.submit = seen  # type: ignore[method-assign]
            asked = {"prompt": "Once", "n": 6, "max_tokens": 5, "use_beam_search": True, "ignore_eos": True}
            answers = await asyncio.gather(*(acall(app, asked) for _ in range(7)))
            return most[0], [answer.status for answer in answers]

    most, statuses = asyncio.run(ask())
    assert most <= 12
    assert statuses == [200] * 7


def test_the_choices_of_a_search_count_for_the_limit_of_log_probabilities_as_others_do() -> None:
    async def ask() -> list[Answer]:
        async with toy_app("openai", max_logprobs=100) as app:
            asked = {"prompt": "a", "n": 10, "best_of": 10, "max_tokens": 5, "logprobs": 5}
            return [await acall(app, json.dumps({**asked, "use_beam_search": beams}).encode()) for beams in (False, True)]

    for answer in asyncio.run(ask()):
        assert answer.status == 400 and "asks for too much" in answer.body.decode()


async def searching(engine: Backend) -> Job:
    asked = replace(request("Once upon"), n=3, best_of=3, max_tokens=20, logprobs=2, beams=Beams())
    return await service(engine).prepare(replace(asked, sampling=replace(asked.sampling, ignore_eos=True)))


def test_only_a_few_tokens_of_a_search_are_told_in_a_turn_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are there at once, and at the end of a long search others' streams halted for half a second."""
    monkeypatch.setattr(beams, "PORTION", 8)

    async def ask() -> Counter[int]:
        turn, fed = 0, Counter[int]()
        feed = Choice.feed

        def counted(choice: Choice, event: TokenEvent) -> list[ChoiceDelta | ChoiceDone]:
            fed[turn] += 1
            return feed(choice, event)

        monkeypatch.setattr(Choice, "feed", counted)
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22, speculation=False))) as engine:
            reading = asyncio.create_task(collect(await searching(engine)))
            while not reading.done():
                turn += 1
                await asyncio.sleep(0)
        return fed

    fed = asyncio.run(ask())
    assert fed.total() == 3 * 20
    assert max(fed.values()) == 8


def test_an_answer_has_the_same_bytes_however_much_of_it_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"prompt": ["Once upon", "A cat"], "n": 3, "max_tokens": 12, "logprobs": 2, "return_token_ids": True}
    bodies = set()
    for most in (1, 7, beams.PORTION):
        monkeypatch.setattr(beams, "PORTION", most)
        (answer,) = posted(asked)
        assert answer.status == 200
        bodies.add(answer.body)
    assert len(bodies) == 1


def test_a_search_that_is_called_off_while_it_is_told_ends_each_choice_once_and_has_used_all_its_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beams, "PORTION", 8)

    async def ask() -> list[Event]:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22, speculation=False))) as engine:
            job, told = await searching(engine), list[Event]()
            async for batch in job.events():
                told += batch
                if any(isinstance(event, ChoiceDone) for event in batch):
                    job.cancel()
            return told

    told = asyncio.run(ask())
    ends = [(event.index, event.finish) for event in told if isinstance(event, ChoiceDone)]
    assert ends == [(0, Finish.LENGTH), (1, Finish.ABORT), (2, Finish.ABORT)]
    assert isinstance(told[-1], Finished) and told[-1].usage.completion_tokens == 3 * 20
