"""The ledger's file against a model in memory, whatever order things come in; and who may open it."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from shutil import copy
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.ledger.files import rows_in, totals_in

from quintet.ledger import schema
from quintet.ledger.report import Query, usage
from quintet.ledger.rows import Row, State
from quintet.ledger.schema import STEPS, LedgerError
from quintet.ledger.store import MOST_AT_ONCE, Store

DAY = 86_400
COUNTS = st.integers(0, 10**9)
KEYS = st.sampled_from(["", "0123abcd", "ffffffff"])
ENDS = st.sampled_from([State.COMPLETED, State.CANCELLED, State.FAILED])


class Books(RuleBasedStateMachine):
    """Rows opened, noted, closed, withdrawn and summed up, by processes that end well or are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(mkdtemp()) / "ledger.db"
        self.rows: dict[int, Row] = {}  # the model
        self.sums: Counter[tuple[str, str, str, str, State, str]] = Counter()
        self.live: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.store = Store(self.file)
        self.number = self.store.begin(0.0)

    def write(self, *rows: Row) -> None:
        self.store.write({row.number: row for row in rows})
        self.rows |= {row.number: row for row in rows}

    @rule(
        key=st.sampled_from(["", "0123abcd", "ffffffff"]),
        model=st.sampled_from(["a", "b"]),
        days=st.floats(0, 5),
        count=st.integers(1, 300),
    )
    def opens(self, key: str, model: str, days: float, count: int) -> None:
        made = [Row(self.number + index, f"{index:x}", key, model, "openai", 1, days * DAY) for index in range(count)]
        self.number += count
        self.live += [row.number for row in made]
        self.write(*made)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), prompt=COUNTS, completion=COUNTS, end=st.none() | ENDS)
    def grows(self, data: st.DataObject, prompt: int, completion: int, end: State | None) -> None:
        number = data.draw(st.sampled_from(self.live))
        row = self.rows[number]._replace(prompt=prompt, completion=completion, cached=prompt // 2, reasoning=completion // 3)
        if end is not None:
            row = row._replace(state=end, finish="stop", status=200, first=0.5, total=1.5)
            self.live.remove(number)
        self.write(row)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def is_withdrawn(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.live))
        self.live.remove(number)
        del self.rows[number]
        self.store.write({number: None, number + 10**6: None})

    @rule(well=st.booleans())
    def ends_and_begins_anew(self, well: bool) -> None:
        """A process that is killed closes nothing; the kernel lets its lock go."""
        if well:
            self.store.close()
        else:
            assert self.store._lock is not None
            self.store._connection.close()
            self.store._lock.drop()
        for number in self.live:
            self.rows[number] = self.rows[number]._replace(state=State.INCOMPLETE)
        ended, self.live = len(self.live), []
        self.begin()
        assert self.store.bury() == (0 if well else ended)
        assert self.store.bury() == 0

    @rule(days=st.integers(0, 6))
    def is_summed_up(self, days: int) -> None:
        while self.store.expire(days * DAY):
            pass
        for row in [row for row in self.rows.values() if row.arrived < days * DAY and row.state is not State.OPEN]:
            del self.rows[row.number]
            self._sum(row)

    def _sum(self, row: Row) -> None:
        group = f"1970-01-0{1 + int(row.arrived // DAY)}", row.key, row.model, row.dialect, row.state
        counts = {"requests": 1, "prompt": row.prompt, "completion": row.completion, "cached": row.cached, "reasoning": row.reasoning}
        for name, count in counts.items():
            self.sums[(*group, name)] += count

    @invariant()
    def the_file_is_as_the_model(self) -> None:
        assert rows_in(self.file) == self.rows
        found = {(*row[:4], State(str(row[4]))): row[5:] for row in totals_in(self.file)}
        groups = {key[:5] for key in self.sums}
        names = ("requests", "prompt", "completion", "cached", "reasoning")
        assert found == {group: tuple(self.sums[(*group, name)] for name in names) for group in groups}

    @invariant()
    def what_was_spent_is_the_sum_of_all(self) -> None:
        spent: Counter[str] = Counter()
        for key, _, tokens in self.store.spent(2 * DAY, 60, DAY):
            spent[key] += tokens
        own = Counter({row.key: 0 for row in self.rows.values()})
        for row in self.rows.values():
            own[row.key] += row.prompt + row.completion
        for (_, key, _, _, _, name), count in self.sums.items():
            own[key] += count if name in ("prompt", "completion") else 0
        assert +spent == +own

    def teardown(self) -> None:
        self.store.close()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.fault("J06")
def test_summing_up_changes_no_sum_also_while_it_is_under_way(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    store = Store(file)
    first = store.begin(0.0)
    store.write({first + n: Row(first + n, f"{n:x}", "k", "m", "d", 1, n * 60.0, prompt=n, state=State.COMPLETED) for n in range(3000)})
    before = usage(file, Query(("key", "model", "day", "dialect", "state")))
    while store.expire(10 * DAY):
        assert usage(file, Query(("key", "model", "day", "dialect", "state"))) == before
    assert usage(file, Query(("key", "model", "day", "dialect", "state"))) == before
    assert rows_in(file) == {}
    store.close()


@pytest.mark.parametrize("arrived", [DAY - 1e-10, 2 * DAY - 0.0004, float(2 * DAY)])
def test_a_request_counts_for_the_day_on_which_it_arrived_to_its_last_moment(tmp_path: Path, arrived: float) -> None:
    file = tmp_path / "ledger.db"
    store = Store(file)
    number = store.begin(0.0)
    store.write({number: Row(number, "a", "k", "m", "d", 1, arrived, prompt=7, state=State.COMPLETED)})
    day = f"1970-01-0{1 + int(arrived // DAY)}"
    assert usage(file, Query(("day",))) == [(day, 1, 7, 0, 0, 0, 7)]
    while store.expire(5 * DAY):
        pass
    assert usage(file, Query(("day",))) == [(day, 1, 7, 0, 0, 0, 7)]
    store.close()


@pytest.mark.fault("J06")
def test_a_server_of_the_version_before_writes_on_while_a_newer_one_brings_the_file_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ledger.db"
    old = Store(file)
    first = old.begin(0.0)
    stop, failures = threading.Event(), []
    written: dict[int, Row | None] = {}

    def traffic() -> None:
        number = first
        while not stop.is_set():
            row = Row(number, f"{number:x}", "k", "m", "d", 1, 5.0, prompt=1, state=State.COMPLETED)
            try:
                old.write({number: row})
            except sqlite3.Error as error:
                failures.append(error)
            written[number] = row
            number += 1
            time.sleep(0.002)  # a lock that is never free for longer is had by luck

    thread = threading.Thread(target=traffic)
    thread.start()
    while len(written) < 20:
        assert not failures
    monkeypatch.setattr(schema, "STEPS", (*STEPS, "ALTER TABLE requests ADD COLUMN tier TEXT NOT NULL DEFAULT ''"))
    new = Store(file)
    number = new.begin(0.0)
    new.write({number: Row(number, "new", "k", "m", "d", 1, 5.0, prompt=1)})
    at = len(written)
    while len(written) < at + 20:
        assert not failures
    stop.set()
    thread.join()
    assert usage(file, Query(())) == [(len(written) + 1, len(written) + 1, 0, 0, 0, len(written) + 1)]
    assert new.bury() == 0, "the older one lives"
    old.close()
    new.close()
    monkeypatch.undo()
    with pytest.raises(LedgerError, match=r"is of version 2, and this Quintet knows versions up to 1: use the newer one\.$"):
        Store(file)
    with pytest.raises(LedgerError, match="is of version 2"):
        usage(file, Query(()))


def test_only_its_owner_can_read_it_and_a_file_open_to_others_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    store = Store(file)
    number = store.begin(0.0)
    store.write({number: Row(number, "", "", "", "", 1, 0.0)})
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["ledger.db", "ledger.db-life1", "ledger.db-shm", "ledger.db-wal"]
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    store.close()
    assert sorted(tmp_path.iterdir()) == [file]
    file.chmod(0o644)
    with pytest.raises(LedgerError, match=r"may be read by everybody or written by others; chmod 600 it\.$"):
        Store(file)


def test_what_is_no_ledger_is_told_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    other.chmod(0o600)
    text = tmp_path / "text"
    text.write_text("no database, but a text that is long enough to have a head" * 9)
    text.chmod(0o600)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for file, said in (
        (other, "is another program's database"),
        (Path("/dev/null"), "^/dev/null is not a file\\.$"),
        (fifo, "fifo is not a file"),
        (text, "file is not a database"),
        (tmp_path / "no" / "folder", "no; make it first"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(LedgerError, match=said):
            Store(file)
    with pytest.raises(LedgerError, match="is not a file"):
        usage(tmp_path, Query(()))
    with pytest.raises(LedgerError, match="there is no such file"):
        usage(tmp_path / "none", Query(()))


def test_two_processes_that_hand_over_have_rows_of_their_own_and_leave_each_other_alone(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    one, other = Store(file), Store(file)
    first, second = one.begin(5.0), other.begin(1.0)
    one.write({first: Row(first, "a", "", "", "", 1, 5.0)})
    other.write({second: Row(second, "b", "", "", "", 1, 1.0)})
    assert other.bury() == one.bury() == 0
    assert one._lock is not None
    one._connection.close()
    one._lock.drop()  # as the kernel does when it is killed
    assert other.bury() == 1
    assert {row.id: row.state for row in rows_in(file).values() if row} == {"a": State.INCOMPLETE, "b": State.OPEN}
    assert [path.name for path in tmp_path.glob("*life*")] == ["ledger.db-life2"]
    other.close()


@pytest.mark.fault("J01")
def test_a_life_that_cannot_be_looked_at_counts_as_one_and_keeps_nobody_from_the_dead(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    first, second, third = Store(file), Store(file), Store(file)
    for store, name in ((first, "unknown"), (second, "dead")):
        number = store.begin(0.0)
        store.write({number: Row(number, name, "", "a", "openai", 1, 0.0)})
    lock = file.with_name(f"{file.name}-life{first.life}")
    lock.unlink()
    lock.mkdir()  # may not be opened for writing, whoever asks: as another user's, or without a descriptor left
    assert second._lock is not None
    second._lock.drop()  # as the kernel does where it is killed
    third.begin(0.0)
    assert third.bury() == 1
    assert {row.id: row.state for row in rows_in(file).values() if row} == {"unknown": State.OPEN, "dead": State.INCOMPLETE}
    assert third.bury() == 0


@pytest.mark.fault("D06")
def test_rows_are_written_all_or_none_and_those_that_come_next_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "ledger.db")
    first = store.begin(0.0)
    rows = {number: Row(number, "", "", "", "", 1, 0.0) for number in range(first, first + 2 * MOST_AT_ONCE)}
    number, row = rows.popitem()
    with pytest.raises(sqlite3.Error):
        store.write({**rows, number: row._replace(id=None)})  # type: ignore[arg-type]
    assert rows_in(tmp_path / "ledger.db") == {}
    store.write({**rows, number: None})
    assert rows_in(tmp_path / "ledger.db").keys() == rows.keys()
    store.close()


def test_another_servers_ledger_with_the_same_numbers_that_took_our_ones_place_is_left_as_it_is(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path / "ours.db"), Store(tmp_path / "theirs.db")
    number = ours.begin(1.0)
    assert theirs.begin(2.0) == number
    theirs.write({number: Row(number, "theirs", "", "", "", 1, 60.0)})
    with closing(sqlite3.connect(theirs.file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ours.file.unlink()
    copy(theirs.file, ours.file)
    with pytest.raises(sqlite3.Error, match="UNIQUE constraint failed: lives.life"):
        ours.mend()
    assert [row and row.id for row in rows_in(ours.file).values()] == ["theirs"]
    ours.close()
    theirs.close()
