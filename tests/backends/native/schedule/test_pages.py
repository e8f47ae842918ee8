"""The page pool against a model that remembers everything: no page leaks, is held twice, or is found with other contents."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.schedule.pages import BlockTables, BrokenInvariantError, OutOfPagesError, PagePool, chain


class Pool(RuleBasedStateMachine):
    """Tables that take, share, publish, look up and release pages in any order. A digest stands for the page's contents."""

    @initialize(total=st.integers(1, 8))
    def start(self, total: int) -> None:
        self.total = total
        self.pool = PagePool(total)
        self.tables: list[list[int]] = []
        self.contents: dict[int, bytes | None] = {}  # of every page ever used
        self.published: set[int] = set()

    @rule()
    def take(self) -> None:
        if not self.pool.available:
            with pytest.raises(OutOfPagesError):
                self.pool.take()
            return
        page = self.pool.take()
        assert all(page not in table for table in self.tables), "a page that is held was handed out"
        self.contents[page] = None
        self.published.discard(page)
        self.tables.append([page])

    @precondition(lambda self: bool(getattr(self, "tables", None)))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        for page in table:
            self.pool.share(page)
        self.tables.append(list(table))

    @precondition(lambda self: bool(getattr(self, "tables", None)))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.release(self.tables.pop(index))

    @precondition(lambda self: bool(getattr(self, "tables", None)))
    @rule(data=st.data(), content=st.sampled_from([b"a", b"b", b"c"]), rows=st.booleans())
    def fill_and_publish(self, data: st.DataObject, content: bytes, rows: bool) -> None:
        page = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        if self.contents[page] is not None:
            return  # full pages are never written again
        self.contents[page] = content
        if rows:
            self.pool.keep_rows(page, 4)[:] = content[0]
        self.pool.publish(page, content)

    @rule(content=st.sampled_from([b"a", b"b", b"c"]), rows=st.booleans())
    def find(self, content: bytes, rows: bool) -> None:
        page = self.pool.lookup(content, with_rows=rows)
        if page is None:
            return
        assert self.contents[page] == content, "found a page with other contents"
        assert not rows or (self.pool.rows(page) == content[0]).all()
        self.pool.share(page)
        self.tables.append([page])

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(self.tables)
            held = {page for table in self.tables for page in table}
            assert self.pool.available == self.total - len(held)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_pages_are_evicted_least_recently_used_first_and_ends_before_beginnings() -> None:
    pool = PagePool(4)
    first, second = [pool.take(), pool.take()], [pool.take(), pool.take()]
    for page, digest in zip([*first, *second], [b"1a", b"1b", b"2a", b"2b"], strict=True):
        pool.publish(page, digest)
    pool.release(first)
    pool.release(second)
    pool.share(first[0])  # used again: now the youngest
    pool.release([first[0]])
    assert [pool.take() for _ in range(4)] == [first[1], second[1], second[0], first[0]]


def test_a_page_with_rows_takes_the_place_of_the_same_page_without() -> None:
    pool = PagePool(3)
    plain, scored, late = pool.take(), pool.take(), pool.take()
    pool.publish(plain, b"x")
    assert pool.lookup(b"x", with_rows=True) is None
    pool.keep_rows(scored, 4)
    pool.publish(scored, b"x")
    assert pool.lookup(b"x", with_rows=True) == pool.lookup(b"x", with_rows=False) == scored
    pool.publish(late, b"x")
    assert pool.lookup(b"x", with_rows=False) == scored
    pool.release([plain, late])
    pool.check([[scored]])


@pytest.mark.fault("G05")
@given(st.lists(st.integers(0, 2**31 - 1), min_size=PAGE, max_size=PAGE), st.integers(0, PAGE - 1), st.binary(max_size=16))
def test_a_digest_depends_on_every_token_the_parent_and_the_salt(tokens: list[int], index: int, parent: bytes) -> None:
    digest = chain(parent, tokens, b"")
    assert digest == chain(parent, list(tokens), b"")
    others = [token ^ (at == index) for at, token in enumerate(tokens)]
    assert len({digest, chain(parent, others, b""), chain(parent + b"x", tokens, b""), chain(parent, tokens, b"salt")}) == 4


@pytest.mark.parametrize("held", [[], [[0], [0]], [[1]], [[0, 1]]])
def test_check_sees_a_lost_or_doubled_page(held: list[list[int]]) -> None:
    pool = PagePool(2)
    pool.take()
    pool.check([[0]])
    with pytest.raises(BrokenInvariantError):
        pool.check(held)


def test_tables_are_gathered_as_wide_as_the_longest() -> None:
    tables = BlockTables(slots=3, width=8)
    one, two = tables.open([4, 5]), tables.open([6])
    tables.append(two, 7)
    tables.append(two, 1)
    assert tables.replace(two, tables.length(two) - 1, 2) == 1
    gathered = tables.gather([two, one])
    assert gathered[0].tolist() == [6, 7, 2]
    assert gathered[1, :2].tolist() == [4, 5]
    assert gathered.flags.c_contiguous
    assert tables.close(two) == [6, 7, 2]
    assert tables.pages(one) == [4, 5]
    assert tables.gather([tables.open([])]).shape == (1, 1)
