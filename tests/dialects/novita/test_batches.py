"""Times as Novita writes them."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from quintet.dialects.novita.batches import stamp


@given(st.integers(0, 253_402_300_799))
def test_a_stamp_is_what_the_calendar_says(time: int) -> None:
    assert stamp(time) == datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").zfill(20)


def test_no_time_is_none() -> None:
    assert stamp(None) is None
