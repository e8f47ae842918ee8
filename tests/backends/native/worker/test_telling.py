"""When a worker tells of its steps: as soon as anybody waits for what came of them, and else for several together."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.native.worker import harness
from tests.backends.native.worker.harness import CONFIG, ONE

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8, Batch, Meanwhile
from quintet.backends.native.schedule.delivery import CROWD, CROWD_S, SILENCE_S
from quintet.backends.native.schedule.planner import SLICE
from quintet.backends.native.wire.messages import Abort, EventRow, Ping, Stepped, Stop
from quintet.backends.native.worker.saved_pages import SavedPages
from quintet.backends.native.worker.worker import Worker
from quintet.config import CacheFolder
from quintet.events import Finish
from quintet.inputs.sequence import Urgency


class World(harness.World):
    """A worker that is sent so many of one sequence."""

    def send(self, request_id: int, urgency: Urgency, count: int = 1, *, tokens: tuple[int, ...] = ONE.tokens) -> None:
        self.submit(request_id, [replace(ONE, tokens=tokens) for _ in range(count)], urgency)


@pytest.mark.parametrize(("urgency", "count"), [(Urgency.NOW, 1), (Urgency.NOW, CROWD), (Urgency.SOON, 1)])
def test_every_step_is_told_where_somebody_waits_for_it(urgency: Urgency, count: int) -> None:
    world = World()
    world.send(1, urgency, count)
    told = world.run(40)
    assert len(told) == 40
    assert all(message.events for _, message in told)


def test_a_step_is_told_while_the_next_one_is_computed_and_what_is_urgent_or_followed_by_nothing_at_once() -> None:
    world = World()
    world.send(1, Urgency.NOW)
    steps = [[message.counts.steps for _, message in world.run(1)] for _ in range(40)]
    assert steps == [[1], [], *([step] for step in range(2, 39)), [39, 40]]
    assert [round(at - 100.0, 9) for at, message in world.told if isinstance(message, Stepped)][1:] == [
        round(0.01 * step, 9) for step in range(1, 41)
    ], "when each has been computed"


def test_what_cannot_be_told_beside_a_step_is_told_after_it() -> None:
    world = World()
    world.send(1, Urgency.NOW)
    world.run(2)
    world.inbox.put(Abort(1, None))
    assert [row.finish for _, message in world.run(1) for row in message.events[1] if isinstance(row, EventRow)] == [Finish.ABORT]
    rows = [row for _, message in world.told if isinstance(message, Stepped) for row in message.events.get(1, ())]
    assert len(rows) == 3, "two tokens before it"


def test_what_has_ended_is_told_before_a_step_that_it_takes_no_part_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should that step take the engine along, it is no suspect."""
    world = World()
    for request in (1, 2):
        world.send(request, Urgency.NOW)
    world.run(5)
    computes, ended = world.runner.forward, list[bool]()

    def forward(batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        _, last = world.told[-1]
        ended.append(isinstance(last, Stepped) and any(isinstance(row, EventRow) and row.finish for row in last.events.get(1, ())))
        rows: U8 = computes(batch, meanwhile)
        return rows

    monkeypatch.setattr(world.runner, "forward", forward)
    world.inbox.put(Abort(1, None))
    told = world.run(1)
    assert ended == [True]
    assert world.passes[-1] == 1
    rows = [row for _, message in world.told if isinstance(message, Stepped) for row in message.events.get(1, ())]
    assert [isinstance(row, EventRow) and row.finish for row in rows[1:]] == [*[False] * 4, Finish.ABORT]
    assert sum(1 in message.events for _, message in told) == 2, "what was drawn, and the end, once each"


def test_streams_of_a_crowd_are_told_of_several_steps_together() -> None:
    world = World()
    world.send(1, Urgency.SOON, CROWD)
    told = [(at, message.events[1]) for at, message in world.run(39) if message.events]
    gaps = [later - at for (at, _), (later, _) in itertools.pairwise(told)]
    assert all(CROWD_S <= gap < CROWD_S + 0.011 for gap in gaps[1:])
    assert all(len(rows) in (4 * CROWD, 5 * CROWD) for _, rows in told[2:-1])
    rows = [row for _, batch in told for row in batch]
    rows += [row for _, message in world.run(1) for row in message.events[1]]
    assert len(rows) == 40 * CROWD, "the last step is told at once, with all that was kept"


def test_what_is_wanted_at_its_end_is_told_of_seldom_and_its_steps_are_all_the_same() -> None:
    world = World()
    world.send(1, Urgency.END, 2)
    told = world.run(40)
    assert next(len(message.events[1]) for _, message in told if message.events) == 2, "the first tokens come at once"
    assert sum(len(message.events.get(1, ())) for _, message in told) == 80
    assert len([message for _, message in told if message.events]) <= 4
    assert max(later - at for (at, _), (later, _) in itertools.pairwise(told)) < SILENCE_S + 0.011
    assert (told[-1][1].counts.steps, told[-1][1].running) == (40, 0)


def test_before_a_step_that_takes_a_prompt_in_the_others_get_their_tokens_and_it_is_told_by_itself() -> None:
    world = World(step_s=0.001)
    world.send(1, Urgency.SOON, CROWD)
    assert len(world.run(8)) < 8
    world.send(2, Urgency.END, tokens=tuple(range(97, 107)))
    before, after = world.run(1)
    assert set(before[1].events) == {1}
    assert 1 not in after[1].events or len(after[1].events[1]) == CROWD
    assert after[1].counts.prefilled == before[1].counts.prefilled + 10
    assert after[1].counts.steps == before[1].counts.steps + 1


def test_each_slice_of_pages_that_come_back_from_a_disk_is_told_and_the_next_follows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be computed meanwhile, and a disk may need half a minute for a long prompt: the engine does not hang."""
    config = replace(CONFIG, prefixes=CacheFolder(str(tmp_path / "kept"), 1 << 24))
    prompt = tuple(97 + at % 20 for at in range(4 * SLICE * PAGE + 1))
    before = World(config=config)
    before.send(1, Urgency.END, tokens=prompt)
    while not any(isinstance(message, Stepped) and message.counts.prefilled == len(prompt) for _, message in before.told):
        before.run(1)
    before.inbox.put(Stop())
    assert list(before.turns) == []
    world, load = World(config=config), SavedPages.load

    def slow(saved: SavedPages, digest: bytes, page: int) -> U8 | None:
        world.now += 0.1
        return load(saved, digest, page)

    def wait(*_: object) -> None:
        raise AssertionError("it waits for a message")

    monkeypatch.setattr(SavedPages, "load", slow)
    world.send(1, Urgency.END, tokens=prompt)
    told = world.run(1)
    with monkeypatch.context() as busy:
        busy.setattr(Worker, "_next", wait)
        told += world.run(3)
    assert [(round(at, 6), message.counts.steps) for at, message in told[:3]] == [(100 + 0.1 * SLICE * (each + 1), 0) for each in range(3)]
    assert told[-1][1].counts.prefilled == 1
    world.inbox.put(Stop())
    assert list(world.turns) == []


def test_one_that_is_asked_answers() -> None:
    world = World()
    world.send(1, Urgency.END)
    world.run(2)
    world.inbox.put(Ping())
    assert len(world.run(1)) == 1
    world.inbox.put(Stop())
    assert list(world.turns) == []
