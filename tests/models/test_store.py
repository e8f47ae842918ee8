"""Model references, and files on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.report import GGUF, Notes

from quintet.errors import ModelError
from quintet.models import files, store


@pytest.mark.parametrize("text", ["smollm2", "hf:user/repo", "hf:user/repo:Q8_0", "model.gguf", "/a/b/Model.GGUF", "hf:"])
def test_text_in_the_form_of_a_model_is_a_reference(text: str) -> None:
    assert store.is_reference(text)


@pytest.mark.parametrize("text", ["", "The sky is", "smollm", "user/repo", "README.md", "gguf"])
def test_other_text_is_no_reference_whatever_lies_on_the_disk(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert not store.is_reference(text)


def test_a_path_resolves_to_that_file_and_is_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "tiny.Q4_0.gguf"
    path.write_bytes(GGUF)
    assert store.resolve(str(path), Notes()) == files.StoredModel(str(path), "tiny.Q4_0", path, len(GGUF))


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot use .*no\.gguf: No such file"):
        store.resolve(str(tmp_path / "no.gguf"), Notes())


def test_an_unknown_name_says_what_would_work_and_guesses_the_hub() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'smolm2'.*smollm2.*hf:user/repo.* Did you mean smollm2\?$"):
        store.resolve("smolm2", Notes())
    with pytest.raises(ModelError, match="Did you mean hf:user/repo"):
        store.resolve("user/repo", Notes())


@pytest.mark.parametrize("url", ["http://x/y.gguf", "https://huggingface.co/user/repo", "HTTPS://x/y/"])
def test_a_url_is_told_as_it_was_written_and_what_would_work(url: str) -> None:
    with pytest.raises(ModelError, match=f"^'{url}' is a URL, which is not fetched: give smollm2, .*hf:user/repo"):
        store.resolve(url, Notes())


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUINTET_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_dir() == tmp_path / "quintet" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache_dir() == tmp_path / ".cache" / "quintet" / "models"
    monkeypatch.setenv("QUINTET_CACHE", "~/own")
    assert files.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (98_362_432, "98.4 MB"), (4_700_000_000, "4.7 GB"), (2 * 10**12, "2.0 TB")],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert files.human(size) == text


def test_a_download_larger_than_the_free_space_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not enough disk space in .*needs 1000000.0 TB"):
        files.check_space(tmp_path / "not" / "yet", 10**18)


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the disk is full"), files.file_errors(tmp_path):
        raise OSError(28, "No space left on device")
