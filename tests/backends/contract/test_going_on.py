"""A request that was taken goes on: what it needs next is taken too."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.backends.contract.conftest import CONFIG, Check
from tests.support.preparing import prepare

from quintet.backends.base import Backend
from quintet.errors import Overloaded
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Sampling


def test_what_a_request_needs_to_go_on_is_taken_after_a_drain_and_counts_as_any_other(check: Check) -> None:
    async def scenario(backend: Backend) -> None:
        prepared = await prepare(backend, [SequenceSpec("x", 2, Sampling(0.0, 0.9, 0), None, echo=False)] * 12)
        ids, taken = itertools.count(1 << 24), list[AsyncIterator[Sequence[TokenEvent]]]()
        backend.require_room(12)
        taken.append(backend.submit(replace(prepared, request_id=next(ids))))
        backend.drain()
        with pytest.raises(Overloaded, match="engine is shutting down"):  # and not the server: perhaps its model is unloaded
            backend.require_room(1)
        with pytest.raises(Overloaded):
            while len(taken) < CONFIG.max_waiting:
                backend.require_room(12, begun=True)
                taken.append(backend.submit(replace(prepared, request_id=next(ids))))
        assert len(taken) > 1
        for stream in taken:
            events = [event async for batch in stream for event in batch]
            assert [event.finish for event in events if event.finish] == [Finish.LENGTH] * 12
        assert backend.tokenizer.eos_ids
        await backend.close()
        with pytest.raises(Overloaded):
            backend.require_room(1, begun=True)

    check(scenario)
