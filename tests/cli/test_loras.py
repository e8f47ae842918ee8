"""``--lora``: which adapters a model begins with, its room for more, and what is refused at the start; vLLM itself is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from tests.reference.folders import write_folder
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.adapters import write_adapter
from tests.support.report import Notes

from quintet.cli import engines, fleet, references, vllm
from quintet.cli.console import OptionError
from quintet.config import VllmConfig
from quintet.errors import ModelError
from quintet.models.folder.adapter import shapes_of

MODULE = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and two adapters."""
    root = tmp_path_factory.mktemp("loras")
    write_folder(root / "tiny", write_tiny(root / "tiny.gguf", TinySpec("tiny", types=(Type.BF16,))))
    rows, columns = shapes_of(root / "tiny")[f"{MODULE}.weight"]
    write_adapter(root / "small", {MODULE: (rows, columns)})
    write_adapter(root / "large", {MODULE: (rows, columns)}, rank=40)
    write_adapter(root / "stranger", {MODULE: (rows, columns + 1)})
    return root


def planned(folder: Path, monkeypatch: pytest.MonkeyPatch, *given: str, engine: Any = "vllm", **options: Any) -> fleet.Fleet:
    monkeypatch.setattr(vllm, "_installed", lambda: True)
    asked = engines.EngineOptions(
        model="", ctx_size=0, threads=1, kv_bytes=1 << 24, offline=True, engine=engine, vllm=VllmConfig(**options)
    )
    return fleet.plan(fleet.FleetOptions((f"base={folder / 'tiny'}",), asked, loras=given), Notes())


def test_adapters_are_names_of_their_model_with_room_made_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(folder, monkeypatch, f"a=base:{folder / 'small'}", f"b=base:{folder / 'large'}")
    assert list(found.names.exact.items()) == [("base", "base"), ("a", "base"), ("b", "base")]
    (model,), (plan,) = found.models, found.plans
    assert model.loras is not None
    assert (model.loras.most, model.loras.given) == (2, (("a", str(folder / "small")), ("b", str(folder / "large"))))
    assert plan.vllm is not None
    assert (plan.vllm.options.max_loras, plan.vllm.options.max_lora_rank) == (2, 40)
    assert len({model.loras.check(path) for _, path in model.loras.given}) == 2


def test_room_may_be_made_for_adapters_to_come_and_without_it_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = planned(folder, monkeypatch, max_loras=3).models[0].loras
    assert room is not None
    assert (room.most, room.given) == (3, ())
    with pytest.raises(ModelError, match="rank of at most 16"):
        room.check(str(folder / "large"))
    assert planned(folder, monkeypatch).models[0].loras is None


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (("a={0}/small",), {}, "--lora must be NAME=MODEL:PATH"),
        (("a=base",), {}, "--lora must be NAME=MODEL:PATH"),
        (("a=other:{0}/small",), {}, "--lora: MODEL must be one of base, got 'other'"),
        (("base=base:{0}/small",), {}, "the name 'base' is given twice"),
        (("a=base:{0}/none",), {}, "--lora a: "),
        (("a=base:{0}/stranger",), {}, "columns, as the model's matrix has"),
        (("a=base:{0}/large",), {"max_lora_rank": 32}, "--lora a: adapter_config.json: must be of a rank of at most 32"),
        (("a=base:{0}/small", "b=base:{0}/small"), {"max_loras": 1}, "--max-loras must be at least as many as --lora gives base, 2, got 1"),
        (("a=base:{0}/small",), {"engine": "native"}, "--lora is nothing to the native engine, which computes base"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], options: dict[str, Any], told: str
) -> None:
    with pytest.raises((OptionError, ModelError)) as refused:
        planned(folder, monkeypatch, *(text.format(folder) for text in given), **options)
    assert told in str(refused.value)


def test_in_a_file_of_settings_a_path_is_relative_to_it() -> None:
    assert references.based_adapter(Path("/etc/quintet"), "a=base:loras/a") == "a=base:/etc/quintet/loras/a"
    assert references.based_adapter(Path("/etc/quintet"), "a=base:/srv/a") == "a=base:/srv/a"
