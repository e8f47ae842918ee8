"""The files whose locks tell which processes write a ledger."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from quintet.ledger.lives import Life, ended, forget


def test_a_life_is_over_when_it_ends_or_its_descriptor_is_closed_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    assert ended(file, 1), "there was none"
    one, other = Life(file, 1), Life(file, 2)
    assert (ended(file, 1), ended(file, 2)) == (False, False)
    one.end()
    other.drop()
    assert (ended(file, 1), ended(file, 2)) == (True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db-life2"], "as of a process that was killed"
    forget(file, 2)
    assert not [*tmp_path.iterdir()]
    forget(file, 2)


def test_what_ended_holds_no_descriptor(tmp_path: Path) -> None:
    life = Life(tmp_path / "ledger.db", 1)
    life.end()
    with pytest.raises(OSError):
        os.fstat(life._fd)


def test_a_life_ends_on_a_disk_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path / "ledger.db", 1)

    def refused(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refused)
    life.end()
    assert ended(tmp_path / "ledger.db", 1)


def test_where_the_system_has_no_lock_to_look_with_nobody_is_said_to_be_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was raised had ended the thread that writes."""
    Life(tmp_path / "ledger.db", 1).drop()

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as broken:
        broken.setattr(fcntl, "flock", refused)
        assert not ended(tmp_path / "ledger.db", 1)
    assert ended(tmp_path / "ledger.db", 1)


def test_of_a_life_that_cannot_be_looked_at_it_is_not_said_that_it_is_over(tmp_path: Path) -> None:
    (tmp_path / "ledger.db-life1").mkdir()
    assert ended(tmp_path / "ledger.db", 1) is False
