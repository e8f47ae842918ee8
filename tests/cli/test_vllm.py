"""Which engine a model gets, what is refused for it, and what vLLM is told; vLLM itself is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from tests.reference.folders import write_folder
from tests.reference.seeing_folder import write_seeing
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.report import Notes

from quintet.backends.native.worker.load import load_tokenizer
from quintet.backends.vllm.images import hidden_size
from quintet.cli import engines, fleet, vllm
from quintet.cli.console import OptionError
from quintet.cli.plans import Plan
from quintet.config import EngineName, VllmConfig
from quintet.errors import ModelError


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny", types=(Type.BF16,)))


@pytest.fixture(scope="module")
def known(gguf: Path) -> Path:
    return write_folder(gguf.parent / "known", gguf)


@pytest.fixture(scope="module")
def unknown(gguf: Path) -> Path:
    """Of a family that the native core does not know, quantised as it does not read."""
    folder = write_folder(gguf.parent / "unknown", gguf)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = config | {"model_type": "novel", "quantization_config": {"quant_method": "awq"}}
    (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    return folder


def planned(model: Path, engine: EngineName, installed: bool, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Plan:
    monkeypatch.setattr(vllm, "_installed", lambda: installed)
    given = tuple(more.pop("given", ()))
    asked = engines.EngineOptions(
        model=str(model), ctx_size=more.pop("ctx_size", 0), threads=1, kv_bytes=1 << 24, offline=True, engine=engine, given=given, **more
    )
    return engines.plan(asked, Notes())


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_what_the_native_core_knows_it_computes(gguf: Path, known: Path, engine: EngineName, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (gguf, known):
        assert planned(model, engine, True, monkeypatch).vllm is None


def test_vllm_computes_what_is_asked_of_it_or_unknown_otherwise(known: Path, unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model, engine in ((known, "vllm"), (unknown, "vllm"), (unknown, "auto")):
        plan = planned(model, engine, True, monkeypatch, ctx_size=32)  # type: ignore[arg-type]
        assert plan.vllm is not None
        assert (plan.vllm.path, plan.vllm.context, plan.context, plan.name) == (str(model), 32, 32, model.name)
        assert plan.mapped, "what a device holds is not weighed against this machine's memory"


def test_the_tokenizer_of_an_unknown_family_is_that_of_a_known_one(known: Path, unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the cat sat <s> on the mat"
    mine, theirs = planned(unknown, "vllm", True, monkeypatch).tokenizer(), load_tokenizer(known)
    assert (mine.encode(text), list(mine.pieces), mine.eos_ids) == (theirs.encode(text), list(theirs.pieces), theirs.eos_ids)
    with pytest.raises(ModelError, match="quantised"):
        load_tokenizer(unknown)


def test_a_model_whose_images_are_known_here_is_shown_them_so_and_of_another_vllm_is_asked(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    monkeypatch.setattr(vllm, "_installed", lambda: True)

    def sees(folder: Path, *arguments: str) -> str:
        options = VllmConfig(vllm_arg=arguments)
        asked = engines.EngineOptions(
            model=str(folder), ctx_size=0, threads=1, kv_bytes=1 << 24, offline=True, engine="vllm", longest_edge=120, vllm=options
        )
        plan = engines.plan(asked, notes)
        assert plan.vllm is not None
        assert plan.longest_edge == 120
        return plan.vllm.vision

    seeing = write_seeing(tmp_path)
    assert sees(seeing) == "layout"
    assert sees(known) == "processor"
    assert not any("no images" in line for line in notes.lines)
    assert sees(seeing, "language_model_only=true") == ""
    config = json.loads((seeing / "config.json").read_text(encoding="utf-8")) | {"model_type": "novel"}
    (seeing / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert sees(seeing) == "processor"


def test_what_a_language_model_inside_another_file_leaves_out_is_what_its_type_has(known: Path, tmp_path: Path) -> None:
    """Gemma 3's published files tell neither how many tokens there are nor, some, how wide the model is."""
    for file in known.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    part = {"model_type": "gemma3_text", "intermediate_size": 64, "num_hidden_layers": 2, "sliding_window": 16}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": part}), encoding="utf-8")
    assert len(load_tokenizer(tmp_path, any_model=True).pieces) == 262208
    assert hidden_size(tmp_path) == 2304


@pytest.mark.parametrize("size", [None, 0, -5, "many", True, 1 << 40])
def test_a_folder_tells_how_many_tokens_it_has(unknown: Path, tmp_path: Path, size: object) -> None:
    for file in unknown.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((unknown / "config.json").read_text(encoding="utf-8")) | {"vocab_size": size}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="'vocab_size' must be an integer from 1"):
        load_tokenizer(tmp_path, any_model=True)


@pytest.mark.parametrize(
    ("model", "engine", "installed", "told"),
    [
        ("known", "vllm", False, "needs vLLM: pip install 'quintet.vllm.'"),
        ("gguf", "vllm", True, "vLLM loads folders with safetensors, and this is a GGUF file"),
        ("unknown", "auto", False, "AWQ|awq"),
        ("unknown", "native", True, "AWQ|awq"),
    ],
)
def test_what_cannot_be_is_told(
    model: str, engine: EngineName, installed: bool, told: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=told):
        planned(request.getfixturevalue(model), engine, installed, monkeypatch)


def test_a_folder_with_weights_twice_is_refused_for_vllm_which_takes_others_than_the_native_engine(
    gguf: Path, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "both", gguf, shards=2)
    assert planned(folder, "vllm", True, monkeypatch).vllm is not None
    (folder / "model.safetensors").write_bytes((known / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"index.json names model-00001-of-00002.safetensors.*; remove what is not meant"):
        planned(folder, "vllm", True, monkeypatch)
    assert planned(folder, "auto", True, monkeypatch).vllm is None
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert planned(folder, "vllm", True, monkeypatch).vllm is not None, "the index names it alone"


def served(monkeypatch: pytest.MonkeyPatch, engine: EngineName, *models: str, **more: Any) -> fleet.Fleet:
    monkeypatch.setattr(vllm, "_installed", lambda: True)
    asked = engines.EngineOptions(model="", ctx_size=0, threads=1, kv_bytes=1 << 24, offline=True, engine=engine, **more)
    return fleet.plan(fleet.FleetOptions(models, asked), Notes())


@pytest.mark.parametrize("option", sorted(vllm.NATIVE_ONLY))
def test_an_option_that_vllm_has_nothing_for_is_refused(known: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=f"^--{option.replace('_', '-')} is nothing to the vLLM engine; leave it out"):
        served(monkeypatch, "vllm", str(known), given=(option,))


@pytest.mark.parametrize("option", sorted(vllm.VLLM_ONLY))
def test_an_option_of_vllms_is_refused_for_the_native_engine(gguf: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("auto", "native"):
        with pytest.raises(OptionError, match=f"^--{option.replace('_', '-')} is nothing to the native engine; leave it out"):
            served(monkeypatch, engine, str(gguf), given=(option,))


@pytest.mark.parametrize("option", sorted((vllm.NATIVE_ONLY | vllm.TOYS_OWN | {*vllm.VLLM_ONLY}) - vllm.HARMLESS))
def test_an_option_of_either_engine_is_refused_for_the_toy_model(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=f"^--{option.replace('_', '-')} is nothing to the toy model; leave it out"):
        served(monkeypatch, "auto", "toy", given=(option,))


def test_the_context_that_vllm_will_have_is_known_only_where_it_is_told_one(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.context for one in served(monkeypatch, "vllm", str(known)).models] == [None]
    monkeypatch.setattr(vllm, "_installed", lambda: True)
    asked = engines.EngineOptions(model="", ctx_size=32, threads=1, kv_bytes=1 << 24, offline=True, engine="vllm")
    assert [one.context for one in fleet.plan(fleet.FleetOptions((str(known),), asked), Notes()).models] == [32]


def test_an_option_is_for_the_models_that_it_is_something_to(gguf: Path, unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"vllm": VllmConfig(dtype="float32"), "given": ("dtype", "threads", "kv_cache")}
    native, other, toy = served(monkeypatch, "auto", str(gguf), str(unknown), "toy", **asked).plans
    assert (native.kind, other.kind, toy.kind) == ("native", "vllm", "toy")
    assert other.vllm is not None
    assert (native.threads, other.vllm.options.dtype) == (1, "float32")


def test_what_is_said_of_one_model_is_refused_where_its_engine_has_nothing_for_it(
    gguf: Path, unknown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="^--mmproj is nothing to the vLLM engine, which computes unknown"):
        served(monkeypatch, "auto", str(unknown), str(gguf), mmproj="none", given=("mmproj",))
    with pytest.raises(OptionError, match="^--draft is nothing to the vLLM engine, which computes unknown"):
        planned(unknown, "auto", True, monkeypatch, draft=str(gguf))
    with pytest.raises(OptionError, match="^--engine vllm is nothing to the toy model"):
        served(monkeypatch, "vllm", "toy")


def test_vllm_gets_its_options_and_a_kv_cache_if_one_was_asked_for(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = VllmConfig(dtype="bfloat16", tensor_parallel_size=2)
    plan = planned(known, "vllm", True, monkeypatch, vllm=asked, given=("kv_cache", "dtype"))
    assert plan.vllm is not None
    assert (plan.vllm.options.dtype, plan.vllm.options.tensor_parallel_size, plan.vllm.options.kv_bytes) == ("bfloat16", 2, 1 << 24)
    plan = planned(known, "vllm", True, monkeypatch)
    assert plan.vllm is not None
    assert plan.vllm.options.kv_bytes == 0
    with pytest.raises(ModelError, match="--ctx-size must be at most"):
        planned(known, "vllm", True, monkeypatch, ctx_size=1 << 20)
    with pytest.raises(ModelError, match="must be NAME=VALUE"):
        planned(known, "vllm", True, monkeypatch, vllm=VllmConfig(vllm_arg=("wrong",)))
