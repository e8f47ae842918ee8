"""Models that are split into several GGUF files: the same as in one file, and no wrong part gets past a one-line ``ModelError``."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.paged import run_alone, whole
from tests.reference.tiny_model import FAMILIES, random_ids, write_tiny
from tests.support.report import Notes

from quintet.backends.native.core.types import U8
from quintet.backends.native.worker.weights import load_weights
from quintet.cli.describe import describe
from quintet.cli.models import rows
from quintet.errors import ModelError
from quintet.models import store
from quintet.models.files import parts
from quintet.models.gguf import open_model, read_metadata

TINY = next(tiny for tiny in FAMILIES if tiny.architecture == "qwen3moe")
COUNT = 4
U16, I32 = struct.Struct("<H"), struct.Struct("<i")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    tensors = len(open_model(write_tiny(folder / "m.gguf", TINY)).tensors)
    first = write_tiny(folder / "m.gguf", TINY, split=-(-tensors // COUNT))
    assert len(parts(first)) == COUNT
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "model")


def part(folder: Path, number: int) -> Path:
    return folder / f"m-{number:05}-of-{COUNT:05}.gguf"


def patch(path: Path, key: str, kind: struct.Struct, value: int) -> Path:
    """Give the key of the file another value, in place."""
    content = bytearray(path.read_bytes())
    kind.pack_into(content, content.index(key.encode()) + len(key) + 4, value)
    path.write_bytes(content)
    return path


def to_folder(path: Path) -> None:
    """Put a folder in the file's place."""
    path.unlink()
    path.mkdir()


# --- which files


@pytest.mark.parametrize("name", ["m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-1-of-2.gguf", "-00001-of-00002.gguf", ""])
def test_a_name_without_a_parts_number_is_one_file(name: str) -> None:
    assert parts(Path("folder") / name) == (Path("folder") / name,)


@pytest.mark.parametrize("name", ["a-b-00001-of-00003.gguf", "a-b-00003-of-00003.gguf"])
def test_any_part_stands_for_all_in_their_order(name: str) -> None:
    assert parts(Path("/x") / name) == tuple(Path(f"/x/a-b-0000{i}-of-00003.gguf") for i in (1, 2, 3))


def test_a_split_model_is_found_by_any_part_and_named_without_its_number(folder: Path) -> None:
    size = sum(path.stat().st_size for path in parts(part(folder, 1)))
    for number in (1, COUNT):
        found = store.resolve(str(part(folder, number)), Notes())
        assert (found.name, found.path, found.size) == ("m", part(folder, 1), size)
    shown = dict(rows(found, describe(open_model(found.path)), 64, fills="no"))
    assert shown["file"].endswith(f" in {COUNT} files")


# --- the same model


@pytest.mark.parametrize("number", [1, COUNT])
def test_a_split_model_is_the_model_in_one_file(folder: Path, number: int) -> None:
    single, split = open_model(folder / "m.gguf"), open_model(part(folder, number))
    assert split.spec == single.spec
    assert split.tensors.keys() == single.tensors.keys()
    assert all(split.tensors[name] == tensor for name, tensor in single.tensors.items())
    assert read_metadata(part(folder, number)).texts("tokenizer.ggml.tokens") == single.metadata.texts("tokenizer.ggml.tokens")


def test_a_split_model_computes_the_same_bits(folder: Path) -> None:
    ids = random_ids(TINY, 40)
    hidden: list[U8] = []
    for path in (folder / "m.gguf", part(folder, 1)):
        runner, _ = load_weights(path, threads=1, context=None, isa="", progress=lambda _: None)
        runner.allocate(3)
        hidden.append(run_alone(runner, whole(ids)))
    assert np.array_equal(hidden[0], hidden[1])


def test_every_part_counts_in_the_fingerprint(folder: Path) -> None:
    def fingerprint() -> str:
        return load_weights(part(folder, 1), threads=1, context=None, isa="", progress=lambda _: None)[1]

    before = fingerprint()
    assert fingerprint() == before
    last = part(folder, COUNT)
    content = bytearray(last.read_bytes())
    content[-40] ^= 1
    last.write_bytes(content)
    assert fingerprint() != before


def test_parts_may_be_links(folder: Path, tmp_path: Path) -> None:
    """As in the hub's cache, where each is a link to a file that is named by its hash."""
    for number, path in enumerate(parts(part(folder, 1))):
        path.rename(tmp_path / str(number))
        path.symlink_to(tmp_path / str(number))
    assert open_model(part(folder, 1)).spec == open_model(folder / "m.gguf").spec


# --- wrong parts


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda at: part(at, 3).unlink(), "m-00003-of-00004.gguf: cannot be read: No such file"),
    "twice": (
        lambda at: shutil.copy(part(at, 2), part(at, 3)),
        "m-00003-of-00004.gguf: 'split.no' must be 2, as the file's name says, got 1",
    ),
    "number": (lambda at: patch(part(at, 1), "split.no", U16, 1), "m-00001-of-00004.gguf: 'split.no' must be 0, as the file's name says"),
    "count": (lambda at: patch(part(at, 2), "split.count", U16, 65535), "m-00002-of-00004.gguf: 'split.count' must be 4, as the file's"),
    "not split": (lambda at: shutil.copy(at / "m.gguf", part(at, 4)), "m-00004-of-00004.gguf: 'split.count' is missing"),
    "total of one": (
        lambda at: patch(part(at, 2), "split.tensors.count", I32, 7),
        "m-00002-of-00004.gguf: 'split.tensors.count' must be {total}, as in m-00001-of-00004.gguf: this is a part of another model, got 7",
    ),
    "total of all": (
        lambda at: [patch(path, "split.tensors.count", I32, 7) for path in parts(part(at, 1))],
        "m-00001-of-00004.gguf: 'split.tensors.count' must be {total}, the number of tensors in all parts, got 7",
    ),
    "negative total": (lambda at: patch(part(at, 1), "split.tensors.count", I32, -1), "'split.tensors.count' must be an integer from 0"),
    "same tensors": (
        lambda at: patch(Path(shutil.copy(part(at, 2), part(at, 3))), "split.no", U16, 2),
        "m-00003-of-00004.gguf: tensor 'blk.0.ffn_down_exps.weight' is in m-00002-of-00004.gguf as well",
    ),
    "cut short": (
        lambda at: part(at, 3).write_bytes(part(at, 3).read_bytes()[:-64]),
        "m-00003-of-00004.gguf: tensor",
    ),
    "a folder": (lambda at: to_folder(part(at, 2)), "m-00002-of-00004.gguf: cannot be read: Is a directory"),
}


@pytest.mark.parametrize(("damage", "says"), WRONG.values(), ids=WRONG)
def test_wrong_parts_are_refused_by_file_and_key(folder: Path, damage: Callable[[Path], object], says: str) -> None:
    total = len(open_model(folder / "m.gguf").tensors)
    damage(folder)
    with pytest.raises(ModelError) as error:
        open_model(part(folder, 1))
    assert says.format(total=total) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_of_another_architecture_is_refused(folder: Path) -> None:
    """Parts after the first need not say what they belong to; one that does must say the same."""
    content = part(folder, 2).read_bytes()
    pair = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"
    keys = struct.unpack_from("<Q", content, 16)[0] + 1
    # The tensors move by a multiple of the alignment if the new key has its size, so it is padded by a second one.
    filler = struct.pack("<Q", 1) + b"x" + struct.pack("<IQ", 8, -(len(pair) + 21) % 32) + b" " * (-(len(pair) + 21) % 32)
    part(folder, 2).write_bytes(content[:16] + struct.pack("<Q", keys + 1) + pair + filler + content[24:])
    with pytest.raises(ModelError, match=r"m-00002-of-00004.gguf: 'general.architecture' must be 'qwen3moe', as in m-00001"):
        open_model(part(folder, 1))


def test_a_name_that_promises_too_many_parts_costs_nothing(folder: Path) -> None:
    path = folder / "m-00001-of-65535.gguf"
    patch(part(folder, 1).rename(path), "split.count", U16, 65535)
    with pytest.raises(ModelError, match=r"m-00002-of-65535.gguf: cannot be read: No such file"):
        open_model(path)
    with pytest.raises(ModelError, match=r"m-00002-of-65535.gguf is missing: a model that is split into 65535 files needs all of them"):
        store.resolve(str(path), Notes())
