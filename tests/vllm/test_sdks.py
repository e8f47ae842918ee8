"""The providers' own SDKs, in strict mode, over a text model and models that see images, computed by vLLM."""

from __future__ import annotations

from tests.clients.__main__ import LEAST, strict
from tests.vllm.models import SEEING
from tests.vllm.serving import serving


def test_the_sdks_strict_suite_passes() -> None:
    with serving("smollm2", "--alias", "toy=smollm2") as (toy, _), serving(SEEING, "--image-longest-edge", "120") as (seeing, _):
        done = strict(toy.removesuffix("/v1"), seeing.removesuffix("/v1"))
    assert done.failed == 0
    assert done.passed >= LEAST


def test_it_passes_over_one_model_for_text_and_images_that_vllms_own_processor_shows_them() -> None:
    name = "qwen2_5_vl"
    with serving(name, "--alias", f"toy={name}", "--alias", f"seeing={name}") as (url, _):
        done = strict(*[url.removesuffix("/v1")] * 2)
    assert done.failed == 0
    assert done.passed >= LEAST
