"""The secret that outlives a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quintet.keys.key import Key
from quintet.keys.ring import KeyRing
from quintet.keys.salts import lasting_secret


def test_it_is_made_once_for_all_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "prefixes"
    secret = lasting_secret(folder)
    assert len(secret) == 32
    assert lasting_secret(folder) == secret
    assert lasting_secret(tmp_path / "other") != secret
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret"]


def test_two_containers_that_make_it_at_once_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose processes may well have the same number."""
    link, theirs = os.link, []

    def they_are_first(*files: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        theirs.append(lasting_secret(tmp_path))
        link(*files)

    monkeypatch.setattr(os, "link", they_are_first)
    assert [lasting_secret(tmp_path)] == theirs
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_one_that_others_may_read_or_that_was_changed_is_refused(tmp_path: Path) -> None:
    lasting_secret(tmp_path)
    path = tmp_path / "secret"
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others may read it"):
        lasting_secret(tmp_path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="must have 32 bytes, has 5"):
        lasting_secret(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_refused_by_its_name_and_not_waited_for(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "secret")
    with pytest.raises(ValueError, match="secret is not a file"):
        lasting_secret(tmp_path)


def test_salts_are_the_same_next_time_with_it_and_others_without(tmp_path: Path) -> None:
    secret, key, other = lasting_secret(tmp_path), Key(b"one" * 10 + b"12"), Key(b"two" * 10 + b"12")

    def ring(salts: bytes) -> KeyRing:
        return KeyRing([key, other], [], lambda: 0.0, lambda: 0.0, salts)

    assert ring(secret).salt(key) == ring(secret).salt(key) != ring(secret).salt(other)
    assert ring(b"").salt(key) != ring(b"").salt(key)
