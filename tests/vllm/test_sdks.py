"""The providers' own SDKs, in strict mode, over a text model and one that sees images, both computed by vLLM."""

from __future__ import annotations

import pytest
from tests.clients.__main__ import LEAST, strict
from tests.vllm.models import SEEING
from tests.vllm.serving import serving


@pytest.mark.parametrize("seeing", [SEEING, "qwen2_5_vl"])
def test_the_sdks_strict_suite_passes(seeing: str) -> None:
    """With images that are laid out here, and with those that vLLM's own processor shows the model."""
    named = () if seeing == "seeing" else ("--alias", f"seeing={seeing}")
    with (
        serving("smollm2", "--alias", "toy=smollm2") as (toy, _),
        serving(seeing, "--image-longest-edge", "120", *named) as (shown, _),
    ):
        done = strict(toy.removesuffix("/v1"), shown.removesuffix("/v1"))
    assert done.failed == 0
    assert done.passed >= LEAST
