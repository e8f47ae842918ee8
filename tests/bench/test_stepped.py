"""A peer that is stepped by hand: what is timed as decoding begins when every prompt has been read, and no sequence ends in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from bench.common import stepped
from bench.common.stepped import BUDGET, Stepped


class Scheduler(Stepped):
    """Each step gives every sequence that was read a token, and reads on in the other prompts with what is left of the budget.

    Its clock stands beside ``time``: a step takes a second for each thousand tokens that are read, and one more.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.unread: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.reads_at: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def add(self, tokens: Sequence[int], most: int) -> int:
        request = len(self.left)
        self.unread[request], self.left[request] = len(tokens), most
        return request

    def step(self) -> Mapping[int, int]:
        brought = {request: 1 for request, unread in self.unread.items() if not unread and self.left[request]}
        room, read = BUDGET - len(brought), 0
        for request, unread in self.unread.items():
            if take := min(unread, room - read):
                read += take
                self.unread[request] -= take
                if not self.unread[request]:
                    brought[request] = 1
        for request in brought:
            self.left[request] -= 1
        self.now += 1 + read / 1000
        self.reads_at += [self.now] if read else []
        return brought

    def unfinished(self) -> bool:
        return any(self.left.values())


@pytest.mark.parametrize(("sequences", "context"), [(1, 64), (32, 64), (8, 1500), (16, 1500), (64, 2047)])
def test_decoding_is_timed_from_when_every_prompt_is_read(sequences: int, context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scheduler()
    monkeypatch.setattr(stepped, "time", engine)
    assert engine.decode([range(context)] * sequences, 32) == pytest.approx(sequences), "a token each in a second, and nothing else"
    assert engine.now > engine.reads_at[-1] + 32
    assert not engine.unfinished()


def test_a_prompt_is_timed_up_to_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scheduler()
    monkeypatch.setattr(stepped, "time", engine)
    assert engine.prefill(range(8000)) == 8000 / (4 + 8)
