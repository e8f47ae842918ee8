"""Packed weights that are kept: the same bits as without, for the same files, in a folder of ours, in bounds."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.backends.native.worker.pack_loads import LIMIT, Loads, pack_of
from tests.reference.tiny_model import FAMILIES, TinySpec, write_tiny
from tests.support.bundled import bundled_path

from quintet import machine
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.packed import huge_copy
from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.types import U8
from quintet.backends.native.worker import packing, packs, weights
from quintet.config import CacheFolder
from quintet.errors import ModelError


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.name)
def test_a_model_computes_the_same_with_a_pack_as_without(spec: TinySpec, tmp_path: Path, cache: CacheFolder, loads: Loads) -> None:
    path = write_tiny(tmp_path / "model.gguf", spec)
    want = loads.load(path, None)
    assert loads.packed and loads.hashed
    assert loads.load(path, cache) == want
    assert loads.packed and loads.hashed
    assert loads.load(path, cache) == want
    assert (loads.packed, loads.hashed, loads.warnings) == (0, 0, [])


def test_a_pack_is_written_in_parts_of_bounded_size(model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    want = loads.load(model, None)
    monkeypatch.setattr(packing, "PART", 1)
    monkeypatch.setattr(packing, "MOST_IN_PART", 3)
    assert loads.load(model, cache) == want
    assert loads.load(model, cache) == want
    assert loads.packed == 0


def test_what_the_system_maps_by_small_pages_is_copied(
    model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []

    def copy(cpu: Cpu, data: U8) -> U8:
        copies.append(data.size)
        return huge_copy(cpu, data)

    monkeypatch.setattr(packing, "huge_copy", copy)
    for share, expected in ((0.0, 2), (1.0, 0)):
        copies.clear()
        monkeypatch.setattr(packing, "on_huge_pages", lambda data, share=share: share)
        assert loads.load(model, cache) == loads.load(model, cache) == loads.load(model, None)
        assert len(copies) == expected


def test_a_pack_tells_how_far_it_is_read(model: Path, cache: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECES", 4)
    for _ in range(2):
        told: list[float] = []
        weights.load_weights(model, threads=1, context=64, isa="", progress=told.append, packs=cache)
        assert told == sorted(told)
        assert len(told) >= 3
        assert told[-1] == 1


def test_a_disk_that_gives_back_other_bytes_than_were_written_is_not_used(
    model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def broken(file: int, views: list[memoryview], at: int) -> int:
        return write(file, [views[0][:-1], bytes([views[0][-1] ^ 1]), *views[1:]] if len(views) > 1 else views, at)

    monkeypatch.setattr(os, "pwritev", broken)
    assert loads.load(model, cache) == loads.load(model, None)
    loads.load(model, cache)
    assert loads.warnings == ["the packed weights of small.gguf are not kept: what was written there reads differently"]


def test_files_and_folder_are_for_their_owner_alone(model: Path, cache: CacheFolder, loads: Loads) -> None:
    loads.load(model, cache)
    assert Path(cache.folder).stat().st_mode & 0o777 == 0o700
    assert pack_of(cache).stat().st_mode & 0o777 == 0o600


# --- whose pack it is


def test_a_file_that_was_only_touched_is_hashed_once_and_not_packed_again(model: Path, cache: CacheFolder, loads: Loads) -> None:
    want = loads.load(model, cache)
    os.utime(model, ns=(1, 1))
    assert loads.load(model, cache) == want
    assert (loads.packed, loads.hashed) == (0, 1)
    assert loads.load(model, cache) == want
    assert (loads.packed, loads.hashed) == (0, 0)


def test_a_file_that_was_just_written_may_change_and_look_the_same_so_it_is_hashed(
    model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SETTLED_NS", 10**12)
    want = loads.load(model, cache)
    for _ in range(2):
        assert loads.load(model, cache) == want
        assert (loads.packed, loads.hashed) == (0, 1)


def test_a_file_whose_bytes_have_changed_is_packed_anew(model: Path, tmp_path: Path, cache: CacheFolder, loads: Loads) -> None:
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
    model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = NativeRunner.pack

    def touching(runner: NativeRunner, *args: object) -> None:
        pack(runner, *args)  # type: ignore[arg-type]
        os.utime(model, ns=(1, time.time_ns()))

    monkeypatch.setattr(NativeRunner, "pack", touching)
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
    make: Callable[[Path], None], model: Path, cache: CacheFolder, loads: Loads
) -> None:
    make(Path(cache.folder))
    assert loads.load(model, cache) == loads.load(model, None)
    loads.load(model, cache)
    (warning,) = loads.warnings
    assert warning.startswith("the packed weights of small.gguf are not kept: ")
    assert not list(Path(cache.folder).parent.rglob("*.pack"))


def test_a_disk_that_is_full_leaves_nothing_behind(model: Path, cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    want, write = loads.load(model, None), os.pwritev
    written: list[object] = []

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
    change: Callable[[Path], None], model: Path, cache: CacheFolder, loads: Loads
) -> None:
    want = loads.load(model, cache)
    change(pack_of(cache))
    assert loads.load(model, cache) == want
    assert loads.packed
    assert loads.load(model, cache) == want
    assert loads.packed == 0
    assert not pack_of(cache).is_symlink()


# --- several at once, and those that were killed


def test_two_that_pack_the_same_model_at_once_do_not_harm_each_other(model: Path, cache: CacheFolder, loads: Loads) -> None:
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
with Packs(Path(sys.argv[1]), 1 << 30).begin() as pack:
    print(pack.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(model: Path, cache: CacheFolder, loads: Loads) -> None:
    folder = Path(cache.folder)
    done = subprocess.run([sys.executable, "-c", KILLED, cache.folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [file.name for file in folder.iterdir()] == [done.stdout.strip()]
    with packs.Packs(folder, LIMIT).begin() as pack:
        loads.load(model, cache)
        assert {file.name for file in folder.iterdir()} == {pack.name, pack_of(cache).name}
    assert list(folder.iterdir()) == [pack_of(cache)]


# --- the limit


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Path]]:
    yield [write_tiny(tmp_path / f"{name}.gguf", TinySpec(name, layers=1)) for name in ("one", "two", "three")]


def test_the_pack_that_was_not_used_for_longest_goes_first(three: list[Path], cache: CacheFolder, loads: Loads) -> None:
    size = 0
    for path in three[:2]:
        loads.load(path, cache)
        size = max(file.stat().st_size for file in Path(cache.folder).glob("*.pack"))
    stamped(cache)
    for file in Path(cache.folder).glob("*.pack"):  # the system's clock of files may stand still between two loads
        os.utime(file, ns=(1, file.stat().st_mtime_ns))
    loads.load(three[0], cache)
    assert loads.packed == 0
    limited = CacheFolder(cache.folder, size * 7 // 2)  # of two: what a pack will need is reckoned on the high side
    loads.load(three[2], limited)
    packed = []
    for path in (three[0], three[2], three[1]):
        loads.load(path, limited)
        packed.append(loads.packed > 0)
    assert packed == [False, False, True]


@pytest.mark.skipif(not hasattr(os, "O_NOATIME"), reason="every reader of a file is one that uses it here")
def test_a_pack_that_is_only_looked_at_was_not_used(three: list[Path], cache: CacheFolder, loads: Loads) -> None:
    loads.load(three[0], cache)
    stamped(cache)
    pack = pack_of(cache)
    os.utime(pack, ns=(1, pack.stat().st_mtime_ns))
    loads.load(three[1], cache)
    assert pack.stat().st_atime_ns == 1
    loads.load(three[0], cache)
    assert loads.packed == 0
    assert pack.stat().st_atime_ns > 1


def test_a_pack_that_is_on_the_disk_at_last_was_not_used_by_that(model: Path, cache: CacheFolder, loads: Loads) -> None:
    loads.load(model, cache)
    stamped(cache)
    path = pack_of(cache)
    folder = packs.Packs(Path(cache.folder), LIMIT)
    pack = folder.open(path.name)
    os.utime(path, ns=(1, 1))
    folder.settle(pack.file, pack.directory)
    os.close(pack.file)
    folder.close()
    assert path.stat().st_atime_ns == 1
    assert path.stat().st_mtime_ns == pack.directory.stamp


def test_a_pack_beyond_the_limit_is_not_kept(model: Path, cache: CacheFolder, loads: Loads) -> None:
    small = CacheFolder(cache.folder, 1000)
    assert loads.load(model, small) == loads.load(model, None)
    loads.load(model, small)
    (warning,) = loads.warnings
    assert "--pack-cache-size is 1 kB" in warning
    assert list(Path(cache.folder).iterdir()) == []


# --- weights that are larger than the memory


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 100 kB of memory left."""
    monkeypatch.setattr(machine, "memory_available", lambda: 100_000)


@pytest.mark.usefixtures("poor")
def test_weights_larger_than_the_memory_run_from_the_pack_and_that_is_told(model: Path, cache: CacheFolder, loads: Loads) -> None:
    with pytest.MonkeyPatch.context() as rich:
        rich.setattr(machine, "memory_available", lambda: 1 << 40)
        want = loads.load(model, None)
    for packed in (True, False):
        assert loads.load(model, cache) == want
        assert (loads.packed > 0) == packed
        (told,) = loads.warnings
        assert re.match(r"the weights of small.gguf, \d+ kB, are larger than the free memory, 100 kB: they are read from the disk as", told)
        stamped(cache)


def stamped(cache: CacheFolder) -> None:
    """Wait until every pack is on the disk."""
    folder = packs.Packs(Path(cache.folder), LIMIT)
    for name in [file.name for file in Path(cache.folder).glob("*.pack")]:
        for _ in range(1000):
            found = folder.open(name)
            os.close(found.file)
            if found.stamped:
                break
            time.sleep(0.01)
        assert found.stamped
    folder.close()


@pytest.mark.usefixtures("poor")
def test_a_pack_that_is_not_read_through_must_be_as_it_was_written(model: Path, cache: CacheFolder, loads: Loads) -> None:
    want = loads.load(model, cache)
    stamped(cache)
    data = bytearray(pack_of(cache).read_bytes())
    data[(2 << 20) + 1000] ^= 1
    pack_of(cache).write_bytes(data)
    assert loads.load(model, cache) == want
    assert loads.packed
    assert any("was changed since" in line for line in loads.warnings)


@pytest.mark.usefixtures("poor")
def test_without_a_pack_too_little_memory_is_told_before_it_is_taken(model: Path, cache: CacheFolder, loads: Loads) -> None:
    said = r"^small\.gguf: the weights need \d+ kB of memory, and 100 kB are free; "
    with pytest.raises(ModelError, match=f"{said}with --pack-cache they are read from the disk as they are needed.$"):
        loads.load(model, None)
    open_to_others(Path(cache.folder))
    with pytest.raises(ModelError, match=f"{said}they cannot be read from the disk as they are needed: "):
        loads.load(model, cache)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_by_way_of_a_pack_take_little_memory_of_the_processs_own(
    cache: CacheFolder, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled model has 96 MB of weights, the largest tensor 32."""

    def own() -> int:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) << 10

    monkeypatch.setattr(packing, "PART", 8 << 20)
    monkeypatch.setattr(packing, "on_huge_pages", lambda data: 1.0)
    before, most = own(), 0

    def see(share: float) -> None:
        nonlocal most
        most = max(most, own())

    runner, _ = weights.load_weights(bundled_path(), threads=1, context=64, isa="", progress=see, packs=cache)
    assert runner.weight_bytes > 90 << 20
    assert most - before < 56 << 20
    assert own() - before < 16 << 20
