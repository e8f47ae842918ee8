"""Packs that are damaged, or forged, or another's: noticed, told in one line, and packed again, with the same bits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.backends.native.worker.pack_loads import LIMIT, Loads, pack_of
from tests.reference.tiny_model import TinySpec, write_tiny

from quintet.backends.native.worker import pack_directory
from quintet.backends.native.worker.pack_directory import Directory, Tensor
from quintet.config import CacheFolder


def flip(at: float) -> Callable[[Path], None]:
    """One bit of the data, at a share of them."""

    def damage(pack: Path) -> None:
        data = bytearray(pack.read_bytes())
        directory = directory_of(pack)
        tensor = directory.tensors[int(at * (len(directory.tensors) - 1))]
        data[tensor.start + int(at * (tensor.size - 1))] ^= 4
        pack.write_bytes(data)

    return damage


def directory_of(pack: Path) -> Directory:
    file = os.open(pack, os.O_RDONLY)
    try:
        return pack_directory.read(file)
    finally:
        os.close(file)


def forge(change: Callable[[Directory], Directory]) -> Callable[[Path], None]:
    """A directory that is whole, and lies."""

    def damage(pack: Path) -> None:
        old = directory_of(pack)
        text = msgspec.json.encode(change(old))
        data = pack.read_bytes()[: old.end] + text
        pack.write_bytes(head(data, old.end, text) + data[64:])

    return damage


def head(data: bytes, at: int, text: bytes, version: int = pack_directory.FORMAT) -> bytes:
    return pack_directory._HEAD.pack(pack_directory.MAGIC, version, len(text), at, hashlib.sha256(text).digest())


def tensors(change: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    """The second tensor's entry changed."""

    def changed(directory: Directory) -> Directory:
        first, second, *rest = directory.tensors
        return msgspec.structs.replace(directory, tensors=(first, change(second), *rest))

    return forge(changed)


def replaced(**fields: object) -> Callable[[Tensor], Tensor]:
    return lambda tensor: msgspec.structs.replace(tensor, **fields)


def cut(size: int) -> Callable[[Path], None]:
    return lambda pack: os.truncate(pack, pack.stat().st_size - size if size else 0)


def at(place: int, value: bytes) -> Callable[[Path], None]:
    def damage(pack: Path) -> None:
        data = bytearray(pack.read_bytes())
        data[place : place + len(value)] = value
        pack.write_bytes(data)

    return damage


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit of the first tensor": flip(0.0),
    "a bit in the middle": flip(0.5),
    "the last bit": flip(1.0),
    "cut short": cut(1),
    "cut within the data": cut(100_000),
    "empty": cut(0),
    "no pack": at(0, b"GGUF"),
    "another format": at(8, b"\x63"),
    "an endless directory": at(12, b"\xff" * 4),
    "a directory far away": at(24, b"\xff" * 8),
    "a bit of the directory": at(-3, b"\x00"),
    "no JSON": forge(lambda of: {}),  # type: ignore[arg-type, return-value]
    "a tensor outside the file": tensors(replaced(start=1 << 40)),
    "a tensor that is far too large": tensors(replaced(size=1 << 62)),
    "a tensor at a negative place": tensors(replaced(start=-64)),
    "a tensor in the header": tensors(replaced(start=0)),
    "a tensor that is not aligned": tensors(lambda one: msgspec.structs.replace(one, start=one.start + 1, size=one.size - 1)),
    "a tensor of another size": tensors(lambda one: msgspec.structs.replace(one, size=one.size - 1)),
    "a tensor of another name": tensors(replaced(name="0.embed")),
    "a tensor twice": tensors(replaced(name="embed")),
    "no checksums": tensors(replaced(sums=())),
    "no tensors": forge(lambda of: msgspec.structs.replace(of, tensors=())),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_pack_that_is_damaged_or_forged_is_packed_again(
    damage: Callable[[Path], None], model: Path, cache: CacheFolder, loads: Loads
) -> None:
    want = loads.load(model, cache)
    pack = pack_of(cache)
    good = pack.read_bytes()
    damage(pack)
    assert pack.read_bytes() != good
    assert loads.load(model, cache) == want
    assert loads.packed
    assert loads.load(model, cache) == want
    assert (loads.packed, loads.hashed) == (0, 0)


def test_damage_is_told_in_one_line(model: Path, cache: CacheFolder, loads: Loads) -> None:
    loads.load(model, cache)
    flip(0.3)(pack_of(cache))
    loads.load(model, cache)
    assert loads.warnings == [f"{pack_of(cache)} is damaged; the weights are packed again"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)], ids=["a FIFO", "a folder", "a link"])
def test_what_is_no_file_is_no_pack_and_not_waited_for(
    make: Callable[[Path], object], model: Path, cache: CacheFolder, loads: Loads
) -> None:
    want = loads.load(model, cache)
    pack = pack_of(cache)
    pack.unlink()
    make(pack)
    make(pack.with_name(f"0{pack.name}"))
    assert loads.load(model, cache) == want


def test_another_models_pack_under_this_name_is_not_used(model: Path, tmp_path: Path, cache: CacheFolder, loads: Loads) -> None:
    want = loads.load(model, cache)
    mine = pack_of(cache)
    other = CacheFolder(str(tmp_path / "other"), LIMIT)
    loads.load(write_tiny(tmp_path / "another.gguf", TinySpec("another", layers=1)), other)
    mine.write_bytes(pack_of(other).read_bytes())
    assert loads.load(model, cache) == want
    assert loads.packed


@pytest.mark.parametrize("kind", [{"numerics": "0"}, {"layout": 0}, {"quantize": "q4"}, {"byteorder": "big"}])
def test_a_pack_of_another_kind_is_not_used(kind: dict[str, object], model: Path, cache: CacheFolder, loads: Loads) -> None:
    want = loads.load(model, cache)
    forge(lambda of: msgspec.structs.replace(of, kind=msgspec.structs.replace(of.kind, **kind)))(pack_of(cache))
    assert loads.load(model, cache) == want
    assert loads.packed
