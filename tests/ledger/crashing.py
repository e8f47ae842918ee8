"""Writes batches of rows that follow from a seed, and says after each that it is on the disk; a process to be killed.

``python -m tests.ledger.crashing FILE SEED BATCHES``
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store
from quintet.ledger.writer import Rows


def batches(first: int, seed: int, count: int) -> Iterator[Rows]:
    """Rows opened, noted, closed and withdrawn, as several clients would have it."""
    rng = random.Random(seed)
    live: dict[int, Row] = {}
    number = first
    for _ in range(count):
        batch: Rows = {}
        for _ in range(rng.randint(1, 4)):
            row = Row(number, f"{number:032x}", "0123abcd", "toy", "openai", 1, 1_000_000.0 + number % 1000, prompt=rng.randint(0, 9))
            live[number] = batch[number] = row
            number += 1
        for old in rng.sample(sorted(live), min(len(live), rng.randint(0, 4))):
            grown = live[old]._replace(completion=live[old].completion + rng.randint(1, 9))
            ends = rng.random()
            if ends < 0.3:
                grown = grown._replace(state=State.COMPLETED, finish="stop", status=200, total=1.0)
            batch[old] = None if ends > 0.95 else grown
            if ends < 0.3 or ends > 0.95:
                del live[old]
            else:
                live[old] = grown
        yield batch


def main() -> None:
    file, seed, count = sys.argv[1:]
    store = Store(Path(file))
    store._connection.execute("PRAGMA wal_autocheckpoint = 8")  # so that there are many
    first = store.begin(1_000_000.0)
    for at, batch in enumerate(batches(first, int(seed), int(count))):
        store.write(batch)
        sys.stdout.write(f"{at}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
