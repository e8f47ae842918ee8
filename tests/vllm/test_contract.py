"""The contract of backends over the real vLLM.

Two of its tests are not here: they count how often a prompt is computed for all its samples, and cached pages, which are vLLM's matters.
Log-probabilities are held to four places and not to the bit: vLLM's depend on who else is in the batch, as docs/engines.md says.
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
    "test_echoed_log_probabilities_are_those_of_generating_the_same_tokens",  # to the bit; test_numbers.py has it
}
globals().update({name: value for name, value in vars(contract).items() if name.startswith("test_") and name not in NOT_VLLMS})


@pytest.fixture
def check(smollm2: Shared, monkeypatch: pytest.MonkeyPatch) -> Check:
    """See the contract's."""
    monkeypatch.setattr(contract, "told", rounded)

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


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-4)
