"""Memory of pages to come is had while there is nothing to do, and not otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backends.native.worker.harness import CONFIG, ONE, World

from quintet.backends.native.schedule.images import Encodings
from quintet.backends.native.schedule.pages import PagePool
from quintet.backends.native.wire.messages import Ping, Shed
from quintet.backends.native.worker.headroom import AHEAD, MOST_BYTES, OF_FREE, PIECE_BYTES, Headroom
from quintet.backends.toy import ToyRunner
from quintet.guides import heap
from quintet.guides.compiled import Guides


class Touched(ToyRunner):
    """Notes which pages were touched."""

    def __init__(self, page_bytes: int) -> None:
        super().__init__()
        self._page_bytes = page_bytes
        self.touched: list[int] = []

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def touch_pages(self, first: int, last: int) -> None:
        assert 0 < (last - first) * self._page_bytes <= max(PIECE_BYTES, self._page_bytes)
        self.touched += range(first, last)


@given(
    total=st.integers(1, 4000),
    page_bytes=st.integers(1 << 10, 8 << 20),
    uses=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=8),
)
def test_a_multiple_of_what_was_used_is_ready_ahead_within_its_bounds_and_each_page_is_touched_once(
    total: int, page_bytes: int, uses: list[tuple[int, bool]]
) -> None:
    runner, pool = Touched(page_bytes), PagePool(total)
    headroom = Headroom(runner, pool, lambda: 1 << 40)
    for count, idle in uses:
        for _ in range(min(count, pool.available)):
            pool.take()
        while idle and headroom.more():
            pass
        used = pool.ever_used
        if idle and used:
            ahead = min(AHEAD * used, total // 8, MOST_BYTES // page_bytes)
            assert set(runner.touched) >= set(range(used, min(used + ahead, total)))
        assert len(set(runner.touched)) == len(runner.touched)
        assert max(runner.touched, default=0) < min(total, max((AHEAD + 1) * used, 1))


def test_a_server_that_nobody_used_takes_no_memory_ahead() -> None:
    runner = Touched(1 << 20)
    assert not Headroom(runner, PagePool(1000)).more()
    assert not runner.touched


def test_no_more_is_taken_than_a_small_part_of_what_can_be_had() -> None:
    runner, pool, free = Touched(1 << 20), PagePool(1000), [OF_FREE * 24 << 20]
    headroom = Headroom(runner, pool, lambda: free[0])
    for _ in range(3):
        pool.take()
    free[0] -= 1
    assert not headroom.more()
    free[0] += 1
    while headroom.more():
        free[0] -= 4 << 20  # others take as much
    assert 0 < len(runner.touched) <= 24


def test_where_memory_is_scarce_it_goes_back_and_none_is_taken_from_then_on() -> None:
    runner, pool = Touched(1 << 20), PagePool(1000)
    headroom = Headroom(runner, pool, lambda: 1 << 40)
    for _ in range(3):
        pool.take()
    while headroom.more():
        pass
    assert runner.touched == list(range(3, 27))
    assert list(headroom.shed()) == runner.touched
    pool.take()
    assert not headroom.more()
    assert not headroom.shed(), "nothing is left to be dropped"


def test_an_idle_worker_has_pages_ready_until_something_comes_and_gives_them_back_when_told() -> None:
    class Wide(Touched):
        def __init__(self) -> None:
            super().__init__(PIECE_BYTES)
            self.dropped: list[int] = []

        def touch_pages(self, first: int, last: int) -> None:
            super().touch_pages(first, last)
            if first == 5:
                world.inbox.put(Ping())
                world.inbox.put(Shed())

        def drop_pages(self, pages: Sequence[int]) -> None:
            self.dropped += pages

    world = World(config=replace(CONFIG, kv_bytes=100 * PIECE_BYTES), model=Wide)
    world.submit(1, [ONE])
    world.run(ONE.max_tokens)
    assert not world.runner.touched, "there was always something to do"
    world.run(1)
    assert world.runner.touched == [3, 4, 5], "what came was heard at once"
    world.run(1)
    assert sorted(world.runner.dropped) == [*range(6)]
    world.inbox.put(Ping())
    world.run(1)
    assert world.runner.touched == [3, 4, 5]


@pytest.mark.fault("D11")
def test_when_told_a_worker_gives_back_all_that_it_keeps_for_requests_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages, see above; and guides, images that are read, a draft model's pages, and what of the heap is free then."""
    back: list[str] = []

    class Draft(ToyRunner):
        def drop_pages(self, pages: Sequence[int]) -> None:
            back.append("draft")

    monkeypatch.setattr(Guides, "shed", lambda _: back.append("guides"))
    monkeypatch.setattr(Encodings, "shed", lambda _: back.append("images"))
    monkeypatch.setattr(heap, "give_back", lambda: back.append("heap"))
    world = World(config=replace(CONFIG, speculation=True), draft=Draft())
    world.inbox.put(Shed())
    world.run(1)
    assert sorted(back[:-1]) == ["draft", "guides", "images"] and back[-1] == "heap"
