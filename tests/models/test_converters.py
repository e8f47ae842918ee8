"""Keys that llama.cpp's converters write beside those that count: none of them is a reason to refuse a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reference.tiny_model import FAMILIES, write_tiny

from quintet.models.gguf import open_model
from quintet.models.spec import ModelSpec

BESIDE: dict[str, dict[str, Any]] = {
    "starcoder2": {"attention.layer_norm_rms_epsilon": 1e-5},  # of 15B
}
"""Name of a tiny model -> the keys."""


def opened(path: Path, name: str, keys: dict[str, Any]) -> ModelSpec:
    """What a file of the tiny model ``name`` is with ``keys`` beside its own."""
    tiny = next(spec for spec in FAMILIES if spec.name == name)
    return open_model(write_tiny(path, replace(tiny, metadata={**tiny.metadata, **keys}))).spec


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_with_all_that_its_converter_writes_is_what_it_is_without(tmp_path: Path, name: str) -> None:
    assert opened(tmp_path / "all.gguf", name, BESIDE[name]) == opened(tmp_path / "some.gguf", name, {})
