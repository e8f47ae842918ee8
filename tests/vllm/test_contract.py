"""The contract of backends over the real vLLM.

Two of its tests are not here: they count how often a prompt is computed for all its samples, and cached pages, which are vLLM's matters.
Log-probabilities are held to three or four places and not to the bit: vLLM's depend on who else is in the batch, and on whether a token
was read or generated, as docs/engines.md says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from tests.backends.contract import test_backend as contract
from tests.backends.contract.conftest import Check
from tests.vllm.engine import Shared

from quintet.events import NO_DRAFTS, TokenEvent

NOT_VLLMS = {
    "test_a_prompt_is_computed_once_for_all_its_samples_and_not_again_where_it_is_cached",
    "test_pages_are_held_while_something_runs_and_only_cached_afterwards",
}
globals().update({name: value for name, value in vars(contract).items() if name.startswith("test_") and name not in NOT_VLLMS})


@pytest.fixture
def check(smollm2: Shared, monkeypatch: pytest.MonkeyPatch) -> Check:
    """See the contract's."""
    monkeypatch.setattr(contract, "told", rounded)
    monkeypatch.setattr(contract, "scores", rounded_scores)

    def run(scenario: Any) -> None:
        smollm2.check(scenario)

    return run


def rounded(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    return [
        structs.replace(
            event,
            seq=0,
            cached_tokens=0,
            waited=0.0,
            drafts=NO_DRAFTS,
            logprob=None if event.logprob is None else near(event.logprob),
            top=tuple((token, near(value)) for token, value in event.top),
        )
        for event in events
    ]


def rounded_scores(events: Sequence[TokenEvent]) -> list[tuple[int, Any, Any]]:
    return [(event.token, near(event.logprob, 1e-3), [(token, near(value, 1e-3)) for token, value in event.top]) for event in events]


def near(value: float | None, within: float = 1e-4) -> Any:
    return pytest.approx(value, abs=within)
