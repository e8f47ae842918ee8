"""Packed weights that are kept: the same bits as without, and whatever is wrong with what is kept is noticed."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.e2e.paged import step as compute
from tests.e2e.paged import whole
from tests.reference.tiny_model import FAMILIES, TinySpec, write_tiny

from quintet.backends.native.core.loader import PackCache
from quintet.backends.native.core.packed import huge_copy
from quintet.backends.native.worker import pack_directory, packing, packs, weights
from quintet.backends.native.worker.pack_directory import Directory, Tensor

LIMIT = 1 << 30
SMALL = TinySpec("small", layers=1)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as old."""
    monkeypatch.setattr(packing, "SETTLED_NS", -(10**10))


@pytest.fixture
def cache(tmp_path: Path) -> PackCache:
    return PackCache(str(tmp_path / "cache" / "packs"), LIMIT)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "small.gguf", SMALL)


class Loads:
    """What loading did beside giving a runner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.packed = self.hashed = 0
        self._log = caplog
        pack, read = weights.NativeRunner.pack, weights.Digest._read

        def count_pack(runner: weights.NativeRunner, *args: object) -> None:
            self.packed += 1
            pack(runner, *args)  # type: ignore[arg-type]

        def count_read(digest: weights.Digest) -> None:
            self.hashed += 1
            read(digest)

        monkeypatch.setattr(weights.NativeRunner, "pack", count_pack)
        monkeypatch.setattr(weights.Digest, "_read", count_read)

    def load(self, path: Path, packs: PackCache | None) -> tuple[bytes, str]:
        """What a model computes, and its fingerprint."""
        self.packed = self.hashed = 0
        self._log.clear()
        runner, fingerprint = weights.load_weights(path, 2, 64, "", lambda _: None, packs)
        runner.allocate(8)
        rows = compute(runner, [whole(np.arange(1, 25, dtype=np.int32))], [24])[0]
        return rows.tobytes() + runner.logits(rows).tobytes(), fingerprint

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self._log.records if record.levelno >= logging.WARNING]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Loads:
    return Loads(monkeypatch, caplog)


def pack_of(cache: PackCache) -> Path:
    (found,) = Path(cache.folder).glob("*.pack")
    return found


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.name)
def test_a_model_computes_the_same_with_a_pack_as_without(spec: TinySpec, tmp_path: Path, cache: PackCache, loads: Loads) -> None:
    path = write_tiny(tmp_path / "model.gguf", spec)
    want = loads.load(path, None)
    assert loads.packed and loads.hashed
    assert loads.load(path, cache) == want
    assert loads.packed and loads.hashed
    assert loads.load(path, cache) == want
    assert (loads.packed, loads.hashed, loads.warnings) == (0, 0, [])


def test_a_pack_is_written_in_parts_of_bounded_size(model: Path, cache: PackCache, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    want = loads.load(model, None)
    monkeypatch.setattr(packing, "PART", 1)
    monkeypatch.setattr(packing, "MOST_IN_PART", 3)
    assert loads.load(model, cache) == want
    assert loads.load(model, cache) == want
    assert loads.packed == 0


def test_what_the_system_maps_by_small_pages_is_copied(
    model: Path, cache: PackCache, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []
    monkeypatch.setattr(packing, "huge_copy", lambda cpu, data: copies.append(data.size) or huge_copy(cpu, data))
    for share, expected in ((0.0, 2), (1.0, 0)):
        copies.clear()
        monkeypatch.setattr(packing, "on_huge_pages", lambda data, share=share: share)
        assert loads.load(model, cache) == loads.load(model, cache) == loads.load(model, None)
        assert len(copies) == expected


def test_files_and_folder_are_for_their_owner_alone(model: Path, cache: PackCache, loads: Loads) -> None:
    loads.load(model, cache)
    assert Path(cache.folder).stat().st_mode & 0o777 == 0o700
    assert pack_of(cache).stat().st_mode & 0o777 == 0o600


# --- damage


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
    damage: Callable[[Path], None], model: Path, cache: PackCache, loads: Loads
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


def test_damage_is_told_in_one_line(model: Path, cache: PackCache, loads: Loads) -> None:
    loads.load(model, cache)
    flip(0.3)(pack_of(cache))
    loads.load(model, cache)
    assert loads.warnings == [f"{pack_of(cache)} is damaged; the weights are packed again"]


def test_another_models_pack_under_this_name_is_not_used(model: Path, tmp_path: Path, cache: PackCache, loads: Loads) -> None:
    want = loads.load(model, cache)
    mine = pack_of(cache)
    other = PackCache(str(tmp_path / "other"), LIMIT)
    loads.load(write_tiny(tmp_path / "another.gguf", TinySpec("another", layers=1)), other)
    mine.write_bytes(pack_of(other).read_bytes())
    assert loads.load(model, cache) == want
    assert loads.packed


@pytest.mark.parametrize("kind", [{"numerics": "0"}, {"layout": 0}, {"quantize": "q4"}, {"byteorder": "big"}])
def test_a_pack_of_another_kind_is_not_used(kind: dict[str, object], model: Path, cache: PackCache, loads: Loads) -> None:
    want = loads.load(model, cache)
    forge(lambda of: msgspec.structs.replace(of, kind=msgspec.structs.replace(of.kind, **kind)))(pack_of(cache))
    assert loads.load(model, cache) == want
    assert loads.packed


# --- whose pack it is


def test_a_file_that_was_only_touched_is_hashed_once_and_not_packed_again(model: Path, cache: PackCache, loads: Loads) -> None:
    want = loads.load(model, cache)
    os.utime(model, ns=(1, 1))
    assert loads.load(model, cache) == want
    assert (loads.packed, loads.hashed) == (0, 1)
    assert loads.load(model, cache) == want
    assert (loads.packed, loads.hashed) == (0, 0)


def test_a_file_that_was_just_written_may_change_and_look_the_same_so_it_is_hashed(
    model: Path, cache: PackCache, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SETTLED_NS", 10**12)
    want = loads.load(model, cache)
    for _ in range(2):
        assert loads.load(model, cache) == want
        assert (loads.packed, loads.hashed) == (0, 1)


def test_a_file_whose_bytes_have_changed_is_packed_anew(model: Path, tmp_path: Path, cache: PackCache, loads: Loads) -> None:
    before = loads.load(model, cache)
    data = bytearray(model.read_bytes())
    data[-100] ^= 1
    model.write_bytes(data)
    after = loads.load(model, cache)
    assert after == loads.load(model, None)
    assert after[1] != before[1]
    assert loads.load(model, cache) == after
    assert loads.packed == 0


def test_a_file_that_changes_while_it_is_packed_leaves_no_pack(
    model: Path, cache: PackCache, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = weights.NativeRunner.pack

    def touching(runner: weights.NativeRunner, *args: object) -> None:
        pack(runner, *args)  # type: ignore[arg-type]
        os.utime(model, ns=(1, time.time_ns()))

    monkeypatch.setattr(weights.NativeRunner, "pack", touching)
    loads.load(model, cache)
    assert list(Path(cache.folder).iterdir()) == []


# --- folders that cannot be used


def open_to_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    folder.parent.mkdir()
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def a_file(folder: Path) -> None:
    folder.parent.write_text("")


@pytest.mark.parametrize("make", [open_to_others, a_link, a_file])
def test_where_packs_cannot_be_kept_the_model_runs_without(
    make: Callable[[Path], None], model: Path, cache: PackCache, loads: Loads
) -> None:
    make(Path(cache.folder))
    assert loads.load(model, cache) == loads.load(model, None)
    loads.load(model, cache)
    (warning,) = loads.warnings
    assert warning.startswith("the packed weights of small.gguf are not kept: ")
    assert not list(Path(cache.folder).parent.rglob("*.pack"))


def test_a_disk_that_is_full_leaves_nothing_behind(model: Path, cache: PackCache, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    want, write, written = loads.load(model, None), os.pwritev, []

    def full(*args: object) -> int:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(args)
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwritev", full)
    assert loads.load(model, cache) == want
    assert loads.warnings == ["the packed weights of small.gguf are not kept: No space left on device"]
    assert list(Path(cache.folder).iterdir()) == []


def others_may_write(pack: Path) -> None:
    pack.chmod(0o620)


def linked(pack: Path) -> None:
    pack.symlink_to(pack.rename(pack.parent.parent / "moved"))


def another_users(pack: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(pack, 12345, -1)


@pytest.mark.parametrize("change", [others_may_write, linked, another_users])
def test_a_pack_that_others_may_have_written_is_not_used(
    change: Callable[[Path], None], model: Path, cache: PackCache, loads: Loads
) -> None:
    want = loads.load(model, cache)
    change(pack_of(cache))
    assert loads.load(model, cache) == want
    assert loads.packed
    assert loads.load(model, cache) == want
    assert loads.packed == 0
    assert not pack_of(cache).is_symlink()


# --- several at once, and those that were killed


def test_two_that_pack_the_same_model_at_once_do_not_harm_each_other(model: Path, cache: PackCache, loads: Loads) -> None:
    want, got = loads.load(model, None), []
    threads = [threading.Thread(target=lambda: got.append(loads.load(model, cache))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 3
    assert [file.name for file in Path(cache.folder).iterdir()] == [pack_of(cache).name]


KILLED = """
import os, signal, sys
from pathlib import Path
from quintet.backends.native.worker.packs import Packs
with Packs(Path(sys.argv[1]), 1 << 30).draft() as draft:
    print(draft.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(model: Path, cache: PackCache, loads: Loads) -> None:
    folder = Path(cache.folder)
    done = subprocess.run([sys.executable, "-c", KILLED, cache.folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [file.name for file in folder.iterdir()] == [done.stdout.strip()]
    with packs.Packs(folder, LIMIT).draft() as draft:
        loads.load(model, cache)
        assert {file.name for file in folder.iterdir()} == {draft.name, pack_of(cache).name}
    assert list(folder.iterdir()) == [pack_of(cache)]


# --- the limit


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Path]]:
    yield [write_tiny(tmp_path / f"{name}.gguf", TinySpec(name, layers=1)) for name in ("one", "two", "three")]


def test_the_pack_that_was_not_used_for_longest_goes_first(three: list[Path], cache: PackCache, loads: Loads) -> None:
    size = 0
    for path in three[:2]:
        loads.load(path, cache)
        size = max(file.stat().st_size for file in Path(cache.folder).glob("*.pack"))
    loads.load(three[0], cache)
    assert loads.packed == 0
    limited = PackCache(cache.folder, size * 7 // 2)  # of two: what a pack will need is reckoned on the high side
    loads.load(three[2], limited)
    packed = []
    for path in (three[0], three[2], three[1]):
        loads.load(path, limited)
        packed.append(loads.packed > 0)
    assert packed == [False, False, True]


def test_a_pack_beyond_the_limit_is_not_kept(model: Path, cache: PackCache, loads: Loads) -> None:
    small = PackCache(cache.folder, 1000)
    assert loads.load(model, small) == loads.load(model, None)
    loads.load(model, small)
    (warning,) = loads.warnings
    assert "--pack-cache-size is 1 kB" in warning
    assert list(Path(cache.folder).iterdir()) == []
