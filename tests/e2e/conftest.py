"""Real and tiny model files, and runners of them, of which the last ones stay loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import pytest
from tests.e2e.paged import CONTEXT, PAGES, LoadRunner
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.bundled import bundled_path

from quintet.backends.native.core.cpu import isas
from quintet.backends.native.core.types import Runner
from quintet.config import KvType, Quantize


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The bundled model's file."""
    return bundled_path()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinySpec], Path]:
    """Writes a tiny model file, once; a model has a name of its own, or it would take another's place under the runners of that."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def write(spec: TinySpec) -> Path:
        path = folder / f"{spec.name}.gguf"
        assert not path.exists(), f"two models are called {spec.name}"
        return write_tiny(path, spec)

    return write


@pytest.fixture(scope="session")
def load_runner() -> LoadRunner:
    """``load_runner(path, threads=1, isa=None, quantize="q8", kv_type="f16")``: a runner with ``PAGES`` pages.

    ``None`` = the best instruction set.
    """
    from tests.support.loading import native_loader

    @lru_cache(maxsize=32)  # not all that there are: each has threads and pages of its own, hundreds of them took 5 GB
    def load(path: Path, threads: int, isa: str, quantize: Quantize, kv_type: KvType) -> Runner:
        runner = native_loader(path, threads=threads, context=CONTEXT, isa=isa, quantize=quantize, kv_type=kv_type)(lambda _: None).runner
        runner.allocate(PAGES)
        return runner

    return lambda path, threads=1, isa=None, quantize="q8", kv_type="f16": load(path, threads, isa or isas()[0], quantize, kv_type)
