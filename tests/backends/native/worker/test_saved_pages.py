"""Pages in files: what comes back is what was kept, or nothing; others' files, full disks and limits."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.scored_rows import ROOM
from quintet.backends.native.core.types import U8
from quintet.backends.native.worker import kept_files, saved_pages
from quintet.backends.native.worker.saved_pages import SavedPages
from quintet.backends.toy import ToyRunner
from quintet.config import CacheFolder

LIMIT = 1 << 20
ROWS: U8 = np.arange(PAGE * (16 + ROOM), dtype=np.int64).astype(np.uint8).reshape(PAGE, -1)


@pytest.fixture
def runner() -> ToyRunner:
    made = ToyRunner()
    made.allocate(8)
    for page in range(4):
        made.write_page(page, np.full(made.page_bytes, page + 1, np.uint8))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "prefixes"


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def keep(folder: Path, runner: ToyRunner, *numbers: int, limit: int = LIMIT, rows: U8 | None = None) -> None:
    """The pages of these numbers, from an engine of its own."""
    saved = SavedPages(folder, limit, runner, "model")
    for number in numbers:
        saved.offer(digest(number), number % 4, rows)
    saved.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def loaded(saved: SavedPages, runner: ToyRunner, number: int) -> bool:
    """Whether it comes back whole."""
    runner.write_page(7, np.zeros(runner.page_bytes, np.uint8))
    rows = saved.load(digest(number), 7)
    if rows is None:
        assert not runner.read_page(7).any()
        return False
    assert (runner.read_page(7) == runner.read_page(number % 4)).all()
    return True


def test_the_next_engine_gets_the_same_bytes_and_rows(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 0, 1)
    keep(folder, runner, 2, rows=ROWS)
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert [saved.has(digest(n), with_rows=False) for n in range(4)] == [True, True, True, False]
    assert [saved.has(digest(n), with_rows=True) for n in range(4)] == [False, False, True, False]
    assert all(loaded(saved, runner, n) for n in range(3))
    rows = saved.load(digest(2), 7)
    assert rows is not None
    assert (rows == ROWS).all()
    assert not loaded(saved, runner, 3)
    saved.close()


def test_files_are_for_nobody_else(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files(folder)] == [0o600]


def test_another_model_or_context_has_none_of_them(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 1)
    other = SavedPages(folder, LIMIT, runner, "another model")
    assert not other.has(digest(1), with_rows=False)
    other.close()


@pytest.mark.parametrize("damage", ["a bit", "cut", "longer", "empty", "magic", "another size", "link", "writable by others"])
def test_what_is_damaged_or_not_ours_is_removed_and_not_believed(folder: Path, runner: ToyRunner, damage: str) -> None:
    keep(folder, runner, 1, rows=ROWS)
    (path,) = files(folder)
    data = bytearray(path.read_bytes())
    if damage == "a bit":
        data[100] ^= 4
    elif damage == "cut":
        del data[-1]
    elif damage == "longer":
        data += b"x"
    elif damage == "empty":
        data.clear()
    elif damage == "magic":
        data[0] ^= 1
    elif damage == "another size":
        data[16] ^= 1
    path.write_bytes(data)
    if damage == "link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif damage == "writable by others":
        path.chmod(0o622)
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert not loaded(saved, runner, 1)
    assert not saved.has(digest(1), with_rows=False)
    assert not path.exists()
    saved.offer(digest(1), 1, None)
    saved.close()
    again = SavedPages(folder, LIMIT, runner, "model")
    assert loaded(again, runner, 1)
    again.close()


def test_what_was_not_used_for_longest_goes_whatever_model_it_is_of(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 0, 1, 2)
    size = files(folder)[0].stat().st_size
    for age, path in enumerate(files(folder)):
        os.utime(path, ns=(10**18 + age, 10**18 + age))
    saved = SavedPages(folder, 3 * size, runner, "model")
    assert loaded(saved, runner, 0)  # from now on the one that was used last
    saved.close()
    other = SavedPages(folder, 3 * size, runner, "another model")
    other.offer(digest(9), 1, None)
    other.offer(digest(10), 1, None)
    other.close()
    assert sorted(int(path.name, 16) for path in files(folder)) == [0, 9, 10]


def test_what_another_process_removed_is_simply_not_there(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 1)
    saved = SavedPages(folder, LIMIT, runner, "model")
    for path in files(folder):
        path.unlink()
    assert saved.has(digest(1), with_rows=False)
    assert not loaded(saved, runner, 1)
    assert not saved.has(digest(1), with_rows=False)
    saved.close()


def wholly(folder: Path) -> None:
    shutil.rmtree(folder)


def all_in_it(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path)


@pytest.mark.parametrize("removed", [wholly, all_in_it])
def test_a_folder_that_is_removed_under_an_engine_is_made_anew(
    folder: Path, runner: ToyRunner, removed: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    keep(folder, runner, 1)
    saved = SavedPages(folder, LIMIT, runner, "model")
    removed(folder)
    assert not loaded(saved, runner, 1)
    for number in (1, 2):
        saved.offer(digest(number), number, None)
    saved.close()
    again = SavedPages(folder, LIMIT, runner, "model")
    assert loaded(again, runner, 1) and loaded(again, runner, 2)
    again.close()
    assert not caplog.records


def test_a_folder_in_whose_place_something_else_is_put_is_left_alone_and_the_log_names_it(
    folder: Path, runner: ToyRunner, caplog: pytest.LogCaptureFixture
) -> None:
    saved = SavedPages(folder, LIMIT, runner, "model")
    shutil.rmtree(folder)
    folder.write_text("")
    saved.offer(digest(1), 1, None)
    saved.close()
    assert [record.message for record in caplog.records] == [f"prefixes are not kept in {folder} for 60 s: Not a directory"]
    assert folder.read_text() == ""


def test_a_file_that_goes_while_the_folder_is_looked_at_hides_no_other(
    folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(folder, runner, 1, 2, 3)
    look, removed = os.stat, list[str]()

    def first_goes(name: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if dir_fd is not None and not removed:
            removed.append(name)
            os.unlink(name, dir_fd=dir_fd)
        return look(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", first_goes)
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert [number for number in (1, 2, 3) if not saved.has(digest(number), with_rows=False)] == [int(name, 16) for name in removed]
    saved.close()


def test_a_file_that_a_killed_process_was_writing_is_never_read_and_goes_in_time(folder: Path, runner: ToyRunner) -> None:
    keep(folder, runner, 1)
    (path,) = files(folder)
    young, old = path.with_name(f".{path.name}.{1:016x}"), path.with_name(f".{path.name}.{2:016x}")
    for partial in (young, old):
        partial.write_bytes(path.read_bytes()[:50])
    os.utime(old, (1, 1))
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert not old.exists()
    assert young.exists()
    assert loaded(saved, runner, 1)
    saved.close()


def test_what_else_is_in_the_folder_does_not_count_and_stays(folder: Path, runner: ToyRunner) -> None:
    """It may be a folder that was there, with a project or other caches in it: all of its files went, the oldest first."""
    keep(folder, runner, 1)
    (ours,) = files(folder)
    kind = ours.parent.name
    names = ("project/.env", "project/data.bin", "large", f"{kind}/.env", f"{kind}/data.bin", f"project/{ours.name}")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * LIMIT)
        os.utime(folder / name, (1, 1))
    keep(folder, runner, *range(2, 12))
    assert {path.relative_to(folder).as_posix() for path in files(folder)} >= {*names}
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert saved.has(digest(11), with_rows=False), "nor do they take ours their room"
    saved.close()


def test_pages_on_a_disk_that_can_only_be_read_are_found(folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder, runner, 1)
    saved = SavedPages(folder, LIMIT, runner, "model")

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    assert loaded(saved, runner, 1)
    saved.close()


def test_two_containers_that_write_a_page_at_once_both_write_all_of_it(
    folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of them the process may have the same number."""
    write, others = os.writev, list[SavedPages]()

    def meanwhile(file: int, parts: list[bytes]) -> int:
        if not others:
            others.append(SavedPages(folder, LIMIT, runner, "model"))
            others[0].offer(digest(1), 1, None)
            others[0].close()
        return write(file, parts)

    monkeypatch.setattr(os, "writev", meanwhile)
    saved = SavedPages(folder, LIMIT, runner, "model")
    saved.offer(digest(1), 1, None)
    saved.close()
    assert others[0].has(digest(1), with_rows=False)
    assert saved.has(digest(1), with_rows=False)  # neither failed
    assert len(files(folder)) == 1
    again = SavedPages(folder, LIMIT, runner, "model")
    assert loaded(again, runner, 1)
    again.close()


def test_a_full_disk_is_told_once_and_nothing_else_is_held_up(
    folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        saved = SavedPages(folder, LIMIT, runner, "model")
        for number in range(4):
            saved.offer(digest(number), number, None)
        saved.close()
    assert [record.message for record in caplog.records] == [f"prefixes are not kept in {folder} for 60 s: No space left on device"]
    assert not any(saved.has(digest(number), with_rows=False) for number in range(4))
    assert files(folder) == []


def test_a_disk_that_is_nearly_full_is_left_alone(folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "RESERVE", 1 << 62)
    keep(folder, runner, 1)
    assert files(folder) == []


def test_what_comes_faster_than_the_disk_takes_it_is_not_kept_and_can_be_offered_again(
    folder: Path, runner: ToyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_pages, "QUEUED", 1)
    monkeypatch.setattr(SavedPages, "_write_all", lambda _: None)  # a disk that takes nothing
    saved = SavedPages(folder, LIMIT, runner, "model")
    saved.offer(digest(1), 1, None)
    saved.offer(digest(2), 2, None)
    assert [saved.has(digest(n), with_rows=False) for n in (1, 2)] == [True, False]


def test_a_folder_that_others_may_write_is_not_used_and_that_is_said(
    folder: Path, runner: ToyRunner, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert saved_pages.saved_pages(CacheFolder(str(folder), LIMIT), runner, "model") is None
    assert "prefixes are not kept" in caplog.text
    assert saved_pages.saved_pages(None, runner, "model") is None


def test_a_whole_page_under_anothers_name_is_not_believed(folder: Path, runner: ToyRunner) -> None:
    """As a restore or a copy that goes wrong may leave it: no bit of it is damaged."""
    keep(folder, runner, 1, 2)
    one, two = files(folder)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    saved = SavedPages(folder, LIMIT, runner, "model")
    assert not loaded(saved, runner, 1)
    assert not loaded(saved, runner, 2)
    saved.close()
