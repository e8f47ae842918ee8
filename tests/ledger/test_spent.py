"""What keys have spent, as the ledger tells it to the next process, and to one beside."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.ledger.files import rows_in
from tests.ledger.test_ledger import by_id, kept, opened, run, until

from quintet.events import Usage
from quintet.ledger import ledger as module
from quintet.ledger import writer
from quintet.ledger.ledger import About, Ledger
from quintet.ledger.rows import Row, State
from quintet.ledger.spending import DAY, SLOT, Spent
from quintet.ledger.store import Store


def test_what_a_key_has_spent_outlives_the_process(tmp_path: Path) -> None:
    file, day = tmp_path / "ledger.db", 86_400
    now = 10.0 * day + 7_290
    slot = 10 * day + 7_500

    async def spend(ledger: Ledger) -> None:
        for key, tokens in (("aaaaaaaa", 5), ("aaaaaaaa", 6), ("bbbbbbbb", 7)):
            (await opened(ledger, used=Usage(1, tokens), key=key)).close(State.COMPLETED, "stop", 200, None)
        assert ledger.spent("aaaaaaaa") == [(slot, 13)]

    async def nothing(ledger: Ledger) -> None:
        assert [ledger.spent(key * 8) for key in "abc"] == [[(slot, 13)], [(slot, 8)], []]

    run(spend, file, now=lambda: now, clock=lambda: 0.0)
    run(nothing, file, now=lambda: now)

    async def later(ledger: Ledger) -> None:
        assert ledger.spent("aaaaaaaa") == [(11 * day, 13)], "by days, since it is long ago"

    run(later, file, now=lambda: now + 30 * day)

    async def summed(ledger: Ledger) -> None:
        await until(lambda: not rows_in(file))

    run(summed, file, keep=day, now=lambda: now + 3 * day)
    run(later, file, now=lambda: now + 30 * day)

    async def soon(ledger: Ledger) -> None:
        assert ledger.spent("aaaaaaaa") == [(11 * day, 13)], "nothing but the day is known of it, so it may have been at its end"

    run(soon, file, now=lambda: now + 3 * day)


def test_tokens_are_spent_when_a_request_ends_also_as_the_next_process_reads_them(tmp_path: Path) -> None:
    """A limit drains what was used from then on."""
    file, steady = tmp_path / "ledger.db", 0.0

    async def long(ledger: Ledger) -> None:
        nonlocal steady
        entry = await opened(ledger, key="aaaaaaaa")
        steady = 3600.0
        entry.close(State.COMPLETED, "stop", 200, None)
        assert ledger.spent("aaaaaaaa") == [(603_900, 7)]

    async def read(ledger: Ledger) -> None:
        assert ledger.spent("aaaaaaaa") == [(603_900, 7)]

    run(long, file, now=lambda: 600_000.0, clock=lambda: steady)
    run(read, file, now=lambda: 604_000.0)


def test_what_another_process_spends_meanwhile_is_heard_of_once_and_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a server hands over: what ended before is read at the start, what runs then and what comes later as it is noted."""
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    monkeypatch.setattr(writer, "OTHERS_S", 0.01)
    file = tmp_path / "ledger.db"
    heard: list[tuple[str, int]] = []

    def total(ledger: Ledger) -> int:
        return sum(tokens for _, tokens in ledger.spent("aaaaaaaa"))

    async def scenario(old: Ledger) -> None:
        used = Usage(10, 1)
        (await opened(old, "before", key="aaaaaaaa")).close(State.COMPLETED, "stop", 200, None)
        running = await old.open(About(id="running", key="aaaaaaaa", model="toy", dialect="openai", n=1, arrived=old.clock()), lambda: used)
        await until(lambda: by_id(file)["before"].state is State.COMPLETED and by_id(file)["running"].completion == 1)

        def hears(tokens: int) -> bool:
            heard.extend(new.elsewhere())
            return sum(more for _, more in heard) == tokens

        with kept(file) as new:
            assert total(new) == 7 + 11 and hears(0)
            used = Usage(10, 21)
            await until(lambda: hears(20))
            (await opened(old, "later", key="bbbbbbbb")).close(State.COMPLETED, "stop", 200, None)
            await until(lambda: hears(27))
            used = Usage(10, 31)
            running.close(State.COMPLETED, "stop", 200, None)
            old.close()
            await until(lambda: hears(37))
            (await opened(new, "own", key="aaaaaaaa")).close(State.COMPLETED, "stop", 200, None)
            await until(lambda: not new._writer._store.others.writing)
            assert hears(37) and total(new) == 7 + 41 + 7
        assert {key for key, _ in heard} == {"aaaaaaaa", "bbbbbbbb"}

    run(scenario, file)


def test_what_another_process_spends_is_a_sum_for_whoever_does_not_ask_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without completions of its own asks for nothing, for months."""
    monkeypatch.setattr(writer, "OTHERS_S", 0.01)
    file, day = tmp_path / "ledger.db", 7 * 86_400.0

    async def scenario(old: Ledger) -> None:
        with kept(file, now=lambda: day + 100) as new:
            for index in range(40):
                (await opened(old, f"{index}", key="ab"[index % 2] * 8)).close(State.COMPLETED, "stop", 200, None)
            old.close()
            await until(lambda: not new._writer._store.others.writing)
            assert sorted(new._writer.heard()) == [("aaaaaaaa", day + SLOT - 1, 140), ("bbbbbbbb", day + SLOT - 1, 140)]

    run(scenario, file, now=lambda: day + 100)


def test_of_what_nobody_asks_for_no_more_is_kept_than_days_once_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "OTHERS_S", 0.01)
    now, other = 7.5 * DAY, Store(tmp_path / "ledger.db")
    first = other.begin(now)
    rows = [Row(first + n, f"{n}", "k", "m", "d", 1, 7.0 * DAY + n * SLOT, prompt=1, state=State.COMPLETED) for n in range(100)]

    async def scenario(ledger: Ledger) -> None:
        nonlocal now

        def sums() -> int:
            with ledger._writer._lock:
                return len(ledger._writer._heard.all())

        other.write({row.number: row for row in rows})
        await until(lambda: sums() == 100)
        now += 8 * DAY
        other.write({first + 100: rows[0]._replace(number=first + 100, id="100", arrived=now)})
        await until(lambda: sums() == 2)
        assert ledger.elsewhere() == [("k", 100), ("k", 1)]
        assert ledger.spent("k") == [(8 * DAY, 100), (now + SLOT, 1)], "at the end of the day, as other sums of it"

    run(scenario, tmp_path / "ledger.db", now=lambda: now)
    other.close()


def test_a_process_that_comes_and_goes_between_two_looks_is_heard_of_once(tmp_path: Path) -> None:
    """While nobody is beside, a look is made each minute."""
    file = tmp_path / "ledger.db"

    def come(tokens: int) -> Store:
        """Another process, and what it spends."""
        other = Store(file)
        number = other.begin(0.0)
        other.write({number: Row(number, "r", "k", "m", "d", 1, 60.0, prompt=tokens, state=State.COMPLETED)})
        return other

    store = Store(file)
    store.begin(0.0)
    come(1).close()
    assert store.spent(0.0, SLOT, DAY) == [("k", 0, 1)]
    assert store.news() == []
    come(2).close()
    come(3).close()
    stays = come(4)
    assert sorted(store.news()) == [("k", 60.0, 2), ("k", 60.0, 3), ("k", 60.0, 4)]
    stays.close()
    assert store.news() == []
    store.close()


def test_beside_a_row_that_stays_open_no_other_is_read_again(tmp_path: Path) -> None:
    """One that streams for an hour, while thousands come and go."""
    store, beside = Store(tmp_path / "ledger.db"), Store(tmp_path / "ledger.db")
    first = store.begin(0.0)
    beside.begin(0.0)
    beside.spent(0.0, SLOT, DAY)
    read: list[int] = []

    def counted(_: sqlite3.Cursor, row: tuple[int, ...]) -> tuple[int, ...]:
        read.append(row[0])
        return row

    def news(*rows: Row) -> list[Spent]:
        """What is heard of these, and in ``read`` the numbers of all rows that were looked at."""
        store.write({row.number: row for row in rows})
        read.clear()
        return beside.news()

    running = Row(first, "r", "k", "m", "d", 1, 60.0)
    ended = [running._replace(number=first + n, id=f"{n:x}", prompt=n, state=State.COMPLETED) for n in range(1, 300)]
    beside._connection.row_factory = counted
    assert news(running, *ended) == [("k", 60.0, n) for n in range(1, 300)]
    assert news(running._replace(prompt=5)) == [("k", 60.0, 5)]
    assert [number for number in read if number >= first] == [first]
    assert news(running._replace(prompt=7, state=State.COMPLETED)) == [("k", 60.0, 2)]
    assert news() == [] and not [number for number in read if number >= first]
    store.close()
    beside.close()
