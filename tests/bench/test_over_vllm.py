"""How Quintet over vLLM is judged beside vLLM's own server; vLLM itself is not needed."""

from __future__ import annotations

import pytest

from bench.common.proc import PeerError
from bench.engines.engines import Sample
from bench.engines.over_vllm import judged


def measured(*rounds: tuple[float, float]) -> list[Sample]:
    """Of eight clients: tokens per second, and milliseconds to the first token, in each round."""
    found = [Sample("b8", rate, {"ttft_ms": {"p50": first}}) for rate, first in rounds]
    return [Sample("load", 9.0), *found]


@pytest.mark.parametrize(
    ("ours", "line", "fits"),
    [
        ([(95, 104.9), (94, 300), (96, 90)], "95 of 100 tokens/s (95.0%), first token after 104.9 and 100.0 ms: as it must be", True),
        ([(94, 90)], "94 of 100 tokens/s (94.0%), first token after 90.0 and 100.0 ms: MISSED", False),
        ([(100, 105.1)], "100 of 100 tokens/s (100.0%), first token after 105.1 and 100.0 ms: MISSED", False),
    ],
)
def test_both_the_rate_and_the_first_token_count_by_their_medians(ours: list[tuple[float, float]], line: str, fits: bool) -> None:
    assert judged((measured(*ours), measured((100, 100))), 8) == (f"8 clients: {line}", fits)


def test_what_was_never_measured_is_told_and_not_judged() -> None:
    with pytest.raises(PeerError, match="8 clients: their streams never ran all at once"):
        judged((measured((100, 100)), [Sample("load", 9.0)]), 8)
