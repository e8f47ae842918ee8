"""Single rules of the scheduler, each seen at the plans it makes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.native.schedule.harness import Simulation, alone, assert_as_alone, prepared, run_all, told

from quintet.backends.native.schedule.chunks import ECHO_BURST
from quintet.backends.native.schedule.plan import Plan, Results
from quintet.backends.native.schedule.sequence import TRANSITIONS, Action, Group, IllegalTransitionError, Sequence, State
from quintet.backends.native.wire.messages import EventRow, Events, ScoredRow
from quintet.backends.toy import ToyRunner
from quintet.events import Finish
from quintet.request import Sampling

TEXT = bytes(range(97, 123)) * 8


def preempt_first(simulation: Simulation) -> None:
    queues = simulation.scheduler._queues
    queues.preempt(queues.running[0])


def outcome(simulation: Simulation, request: int, index: int = 0) -> Finish | None:
    return simulation.events[request, index][-1].finish


# ---- states


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("action", list(Action))
def test_an_action_follows_the_table_or_is_refused(state: State, action: Action) -> None:
    seq = Sequence(0, 0, Group((1,), False, None), 1, Sampling(0.0, 1.0, 0), None, state=state)
    if action in TRANSITIONS[state]:
        seq.advance(action)
        assert seq.state is TRANSITIONS[state][action]
    else:
        with pytest.raises(IllegalTransitionError):
            seq.advance(action)
        assert seq.state is state


# ---- ends


def test_without_tokens_to_generate_a_sequence_ends_at_once_and_computes_nothing() -> None:
    simulation = Simulation()
    simulation.add(0, prepared(TEXT, 0), prepared(b"x", 0, logprobs=3, echo=True))
    assert run_all(simulation) == 0
    assert told(simulation.events[0, 0]) == [(-1, b"", None, (), False, Finish.LENGTH, "")]
    assert [event.token for event in simulation.events[0, 1]] == [120, -1]


def test_echo_gives_every_prompt_token_once_then_the_generated_ones() -> None:
    simulation = Simulation(batch_tokens=5)
    simulation.add(0, prepared(TEXT[:40], 3, echo=True), prepared(TEXT[:40], 3, echo=True, logprobs=1, seed=4))
    simulation.finish()
    plain, scored = simulation.events[0, 0], simulation.events[0, 1]
    for events in (plain, scored):
        assert bytes(event.token for event in events if event.prompt) == TEXT[:40]
        assert [event.prompt for event in events] == [True] * 40 + [False] * 3
    assert all(event.logprob is None for event in plain)
    assert [event.logprob is None for event in scored] == [True] + [False] * 42
    assert all(len(event.top) == 1 for event in scored[1:])


def test_an_echoed_token_has_the_log_probability_it_had_when_it_was_generated() -> None:
    """Bit for bit: both come from the same rows."""
    simulation = Simulation(batch_tokens=7)
    simulation.add(0, prepared(TEXT[:21], 30, logprobs=2))
    simulation.finish()
    generated = simulation.events[0, 0]
    simulation.add(1, prepared([*TEXT[:21], *(event.token for event in generated)], 0, logprobs=2, echo=True))
    simulation.finish()
    echoed = simulation.events[1, 0][21:-1]
    assert [(event.token, event.logprob, event.top) for event in echoed] == [(event.token, event.logprob, event.top) for event in generated]


def test_the_next_draw_after_an_echo_is_the_draw_without_echo() -> None:
    simulation = Simulation(batch_tokens=9)
    simulation.add(0, *(prepared(TEXT[:33], 6, temperature=1.0, seed=9, logprobs=1, echo=echo) for echo in (False, True)))
    simulation.finish()
    assert told(simulation.events[0, 0]) == told(simulation.events[0, 1])[33:]


def test_the_first_event_and_no_other_tells_how_long_its_sequence_waited() -> None:
    """A step is a second here; requests come before the first one. The second prompt waits for the first to end."""
    simulation = Simulation(max_running=1)
    simulation.add(0, prepared(b"one", 3))
    simulation.add(1, *[prepared(b"two", 1, echo=True, seed=seed) for seed in range(2)])
    simulation.add(2, prepared(b"never", 1))
    for _ in range(4):
        simulation.step()
    simulation.abort(2)
    simulation.finish()
    waited = {key: [event.waited for event in events] for key, events in simulation.events.items()}
    assert waited == {(0, 0): [1.0, 0.0, 0.0], (1, 0): [4.0, 0.0, 0.0, 0.0], (1, 1): [4.0, 0.0, 0.0, 0.0], (2, 0): [0.0]}


@pytest.mark.parametrize(("echo", "steps", "waited"), [(False, 1, [1.0]), (False, 2, [1.0, 0.0]), (True, 1, [1.0] + [0.0] * 12)])
def test_an_end_tells_how_long_its_sequence_waited_where_no_event_before_it_has(echo: bool, steps: int, waited: list[float]) -> None:
    simulation = Simulation(batch_tokens=8)
    simulation.add(0, prepared(TEXT[:12], 4, echo=echo))
    for _ in range(steps):
        simulation.step()
    simulation.abort(0)
    assert [event.waited for event in simulation.events[0, 0]] == waited


@pytest.mark.fault("C11")
def test_an_abort_of_something_that_ended_or_never_was_changes_nothing() -> None:
    simulation = Simulation()
    simulation.add(0, prepared(TEXT, 2), prepared(TEXT, 2))
    simulation.abort(7)
    simulation.abort(0, 5)
    simulation.abort(0, 1)
    simulation.finish()
    simulation.abort(0, 0)
    simulation.abort(0)
    assert [outcome(simulation, 0, index) for index in (0, 1)] == [Finish.LENGTH, Finish.ABORT]


@pytest.mark.fault("C11")
def test_an_abort_in_the_step_that_completes_gives_one_end() -> None:
    simulation = Simulation()
    simulation.add(0, prepared(b"one", 1), prepared(b"two", 1))
    simulation.step((0, 0))
    assert [outcome(simulation, 0, index) for index in (0, 1)] == [Finish.ABORT, Finish.LENGTH]
    assert simulation.pool.available == simulation.pool.total


# ---- preemption


@pytest.mark.fault("B20", "C05")
def test_more_sequences_than_pages_all_end_and_nothing_is_told_twice() -> None:
    """Four contexts that do not fit together."""
    simulation = Simulation(pages=16)
    sequences = [prepared(TEXT[index : index + 26], 90, temperature=1.0, seed=index, logprobs=1) for index in range(12)]
    simulation.add(0, *sequences)
    preempted = 0
    while simulation.scheduler.live:
        running = simulation.scheduler.running
        simulation.step()
        preempted += simulation.scheduler.running < running
    for index, sequence in enumerate(sequences):
        assert_as_alone(simulation.events[0, index], sequence)
    assert preempted


@pytest.mark.fault("C14")
@pytest.mark.parametrize("tokens", range(1, 12))
def test_a_sequence_preempted_after_any_token_and_aborted_while_it_waits_has_told_only_what_it_drew(tokens: int) -> None:
    simulation = Simulation()
    sequence = prepared(TEXT[:20], 30, temperature=1.0, seed=3, logprobs=0)
    simulation.add(0, sequence)
    while len(simulation.events[0, 0]) < tokens:
        simulation.step()
    preempt_first(simulation)
    simulation.scheduler.check()
    simulation.abort(0)
    assert len(simulation.events[0, 0]) == tokens + 1
    assert_as_alone(simulation.events[0, 0], sequence)


@pytest.mark.fault("C05", "H04")
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_at_every_step_is_invisible(caching: bool) -> None:
    simulation = Simulation(caching=caching, batch_tokens=16)
    sequence = prepared(TEXT[:20], 25, temperature=1.0, seed=3, logprobs=2, echo=True)
    simulation.add(0, sequence)
    told_before = -1
    for _ in range(500):
        if not simulation.scheduler.live:
            break
        progress = len(simulation.events[0, 0])
        if progress != told_before and simulation.scheduler.running:
            preempt_first(simulation)
            told_before = progress
        simulation.step()
    assert_as_alone(simulation.events[0, 0], sequence)


# ---- fairness


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    simulation = Simulation(batch_tokens=32)
    simulation.add(0, prepared(TEXT * 10, 1))
    simulation.step()
    simulation.add(1, prepared(b"short", 1))
    simulation.step()
    assert outcome(simulation, 1) is Finish.LENGTH


def test_the_oldest_prompt_gets_half_of_what_is_left_however_many_short_ones_come() -> None:
    simulation = Simulation(batch_tokens=32)
    simulation.add(0, prepared(TEXT[:160], 1))
    steps = 0
    while not simulation.events[0, 0]:
        steps += 1
        simulation.add(steps, prepared(TEXT[steps : steps + 40], 1))
        simulation.step()
    assert steps == 10


def test_decoding_sequences_get_their_token_in_every_step_beside_a_long_prompt() -> None:
    simulation = Simulation(batch_tokens=16)
    simulation.add(0, prepared(b"decoding", 20))
    simulation.step()
    simulation.add(1, prepared(TEXT, 1))
    for count in range(2, 12):
        simulation.step()
        assert len(simulation.events[0, 0]) == count


def test_a_request_of_many_sequences_takes_turns_with_others() -> None:
    simulation = Simulation(max_running=1)
    simulation.add(0, *(prepared(TEXT[index:], 1) for index in range(50)))
    simulation.add(1, prepared(b"one", 1))
    for _ in range(10):
        simulation.step()
    assert outcome(simulation, 1) is Finish.LENGTH


def test_nobody_overtakes_the_head_of_the_queue_for_lack_of_pages() -> None:
    simulation = Simulation(pages=16, caching=False)
    simulation.add(0, prepared(TEXT[:100], 60))
    simulation.step()
    simulation.add(1, prepared(TEXT[:200], 40))
    simulation.add(2, prepared(b"small", 40))
    started: dict[int, float] = {}
    while simulation.scheduler.live:
        simulation.step()
        for seq in simulation.last_plan.sequences:
            started.setdefault(seq.request_id, simulation.now)
    assert started[0] < started[1] <= started[2]


@pytest.mark.fault("B06")
def test_an_echo_is_told_once_for_all_samples_and_spread_over_steps() -> None:
    simulation = Simulation(batch_tokens=4096, max_running=4)
    samples = [prepared(TEXT * 9, 1, echo=True, seed=seed) for seed in range(40)]
    simulation.add(0, *samples)
    told: list[int] = []
    take = simulation.scheduler.apply

    def apply(plan: Plan, results: Results) -> Events:
        events = take(plan, results)
        told.append(sum(row.prompt for row in events.get(0, ()) if isinstance(row, (EventRow, ScoredRow))))
        return events

    simulation.scheduler.apply = apply  # type: ignore[method-assign]
    simulation.finish()
    assert sum(told) == len(TEXT * 9)
    assert max(told) <= ECHO_BURST
    for index in (0, 39):
        assert_as_alone(simulation.events[0, index], samples[index])


# ---- faults


@pytest.mark.fault("C06")
def test_a_failed_plan_ends_its_sequences_only() -> None:
    simulation = Simulation(max_running=2, caching=False)
    for request in range(4):
        simulation.add(request, prepared(TEXT[request:], 5))
    plan = simulation.scheduler.plan(0.0)
    simulation._take(simulation.scheduler.fail(plan, "broken"))
    simulation.scheduler.check()
    simulation.finish()
    assert [outcome(simulation, request) for request in range(4)] == [Finish.ERROR, Finish.ERROR, Finish.LENGTH, Finish.LENGTH]
    assert simulation.events[0, 0][-1].error == "broken"
    assert_as_alone(simulation.events[3, 0], prepared(TEXT[3:], 5))


@pytest.mark.fault("C09")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("echo", [False, True])
def test_logits_that_are_not_finite_end_that_sequence_only(value: float, echo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every row whose last token is a Z is poisoned."""
    sound = ToyRunner.logits

    def poisoned(self: ToyRunner, rows: np.ndarray) -> np.ndarray:
        logits = sound(self, rows)
        logits[rows[:, 8] == ord("Z")] = value
        return logits

    neighbours = [prepared(TEXT[index:], 8, logprobs=1, echo=echo) for index in range(3)]
    expected = [alone(one) for one in neighbours]
    monkeypatch.setattr(ToyRunner, "logits", poisoned)
    simulation = Simulation()
    simulation.add(0, neighbours[0], prepared(b"abcZ", 8, logprobs=1, echo=echo), *neighbours[1:])
    simulation.finish()
    assert outcome(simulation, 0, 1) is Finish.ERROR
    assert "finite" in simulation.events[0, 1][-1].error
    assert [tuple(told(simulation.events[0, index])) for index in (0, 2, 3)] == expected


# ---- the tests can see


@pytest.mark.fault("H03")
@pytest.mark.parametrize("broken", ["copy_page", "tables"])
def test_a_wrong_page_changes_the_output(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inverse control: without it, equality with a lone run would prove nothing."""
    samples = [prepared(TEXT[:40], 30, temperature=1.0, seed=seed) for seed in range(4)]
    expected = [alone(sample) for sample in samples]
    simulation = Simulation()
    if broken == "copy_page":
        monkeypatch.setattr(ToyRunner, "copy_page", lambda *_: None)
    else:
        gather: Callable[..., np.ndarray] = simulation.stepper._tables.gather
        monkeypatch.setattr(simulation.stepper._tables, "gather", lambda slots: gather(slots)[::-1].copy())
    simulation.add(0, *samples)
    simulation.finish()
    assert [tuple(told(simulation.events[0, index])) for index in range(4)] != expected
