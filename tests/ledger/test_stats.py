"""What the ledger counts of itself."""

from __future__ import annotations

from quintet.ledger.stats import BOUNDS, Stats


def test_a_commit_counts_by_the_first_bound_that_it_did_not_exceed_and_its_time_and_rows_are_summed_up() -> None:
    stats = Stats()
    for seconds, closed in ((BOUNDS[0], 2), (0.02, 0), (0.025, 3), (BOUNDS[-1] + 1, 1)):
        stats.wrote(seconds, closed)
    assert {at: count for at, count in enumerate(stats.commits) if count} == {0: 1, BOUNDS.index(0.025): 2, len(BOUNDS): 1}
    assert (stats.written, stats.seconds) == (6, BOUNDS[0] + 0.02 + 0.025 + BOUNDS[-1] + 1)
