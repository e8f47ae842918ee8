"""An engine step that brings many log-probabilities: there may be 128 for each token of a thousand choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.support.preparing import service
from tests.support.scripted_backend import PIECES, Script, ScriptedBackend, request

from quintet.events import ChoiceDelta, Event, Finish, Finished, TokenEvent
from quintet.inputs.sequence import Prepared
from quintet.service import job

CHOICES, ALTERNATIVES = 8, 5


class OneStep(ScriptedBackend):
    """Computes all in one step."""

    def submit(self, _: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        return self._whole()

    async def _whole(self) -> AsyncIterator[Sequence[TokenEvent]]:
        top = tuple((token, -1.0) for token in range(ALTERNATIVES))
        yield [TokenEvent(seq, 97, PIECES[97], -1.0, top, finish=Finish.LENGTH) for seq in range(CHOICES)]


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (3 * (1 + ALTERNATIVES), 3), (1 << 12, CHOICES)])
def test_others_have_their_turn_between_as_many_as_take_a_few_milliseconds(
    monkeypatch: pytest.MonkeyPatch, most: int, at_once: int
) -> None:
    """It was 16,000 at once for 128 choices, for which the event loop stood still."""
    monkeypatch.setattr(job, "MOST_ENTRIES", most)
    asked = replace(request("a", n=CHOICES), logprobs=ALTERNATIVES)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> list[tuple[int, list[Event]]]:
        made = await service(OneStep([Script(b"a")])).prepare(asked)
        other = asyncio.create_task(others())
        parts = [(turns, events) async for events in made.events()]
        other.cancel()
        return parts

    parts = asyncio.run(scenario())
    deltas = [[event.index for event in events if isinstance(event, ChoiceDelta)] for _, events in parts]
    assert [index for indices in deltas for index in indices] == list(range(CHOICES))
    assert {len(indices) for indices in deltas[:-1]} <= {at_once} and len(deltas) == -(-CHOICES // at_once)
    assert [turn for turn, _ in parts] == list(range(len(parts)))
    assert isinstance(parts[-1][1][-1], Finished)
