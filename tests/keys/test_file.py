"""A file of keys: what it may hold, who may read it, and what becomes of it while a server runs."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from quintet.keys.file import KeyFile, KeyFileError
from quintet.keys.key import Key
from quintet.keys.ring import LOOK_S, KeyRing
from quintet.keys.store import KeyStore


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def ring(file: Path, *given: str, clock: Clock | None = None) -> KeyRing:
    keys = [Key(hashlib.sha256(key.encode()).digest()) for key in given]
    return KeyRing(keys, [KeyFile(file)], clock or Clock(), lambda: 0.0)


def opens(keys: KeyRing, key: str) -> bool:
    return keys.find(key.encode()) is not None


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_holds_keys_plain_or_hashed_one_a_line_with_comments(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-hashed").hexdigest()
    keys = ring(written(tmp_path / "keys", f"# Ada\nsk-plain\n\n  # Bob\nsha256:{digest}\nsha256:{digest.upper()}\n"))
    for key in ("sk-plain", "sk-hashed"):
        found = keys.find(key.encode())
        assert found is not None and found.id == hashlib.sha256(key.encode()).hexdigest()[:8]
    assert not any(opens(keys, wrong) for wrong in ("# Ada", "Ada", digest, f"sha256:{digest}", ""))


def test_a_key_that_is_given_as_well_as_kept_has_what_it_was_given_with(tmp_path: Path) -> None:
    given = Key(hashlib.sha256(b"sk-both").digest(), name="given")
    found = KeyRing([given], [KeyFile(written(tmp_path / "keys", "sk-both\n"))], Clock(), lambda: 0.0).find(b"sk-both")
    assert found is not None and found.name == "given"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no API key"),
        ("# only a comment\n", "holds no API key"),
        ("sk-a\nsecret with spaces\n", "line 2"),
        ("sha256:abc\n", "line 1"),
        ("schl\u00fcssel\n", "must be ASCII"),
    ],
)
def test_a_malformed_key_file_is_refused_without_telling_what_it_holds(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(KeyFileError, match=says) as caught:
        KeyFile(written(tmp_path / "keys", text)).read()
    assert "secret" not in str(caught.value)
    assert "abc" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.fault("D14")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o606, 0o602, 0o620])
def test_a_key_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyFile(written(tmp_path / "keys", "sk-a\n", mode)).read()


def test_a_key_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        KeyFile(tmp_path / "none").read()
    with pytest.raises(KeyFileError, match="is not a file"):
        KeyFile(tmp_path).read()


@pytest.mark.fault("F02")
def test_a_key_taken_out_of_the_file_stops_working_within_a_second_and_a_new_one_begins_to(tmp_path: Path) -> None:
    clock = Clock()
    file = written(tmp_path / "keys", "sk-old\nsk-stays\n")
    keys = ring(file, "sk-option", clock=clock)
    assert opens(keys, "sk-old")
    written(file, "sk-new-one\nsk-stays\n")
    clock.now += LOOK_S
    assert LOOK_S < 1
    assert [opens(keys, key) for key in ("sk-old", "sk-new-one", "sk-stays", "sk-option")] == [False, True, True, True]


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o644), lambda file: file.unlink(), lambda file: file.write_text("a b\n")])
def test_a_key_file_that_goes_bad_opens_nothing_until_it_is_mended(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    clock = Clock()
    file = written(tmp_path / "keys", "sk-file\n")
    keys = ring(file, "sk-option", clock=clock)
    spoil(file)
    clock.now += LOOK_S
    assert [opens(keys, key) for key in ("sk-file", "sk-option")] == [False, True]
    written(file, "sk-file\n")
    clock.now += LOOK_S
    assert opens(keys, "sk-file")


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("stored", [False, True], ids=["file", "store"])
def test_where_no_descriptor_is_to_be_had_the_keys_stay_as_they_were(tmp_path: Path, stored: bool, changed: bool) -> None:
    clock, store, file = Clock(), KeyStore(tmp_path / "store"), tmp_path / "keys"

    def add(name: str) -> str:
        if stored:
            return store.add(Key(b"", name=name))
        text = file.read_text() if file.exists() else ""
        written(file, f"{text}sk-{name}\n")
        return f"sk-{name}"

    old = add("old")
    keys = KeyRing([], [store if stored else KeyFile(file)], clock, lambda: 0.0)
    new = add("new") if changed else old
    clock.now += LOOK_S
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        found = opens(keys, old)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found
    clock.now += LOOK_S
    assert opens(keys, old) and opens(keys, new)
