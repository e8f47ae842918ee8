"""LoRA adapters: what is seen of them before an engine is asked, and that no damaged one gets past a ``ModelError`` of one line."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reference.folders import write_safetensors
from tests.support.adapters import write_adapter

from quintet.errors import ModelError
from quintet.models.files import Map, sample
from quintet.models.folder.adapter import CONFIG, WEIGHTS, check_adapter, digest_of, rank_of, shapes_of
from quintet.models.folder.documents import read_document
from quintet.models.folder.opening import open_folder

MODULES = {"model.layers.0.self_attn.q_proj": (8, 6)}


def test_equal_files_have_equal_digests_wherever_they_are(tmp_path: Path) -> None:
    first, second, other = (write_adapter(tmp_path / name, MODULES, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert check_adapter(first, 16, {}) == check_adapter(second, 16, {}) != check_adapter(other, 16, {})


@given(st.integers(0, (1 << 20) - 1), st.integers(1, 255))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_one_other_byte_makes_another_adapter_wherever_it_is(tmp_path: Path, place: int, change: int) -> None:
    folder = tmp_path / "large"
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(b"{}")
    data = bytearray(1 << 20)
    (folder / WEIGHTS).write_bytes(data)
    before = digest_of(folder)
    data[place] = change
    (folder / WEIGHTS).write_bytes(data)
    assert digest_of(folder) != before


def test_the_rank_is_the_largest_of_any_matrix(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", MODULES, rank=4, rank_pattern={"q_proj": 12, "v_proj": 3})
    assert rank_of(folder) == 12
    with pytest.raises(ModelError, match=r"rank of at most 8 \(--max-lora-rank\), got 12"):
        check_adapter(folder, 8, {})


def test_matrices_that_are_stored_turned_are_read_so(tmp_path: Path) -> None:
    """GPT-2's are: as many rows as numbers are read, which ``fan_in_fan_out`` says."""
    shapes = {f"{name}.weight": (columns, rows) for name, (rows, columns) in MODULES.items()}
    check_adapter(write_adapter(tmp_path / "a", MODULES, fan_in_fan_out=True), 16, shapes)
    with pytest.raises(ModelError, match="columns, as the model's matrix has"):
        check_adapter(write_adapter(tmp_path / "b", MODULES, fan_in_fan_out=False), 16, shapes)


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
    assert check_adapter(folder, 16, {f"{name}.weight": (8, 6)}) == check_adapter(folder, 16, {f"{name}.qweight": (1, 1)})
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


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, file: str) -> None:
    folder = write_adapter(tmp_path / "a", MODULES)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(ModelError, match="is not a regular file"):
        check_adapter(folder, 16, {})
    with pytest.raises(ModelError, match="is not a regular file"):
        digest_of(folder)


A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{which}.weight" for which in "AB")
EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"


def shaped(folder: Path, tensors: dict[str, tuple[int, ...]], **settings: Any) -> Path:
    """An adapter of rank 4 with tensors of these shapes."""
    write_adapter(folder, MODULES, **settings)
    write_safetensors(folder / WEIGHTS, {name: ("F32", shape, bytes(4 * math.prod(shape))) for name, shape in tensors.items()})
    return folder


@pytest.mark.parametrize(
    ("first", "second", "settings", "told"),
    [
        ((8, 6), (8, 8), {}, f"tensor '{A}' must have 4 rows, the rank in {CONFIG}, got the shape [8, 6]"),
        ((4, 6), (8, 8), {}, f"tensor '{B}' must have 4 columns, the rank in {CONFIG}, got the shape [8, 8]"),
        ((4, 6), (8, 4), {"rank_pattern": {"q_proj": 2}}, f"tensor '{A}' must have 2 rows"),
        ((2, 6), (8, 2), {"rank_pattern": {"proj": 2, "0.self_attn.q": 2}}, f"tensor '{A}' must have 4 rows"),
        ((3, 6), (8, 3), {"rank_pattern": {"self_attn.*": 2}}, f"tensor '{A}' must have 4 or 2 rows"),
        ((4, 6), (8, 2), {"rank_pattern": {"self_attn.*": 2}}, f"tensor '{B}' must have 4 columns, as lora_A has rows"),
        ((4,), (8, 4), {}, f"tensor '{A}' must be a matrix, got the shape [4]"),
        ((6, 6), (8, 6), {"target_parameters": ["experts.down_proj"]}, f"tensor '{A}' must have 4 rows"),
    ],
)
def test_matrices_of_another_rank_than_their_settings_or_each_other_are_refused(
    tmp_path: Path, first: tuple[int, ...], second: tuple[int, ...], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelError) as refused:
        check_adapter(shaped(tmp_path / "a", {A: first, B: second}, **settings), 16, {})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("rank", "settings"),
    [
        (2, {"rank_pattern": {"v_proj": 8, "self_attn.q_proj": 2, "q_proj": 4}}),
        (2, {"rank_pattern": {"layers\\.0\\.self_attn\\.q_proj": 2}}),
        (2, {"rank_pattern": {r".*\.(q|k)_proj": 2}}),
        (4, {"rank_pattern": {"(([a-z.]+)+)+!": 2}}),
        (12, {"target_parameters": ["experts.down_proj"]}),
    ],
)
def test_ranks_are_those_of_the_settings_as_peft_reads_them(tmp_path: Path, rank: int, settings: dict[str, Any]) -> None:
    assert check_adapter(shaped(tmp_path / "a", {A: (rank, 6), B: (8, rank)}, **settings), 16, {})


def test_one_that_changes_nothing_of_the_model_is_refused(tmp_path: Path) -> None:
    folder, tensors = write_adapter(tmp_path / "a", MODULES), {A: (4, 6), B: (8, 4)}
    with pytest.raises(ModelError) as refused:
        check_adapter(folder, 16, {"model.layers.9.self_attn.q_proj.weight": (8, 6), "model.norm.weight": (8,)})
    told = f"tensor '{A}' must, as one of them at least, be for a matrix that the model has, got the shape [4, 6]"
    assert told in str(refused.value)
    for name in ("language_model.model.layers.0.self_attn.q_proj.qweight", "model.layers.0.self_attn.q_proj.0.weight"):
        assert check_adapter(folder, 16, {name: (1, 1)}), "the names of files are others than those that PEFT knows"
    for other in (EMBEDDING, "base_model.model.score.weight", "base_model.model.lm_head.lora_A.weight"):
        assert check_adapter(shaped(tmp_path / other, {**tensors, other: (4, 4)}), 16, {"model.layers.9.weight": (8, 6)})


def test_a_models_settings_that_are_a_pipe_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("F32", (2, 3), bytes(24))})
    os.mkfifo(tmp_path / "config.json")
    reading: list[Callable[[Path], object]] = [read_document, lambda path: Map(path, 1), lambda path: sample(path, hashlib.blake2b())]
    for reads in reading:
        with pytest.raises(ModelError, match=r"config\.json: is not a regular file"):
            reads(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_folder(tmp_path)
