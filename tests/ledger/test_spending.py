"""The sums of what keys have spent, against all that was added."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quintet.ledger.spending import DAY, FINE_DAYS, SLOT, Spending

NEWEST = 20 * DAY
spent = st.tuples(st.sampled_from("ab"), st.floats(0, NEWEST - 1), st.integers(0, 10**9))


@given(st.lists(spent, max_size=60))
def test_sums_stand_at_the_end_of_their_slot_or_of_older_days_of_their_day_in_order(added: list[tuple[str, float, int]]) -> None:
    """In whatever order they come; clocks jump."""
    made = Spending(0.0)
    for key, time, tokens in added:
        made.add(key, time, tokens)
    newest = max((int(time // DAY) for _, time, _ in added), default=0)
    for key in "ab":
        expected: Counter[int] = Counter()
        for one, time, tokens in added:
            grain = SLOT if time // DAY > newest - FINE_DAYS else DAY
            if one == key:
                expected[int(time // grain + 1) * grain] += tokens
        assert made.of(key) == sorted(expected.items())
    again = Spending(0.0)
    for each in made.all():
        again.add(*each)
    assert all(again.of(key) == made.of(key) for key in "ab")
