"""LoRA adapters: what is seen of them before an engine is asked, and that no damaged one gets past a ``ModelError`` of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.reference.folders import write_safetensors
from tests.support.adapters import write_adapter

from quintet.errors import ModelError
from quintet.models.folder.adapter import check_adapter, rank_of, shapes_of

MODULES = {"model.layers.0.self_attn.q_proj": (8, 6)}


def test_equal_files_have_equal_digests_wherever_they_are(tmp_path: Path) -> None:
    first, second, other = (write_adapter(tmp_path / name, MODULES, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert check_adapter(first, 16, {}) == check_adapter(second, 16, {}) != check_adapter(other, 16, {})


def test_the_rank_is_the_largest_of_any_matrix(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", MODULES, rank=4, rank_pattern={"q_proj": 12, "v_proj": 3})
    assert rank_of(folder) == 12
    with pytest.raises(ModelError, match=r"rank of at most 8 \(--max-lora-rank\), got 12"):
        check_adapter(folder, 8, {})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"peft_type": "IA3"}, "must be LORA, got 'IA3'"),
        ({"r": 0}, "'r' must be an integer from 1 to 512, got 0"),
        ({"rank_pattern": {"q_proj": "8"}}, "'rank_pattern.q_proj' must be an integer"),
    ],
)
def test_settings_that_are_not_loras_are_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_adapter(write_adapter(tmp_path / "a", MODULES, **settings), 16, {})
    assert told in str(refused.value)


def test_a_folder_that_is_none_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must be a folder with adapter_config.json"):
        check_adapter(tmp_path / "nothing", 16, {})
    folder = write_adapter(tmp_path / "a", MODULES)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="damaged"):
        check_adapter(folder, 16, {})
    write_safetensors(weights, {"a": ("F32", (1,), bytes(4))})
    with pytest.raises(ModelError, match="must hold tensors of LoRA"):
        check_adapter(folder, 16, {})
    weights.unlink()
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        check_adapter(folder, 16, {})


def test_one_of_another_model_is_refused_and_matrices_that_are_not_known_are_let_pass(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", MODULES)
    name = "model.layers.0.self_attn.q_proj"
    assert check_adapter(folder, 16, {f"{name}.weight": (8, 6)}) == check_adapter(folder, 16, {"model.layers.9.weight": (1, 1)})
    for shape, told in (((8, 7), "lora_A.weight' must have 7 columns"), ((9, 6), "lora_B.weight' must have 9 rows")):
        with pytest.raises(ModelError) as refused:
            check_adapter(folder, 16, {f"{name}.weight": shape})
        assert told in str(refused.value)


def test_the_shapes_of_a_model_are_those_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("F32", (2, 3), bytes(24))})
    assert shapes_of(tmp_path) == {"a.weight": (2, 3)}
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("I32", (2, 3), bytes(24))})
    assert shapes_of(tmp_path) == {}
