"""A tiny model and a folder for its pack."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.backends.native.worker.pack_loads import LIMIT, Loads
from tests.reference.tiny_model import TinySpec, write_tiny

from quintet.backends.native.worker import packing
from quintet.config import CacheFolder


@pytest.fixture
def cache(tmp_path: Path) -> CacheFolder:
    return CacheFolder(str(tmp_path / "cache" / "packs"), LIMIT)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "small.gguf", TinySpec("small", layers=1))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Loads:
    """Files that were just written count as old."""
    monkeypatch.setattr(packing, "SETTLED_NS", -(10**10))
    return Loads(monkeypatch, caplog)
