"""A folder of batches: whose it is, and what is known of a file when it has been written."""

from __future__ import annotations

import errno
import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.batch import NewBatch
from quintet.batches import folder as folder_module
from quintet.batches.folder import Folder
from quintet.batches.validation import Limits, validate

ASKED = NewBatch(input_file="file", endpoint="/v1/completions", window="48h", window_s=172_800, bare=True)
LINES = st.sampled_from(["", " ", "\t\r", '{"custom_id": "%d", "body": {}}', ' {"custom_id": "%d", "body": {}}\r'])


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_folder_that_is_made_is_its_owners_alone_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    path = tmp_path / "state" / "batches"
    before = os.umask(mask)
    try:
        folder = Folder(path)
    finally:
        os.umask(before)
    for made in (path, folder.content("any").parent):
        assert made.stat().st_mode & 0o777 == 0o700


def test_who_finds_no_room_on_a_disk_that_has_some_is_told_what_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MIN_FREE", 1 << 60)
    with pytest.raises(OSError, match=f"no room: {1 << 40} MiB of the disk are always left free") as error:
        Folder(tmp_path / "kept").require_room()
    assert error.value.errno == errno.ENOSPC


def test_what_is_removed_is_what_servers_left_and_nothing_that_somebody_else_put_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kept")
    draft = folder.draft()
    draft.write(b"killed")
    left, known, others = [f"file-{number:032x}" for number in range(2)], f"file-{2:032x}", ["data.jsonl", ".env", "file-x", "a.draft"]
    for name in (*left, known, *others):
        folder.content(name).write_bytes(b"x")
    folder.sweep({known}, time.time())
    assert len([*folder.content("").iterdir()]) == 8, "they may be another process's"
    folder.sweep({known}, time.time() + folder_module.SWEEP_S + 1)
    assert {path.name for path in folder.content("").iterdir()} == {known, *others}
    draft.drop()


@pytest.mark.fault("J03")
def test_a_disk_that_takes_a_part_at_a_time_has_all_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that has room for no more just then."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    folder = Folder(tmp_path / "kept")
    draft = folder.draft()
    draft.write(b"answers\n")
    draft.keep("file-1")
    assert folder.content("file-1").read_bytes() == b"answers\n"


@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, max_size=6), st.lists(st.integers(0, 200), max_size=6))
def test_the_requests_of_a_file_are_counted_as_they_are_validated_however_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cuts: list[int]
) -> None:
    data = "\n".join(line.replace("%d", str(number)) for number, line in enumerate(lines)).encode()
    folder = Folder(tmp_path_factory.mktemp("batches"))
    draft, ends = folder.draft(), sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(ends):
        draft.write(data[begin:end])
    draft.keep("file")
    *_, found = validate(folder.content("file"), ASKED, Limits(), lambda number: number)
    assert draft.lines == len(found.lines)


@pytest.mark.parametrize("line", [b"\n", b"a\n", b"\r\n"])
def test_a_file_of_hundreds_of_thousands_of_lines_is_counted_without_looking_at_each(tmp_path: Path, line: bytes) -> None:
    data = line * (2**18 // len(line))
    draft, costs = Folder(tmp_path / "batches").draft(), list[float]()
    for _ in range(5):
        begin = time.thread_time()
        draft.write(data)
        costs.append(time.thread_time() - begin)
    assert min(costs) < 0.004  # it is written in many threads, and while one of them computes, nobody else is served
