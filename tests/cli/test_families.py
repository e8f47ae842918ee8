"""A file of each family, as a person meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from tests.reference import tiny_model
from tests.reference.folders import write_folder
from tests.reference.tiny_model import FAMILIES, TinySpec, write_tiny

from quintet.cli.app import app
from quintet.errors import PromptTooLong

WINDOWED = next(replace(spec, metadata={"attention.sliding_window": 40}) for spec in FAMILIES if spec.name == "starcoder2")


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.name)
def test_a_model_of_every_family_is_shown_and_completes_a_prompt(
    spec: TinySpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_tiny(tmp_path / f"{spec.name}.gguf", spec))
    assert app(["show", file], standalone_mode=False) in (None, 0)
    assert f"architecture  {spec.architecture}" in capsys.readouterr().out
    words = ["run", file, "the end", "-n", "8", "--seed", "1", "--kv-cache", "8MiB", "--threads", "1"]
    texts = []
    for _ in range(2):
        assert app(words, standalone_mode=False) in (None, 0)
        texts.append(capsys.readouterr().out)
    assert texts[0] and texts[0] == texts[1]


@pytest.mark.parametrize(("roles", "said"), [(("pre", "suf", "mid"), "yes"), (("pre", "suf"), "no")])
def test_a_model_is_shown_to_fill_in_the_middle_if_its_vocabulary_has_the_tokens(
    roles: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_as_always = tiny_model.add_tokenizer

    def add_tokenizer(writer: GGUFWriter, spec: TinySpec) -> None:
        add_as_always(writer, spec)
        for token, role in enumerate(roles, spec.vocab - len(roles)):
            writer.add_uint32(f"tokenizer.ggml.fim_{role}_token_id", token)

    with monkeypatch.context() as patch:
        patch.setattr(tiny_model, "add_tokenizer", add_tokenizer)
        file = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    assert app(["show", str(file)], standalone_mode=False) in (None, 0)
    assert dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())["infill"] == said


def test_a_model_whose_tokenizer_is_not_understood_is_shown_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tiny_model, "add_tokenizer", lambda writer, spec: writer.add_tokenizer_model("novel"))
        file = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    assert app(["show", str(file)], standalone_mode=False) in (None, 0)
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert shown["infill"].startswith("unknown: ") and "novel" in shown["infill"] and "memory" in shown


def test_where_all_layers_have_windows_a_text_may_be_longer_than_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bytes as from a cache that holds all of it; a model without windows refuses such a prompt."""
    file, prompt = str(write_tiny(tmp_path / "w.gguf", WINDOWED)), "a thin text, then another " * 20
    texts = []
    for cache in ("96KiB", "8MiB"):  # of 8 KiB a page
        assert app(["run", file, prompt, "-n", "200", "--seed", "1", "--kv-cache", cache, "--threads", "1"], standalone_mode=False) in (
            None,
            0,
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""
    plain = str(write_tiny(tmp_path / "p.gguf", replace(WINDOWED, metadata={})))
    with pytest.raises(PromptTooLong, match="the context is 192"):
        app(["run", plain, prompt, "-n", "200", "--kv-cache", "96KiB"], standalone_mode=False)


def test_a_folder_is_shown_and_writes_what_its_gguf_file_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny", types=(Type.BF16,)))
    folder = write_folder(tmp_path / "tiny-folder", file, shards=2)
    assert app(["show", str(folder)], standalone_mode=False) in (None, 0)
    assert f"{folder}, 1.1 MB in 6 files" in capsys.readouterr().out
    texts = []
    for model in (str(folder), f"{folder}/", str(file)):
        assert app(["run", model, "the end", "-n", "8", "--seed", "1", "--kv-cache", "8MiB", "--threads", "1"], standalone_mode=False) in (
            None,
            0,
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] and texts[0] == texts[1] == texts[2]
