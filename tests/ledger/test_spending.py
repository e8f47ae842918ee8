"""The sums of what keys have spent, against all that was added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintet.ledger.spending import DAY, FINE_DAYS, SLOT, Spending

NEWEST = 20 * DAY
spent = st.tuples(st.sampled_from("ab"), st.floats(0, NEWEST - 1), st.integers(0, 10**9))


@given(st.lists(spent, max_size=60), st.floats(0, NEWEST))
def test_a_sum_is_exact_from_its_minute_or_of_older_days_from_its_day(added: list[tuple[str, float, int]], since: float) -> None:
    """In whatever order they come; clocks jump."""
    made = Spending(0.0)
    for key, time, tokens in added:
        made.add(key, time, tokens)
    newest = max((int(time // DAY) for _, time, _ in added), default=0)
    grain = SLOT if since // DAY > newest - FINE_DAYS else DAY
    for key in "ab":
        expected = sum(tokens for one, time, tokens in added if one == key and time // grain >= since // grain)
        assert made.since(key, since) == expected


@given(st.lists(spent, max_size=60), st.integers(0, 20))
def test_a_sum_from_the_beginning_of_a_day_is_exact(added: list[tuple[str, float, int]], day: int) -> None:
    made = Spending(0.0)
    for key, time, tokens in added:
        made.add(key, time, tokens)
    assert made.since("a", day * DAY) == sum(tokens for key, time, tokens in added if key == "a" and time >= day * DAY)
