"""What a model sees with is in its fingerprint, by which answers are compared and saved prefixes are found again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from tests.reference.as_gguf import write_gguf
from tests.reference.as_mmproj import write_mmproj
from tests.reference.seeing_folder import write_seeing
from tests.reference.transformers_vision import models
from tests.support.loading import native_loader

from quintet.backends.native.worker.weights import NUMERICS

TINY = models()["idefics3"]


def fingerprint(model: Path, vision: Path | None) -> str:
    return native_loader(model, threads=1, context=64, vision=vision)(lambda _share: None).fingerprint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing(tmp_path_factory.mktemp("seeing"))


def test_a_folders_own_encoder_is_among_the_files_that_its_fingerprint_covers_however_it_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    named = None, folder, folder / ".." / folder.name, tmp_path / "link"
    assert len({fingerprint(folder, one) for one in named}) == 1


def test_the_encoder_of_another_folder_is_covered_too(folder: Path, tmp_path: Path) -> None:
    """It was not: prefixes that were saved with images that one encoder had seen were used for what another sees."""
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3]}))
    found = [fingerprint(folder, one) for one in (folder, other)]
    (other / "preprocessor_config.json").unlink()
    found.append(fingerprint(folder, other))
    gguf = write_gguf(tmp_path / "model.gguf", TINY.text())
    found += [fingerprint(gguf, None), fingerprint(gguf, folder), fingerprint(gguf, other)]
    assert found[4] == found[5], "the same files, elsewhere"
    assert len(set(found)) == 5


def test_an_mmproj_file_is_covered_as_it_ever_was(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "model.gguf", TINY.text())
    mmproj = write_mmproj(tmp_path / "mmproj-00001-of-00002.gguf", TINY)
    digest = hashlib.sha256(f"quintet numerics {NUMERICS}\n".encode() + mmproj.read_bytes()).hexdigest()
    alone = fingerprint(gguf, None)
    assert fingerprint(gguf, mmproj) == f"fp_{hashlib.sha256(f'{alone} {digest}'.encode()).hexdigest()[:10]}"
