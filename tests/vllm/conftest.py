"""Tests of the real vLLM, for ``make test-vllm``, which makes their environment and models. Without vLLM they are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from tests.vllm.engine import Shared
from tests.vllm.models import MODELS, folder

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Shared]:
    """The bundled model in float32."""
    shared = Shared(folder("smollm2"))
    yield shared
    shared.end()


@pytest.fixture(scope="session", params=MODELS)
def any_model(request: pytest.FixtureRequest) -> Iterator[Shared]:
    """Each tiny random model."""
    shared = Shared(folder(request.param))
    yield shared
    shared.end()
