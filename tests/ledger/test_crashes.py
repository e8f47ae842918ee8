"""What is acknowledged is there after any end: the process killed at every call that it makes, the machine at any byte of its log."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger.crashing import batches
from tests.ledger.disk import Disk, needs_disk
from tests.ledger.files import rows_in

from quintet.ledger.rows import LIFE_BITS, Row
from quintet.ledger.store import Store
from quintet.ledger.writer import Rows

POINTS = int(os.environ.get("QUINTET_TEST_LEDGER_POINTS", "30"))
BATCHES = 12
FIRST = 1 << LIFE_BITS
WAL_HEAD = 32
SALT = slice(16, 24)
"""Of a write-ahead log's head: what tells it from the log before (SQLite, "File Format", 4.1)."""


UNSYNCHRONISED = """
import errno, sys
from pathlib import Path
from tests.ledger.crashing import batches
from tests.ledger.disk import Disk
from quintet.ledger.store import Store
file = Path(sys.argv[1])
store = Store(file)
first = store.begin(0.0)
Disk(file.parent, file.name).fails(errno.EIO, syncs=True)
store.write(next(batches(first, 1, 1)))
print("acknowledged")
"""


def states(seed: int, count: int) -> list[Rows]:
    """What is in the file after each of so many batches; first, after none."""
    found: list[Rows] = [{}]
    for batch in batches(FIRST, seed, count):
        found.append({number: row for number, row in {**found[-1], **batch}.items() if row is not None})
    return found


def crashed(folder: Path, point: int, seed: int) -> tuple[Path, int, bool]:
    """A file whose writer was killed at its ``point``-th call; how many batches it had acknowledged, and whether it came to its end."""
    file = folder / f"ledger-{point}.db"
    disk = Disk(folder, file.name)
    command = [sys.executable, "-m", "tests.ledger.crashing", str(file), str(seed), str(BATCHES)]
    done = subprocess.run(command, env={**os.environ, **disk.environment(point)}, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -9), done.stderr
    return file, len(done.stdout.splitlines()), done.returncode == 0


@needs_disk
@pytest.mark.fault("D07", "J02")
def test_a_writer_killed_at_any_of_its_calls_has_written_each_acknowledged_batch_and_no_part_of_another(tmp_path: Path) -> None:
    """The points are spread over all calls: of the first opening, of commits, of checkpoints; each call is torn in half."""
    calls = next(point for point in range(16, 10_000, 16) if crashed(tmp_path, point, seed=1)[2])
    rng = random.Random(2)
    for index in range(POINTS):
        point = 1 + index * calls // POINTS + rng.randrange(max(1, calls // POINTS))
        folder = tmp_path / str(index)
        folder.mkdir()
        file, acknowledged, _ = crashed(folder, point, seed=index)
        expected = states(index, BATCHES)
        found = rows_in(file)
        assert found in (expected[acknowledged], expected[min(acknowledged + 1, BATCHES)]), f"killed at call {point}"
        Store(file).close()
        assert not [row for row in rows_in(file).values() if row and row.number < FIRST], "it can be opened and written again"


@needs_disk
@pytest.mark.fault("D07")
def test_what_could_not_be_synchronised_is_not_acknowledged(tmp_path: Path) -> None:
    """The copies below take for granted that whatever is acknowledged was."""
    file = tmp_path / "ledger.db"
    environment = {**os.environ, **Disk(tmp_path, file.name).environment()}
    command = [sys.executable, "-c", UNSYNCHRONISED, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "disk I/O error" in done.stderr


@pytest.mark.fault("D07")
def test_a_copy_whose_unsynchronised_end_is_lost_holds_all_acknowledged_rows(tmp_path: Path) -> None:
    """A power cut may keep any part of what was written after the last synchronisation: of the log's tail, and of a checkpoint's pages."""
    rng = random.Random(3)
    file = tmp_path / "ledger.db"
    store = Store(file)
    store._connection.execute("PRAGMA wal_autocheckpoint = 8")
    first, count = store.begin(0.0), 60
    wal = file.with_name("ledger.db-wal")
    before, log = file.read_bytes(), wal.read_bytes()
    expected = states(3, count)
    for at, batch in enumerate(batches(first, 3, count)):
        store.write(batch)
        acknowledged, log, old = len(wal.read_bytes()), wal.read_bytes(), log
        after = file.read_bytes()
        # The pages of a checkpoint, which were synchronised only when the log's next beginning overwrote it.
        pages = before if log[SALT] == old[SALT] else after
        copy = tmp_path / f"copy{at}"
        copy.mkdir()
        mixed = b"".join(
            (after if rng.random() < 0.5 else pages)[place : place + 4096] for place in range(0, max(len(after), len(pages)), 4096)
        )
        (copy / file.name).write_bytes(mixed if len(pages) == len(after) else after)
        (copy / wal.name).write_bytes(log[:acknowledged] + rng.randbytes(rng.randrange(9000)))
        assert rows_in(copy / file.name) == expected[at + 1]
        shutil.rmtree(copy)
        if log[SALT] != old[SALT]:
            before = after
    store.close()


@pytest.mark.fault("D07")
def test_a_log_cut_anywhere_opens_with_a_state_that_was_acknowledged(tmp_path: Path) -> None:
    """Whatever byte is the last: some whole batches, the first ones, and never part of one."""
    rng = random.Random(4)
    file = tmp_path / "ledger.db"
    store = Store(file)
    store._connection.execute("PRAGMA wal_autocheckpoint = 0")
    first = store.begin(0.0)
    wal = file.with_name("ledger.db-wal")
    sizes = [len(wal.read_bytes())]
    for batch in batches(first, 5, 20):
        store.write(batch)
        sizes.append(len(wal.read_bytes()))
    expected, log = states(5, 20), wal.read_bytes()
    for index in range(40):
        cut = rng.randrange(sizes[0], len(log))
        copy = tmp_path / f"copy{index}"
        copy.mkdir()
        shutil.copy(file, copy)
        (copy / wal.name).write_bytes(log[:cut])
        whole = sum(size <= cut for size in sizes) - 1
        assert rows_in(copy / file.name) == expected[whole]
    store.close()


def test_a_row_is_what_was_written(tmp_path: Path) -> None:
    """The comparison above compares something."""
    file = tmp_path / "ledger.db"
    store = Store(file)
    number = store.begin(0.0)
    row = Row(number, "id", "key", "model", "openai", 2, 1.5)
    store.write({number: row})
    assert rows_in(file) == {number: row}
    store.close()
