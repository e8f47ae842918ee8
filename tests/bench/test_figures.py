"""What a comparison says."""

from __future__ import annotations

import pytest

from bench.common.figures import Ratio


@pytest.mark.parametrize(
    ("value", "needed", "at_most", "verdict"),
    [(5.0, 5.0, False, "pass"), (4.9, 5.0, False, "SHORT"), (150, 150, True, "pass"), (151, 150, True, "SHORT"), (3, None, False, "")],
)
def test_a_ratio_says_whether_it_is_what_is_required(value: float, needed: float | None, at_most: bool, verdict: str) -> None:
    assert Ratio("", "", value, needed, "", at_most).verdict == verdict
