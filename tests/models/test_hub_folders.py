"""Repositories of safetensors on the Hugging Face hub, which are fetched as folders; the hub is the one of ``test_hub``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from tests.reference.folders import write_folder
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.fake_hub import FakeHub
from tests.support.report import GGUF, Notes

from quintet.errors import ModelError
from quintet.models import hub, store
from quintet.models.opening import open_model


@pytest.fixture(params=[1, 2])
def folder(request: pytest.FixtureRequest, fake: FakeHub, tmp_path: Path) -> Path:
    """What the repository holds: a folder with one file of weights, or two and files that nobody asks for."""
    made = write_folder(tmp_path / "folder", write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny", types=(Type.BF16,))), shards=request.param)
    fake.files = {path.name: path.read_bytes() for path in made.iterdir()}
    fake.files |= {"README.md": b"hello", "original/consolidated.00.pth": b"x", "consolidated.safetensors": b"x"}
    return made


def test_a_repository_of_safetensors_is_fetched_as_a_folder(fake: FakeHub, folder: Path) -> None:
    notes = Notes()
    model = store.resolve("hf:user/repo", notes)
    assert (model.reference, model.name) == ("hf:user/repo", "repo")
    assert open_model(model.path).spec == open_model(folder).spec
    assert sorted(fake.sent) == sorted(path.name for path in folder.iterdir())
    assert model.size == sum(path.stat().st_size for path in folder.iterdir() if "index" not in path.name)
    assert notes.lines[-1] == "hf:user/repo is ready, SHA-256 checked"
    fake.failure = AssertionError("the hub is asked")
    assert store.resolve("hf:user/repo", Notes()) == store.resolve("hf:user/repo", Notes(), offline=True) == model
    assert [one.reference for one in hub.stored()] == ["hf:user/repo"]


def test_a_folder_whose_check_was_broken_off_is_checked_the_next_time(fake: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(path: Path) -> str:
        assert hub.stored() == []  # as a kill would leave it
        raise KeyboardInterrupt

    name = sorted(path.name for path in folder.glob("model*.safetensors"))[-1]
    fake.promised[name] = "0" * 64
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "sha256", ctrl_c)
        store.resolve("hf:user/repo", Notes())
    assert hub.stored() == []
    with pytest.raises(ModelError, match=f"the downloaded {name} has the wrong SHA-256 hash"):
        store.resolve("hf:user/repo", Notes())


def test_a_folder_that_is_not_whole_is_fetched_again(fake: FakeHub, folder: Path) -> None:
    model = store.resolve("hf:user/repo", Notes())
    (lost, *_) = sorted(model.path.glob("model*.safetensors"))
    lost.unlink()
    assert hub.stored() == []
    fake.sent.clear()
    assert store.resolve("hf:user/repo", Notes()) == model
    assert fake.sent == [lost.name]
    assert folder.exists()


def test_a_snapshot_that_another_program_left_without_a_tokenizer_is_made_whole(fake: FakeHub, folder: Path) -> None:
    left = [name for name in fake.files if name.startswith(("config", "model"))]
    for name in left:
        fake.put("user/repo", name, fake.files[name])
    assert hub.stored() == []
    with pytest.raises(ModelError, match="offline mode is on; pull it with a network first"):
        store.resolve("hf:user/repo", Notes(), offline=True)
    model = store.resolve("hf:user/repo", Notes())
    assert sorted(path.name for path in model.path.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert sorted(fake.sent) == ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert hub.stored() == [model] == [store.resolve("hf:user/repo", Notes(), offline=True)]


def test_gguf_files_come_before_safetensors(fake: FakeHub, folder: Path) -> None:
    fake.files["m-Q4_K_M.gguf"] = GGUF
    assert store.resolve("hf:user/repo", Notes()).path.name == "m-Q4_K_M.gguf"
    assert fake.sent == ["m-Q4_K_M.gguf"]
    assert folder.exists()


def test_of_a_repository_with_one_file_of_weights_and_several_the_one_is_fetched(fake: FakeHub, tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny", types=(Type.BF16,)))
    made = [write_folder(tmp_path / f"in-{shards}", tiny, shards=shards) for shards in (1, 2)]
    fake.files = {path.name: path.read_bytes() for folder in made for path in folder.iterdir()}
    model = store.resolve("hf:user/repo", Notes())
    assert [name for name in fake.sent if name.startswith("model")] == ["model.safetensors"]
    assert store.resolve("hf:user/repo", Notes(), offline=True) == model


def test_weights_that_the_index_names_and_the_repository_lacks_are_named(fake: FakeHub, folder: Path) -> None:
    lacking = sorted(name for name in fake.files if name.startswith("model") and name.endswith(".safetensors"))[-1]
    index = {"weight_map": {"a": lacking}}
    fake.files["model.safetensors.index.json"] = json.dumps(index).encode()
    del fake.files[lacking]
    with pytest.raises(ModelError, match=f"hf:user/repo lacks {lacking}, which its model.safetensors.index.json names"):
        store.resolve("hf:user/repo", Notes())
    assert folder.exists()
