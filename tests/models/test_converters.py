"""Keys that llama.cpp's converters write beside those that count, which are no reason to refuse a file, and keys that old ones left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reference.tiny_model import FAMILIES, write_tiny

from quintet.errors import ModelError
from quintet.models.gguf import open_model
from quintet.models.spec import ModelSpec

BESIDE: dict[str, dict[str, Any]] = {
    "granite": {  # of 4.0's without other layers than attention
        **{"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 1, "ssm.inner_size": 320, "ssm.time_step_rank": 5},
        **{"expert_count": 0, "expert_used_count": 0, "expert_shared_feed_forward_length": 352, "rope.scaling.finetuned": True},
        "attention.head_count_kv": [1, 1],  # of each layer
    },
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


def test_heads_of_keys_that_are_listed_by_layer_are_all_the_same(tmp_path: Path) -> None:
    for listed, rule in (([5, 1], "must be the same 2 times"), ([1], "must have 2 entries, got 1"), ([1.0, 1.0], "must be an integer")):
        with pytest.raises(ModelError, match=rf"^m\.gguf: 'granite\.attention\.head_count_kv' {rule}"):
            opened(tmp_path / "m.gguf", "granite", {"attention.head_count_kv": listed})


def test_a_gemma_2_without_keys_for_caps_and_window_has_those_of_its_family(tmp_path: Path) -> None:
    """Converters of its first days did not write them; llama.cpp takes these where they are missing. 0 is none."""
    tiny = next(spec for spec in FAMILIES if spec.name == "gemma2")
    usual = {"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}

    def said(**keys: Any) -> tuple[list[int], set[float], float]:
        spec = open_model(write_tiny(tmp_path / f"{len(keys)}.gguf", replace(tiny, metadata=keys))).spec
        return [layer.window for layer in spec.layers], {layer.attn_cap for layer in spec.layers}, spec.logit_cap

    assert said() == said(**usual) == ([4096, 0, 4096], {50.0}, 30.0)
    assert said(**{key: type(value)(0) for key, value in usual.items()}) == ([0, 0, 0], {0.0}, 0.0)


def test_a_window_of_every_layer_is_a_pattern_of_0(tmp_path: Path) -> None:
    """As llama.cpp reads it; 1 is that of none."""
    for pattern, windows in ((0, [9, 9, 9]), (1, [0, 0, 0]), (3, [9, 9, 0])):
        spec = opened(tmp_path / f"{pattern}.gguf", "gemma2", {"attention.sliding_window_pattern": pattern})
        assert [layer.window for layer in spec.layers] == windows
