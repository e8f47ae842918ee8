"""Models from the Hugging Face hub. ``model_info`` and ``hf_hub_download`` are replaced; the cache has the hub's real layout and is
read by the real library; the offline errors are the real ones."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors
from tests.support.fake_hub import FakeHub
from tests.support.report import GGUF, Notes

from quintet.errors import ModelError
from quintet.models import files, hub, store
from quintet.models.hub import HubReference

# --- choosing the file


@pytest.mark.parametrize(
    ("names", "want", "chosen"),
    [
        (["a.Q8_0.gguf", "a.q4_k_m.gguf"], "", "a.q4_k_m.gguf"),
        (["b-f16.gguf", "a-Q2_K.gguf", "x.txt"], "", "a-Q2_K.gguf"),
        (["a-Q4_K_M.gguf", "a-Q8_0.gguf"], "q8_0", "a-Q8_0.gguf"),
        (["a-Q4_K_S.gguf", "a-Q4_K.gguf"], "Q4_K", "a-Q4_K.gguf"),
        (["a-BF16.gguf", "a-F16.gguf"], "f16", "a-F16.gguf"),
        (["a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf"], "UD-Q4_K_XL", "a-UD-Q4_K_XL.gguf"),
        (["mmproj-Q4_K_M.gguf", "z-Q8_0.gguf"], "", "z-Q8_0.gguf"),
        (["one.gguf", "sub/two.gguf"], "sub/two.gguf", "sub/two.gguf"),
        (["a-Q8_0-00002-of-00002.gguf", "a-Q8_0-00001-of-00002.gguf"], "Q8_0", "a-Q8_0-00001-of-00002.gguf"),
        (["Q4_K_M/a-00001-of-00002.gguf", "Q4_K_M/a-00002-of-00002.gguf", "Q8_0/a.gguf"], "", "Q4_K_M/a-00001-of-00002.gguf"),
    ],
)
def test_the_file_a_reference_means(names: list[str], want: str, chosen: str) -> None:
    assert hub.pick(names, HubReference("user/repo", want)) == chosen


@pytest.mark.parametrize(
    ("names", "want", "said"),
    [
        (["README.md"], "", "holds no .gguf file, and neither model.safetensors nor model.safetensors.index.json"),
        (["pytorch_model.bin"], "", "holds no .gguf file; it has pickles, which are not opened, since they run code"),
        (["model.safetensors"], "Q4_0", "holds no .gguf file for 'Q4_0'"),
        (["a-Q8_0.gguf"], "Q4_0", "has no file for 'Q4_0'; it has: a-Q8_0.gguf"),
        (["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"], "Q2_K", "'Q2_K'; it has: a-Q8_0-00001-of-00002.gguf."),
    ],
)
def test_no_fitting_file_is_refused_with_the_reason(names: list[str], want: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        hub.pick(names, HubReference("user/repo", want))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["hf:", "hf:repo", "hf:a/b/c", "hf:a b/c", "hf:/b:Q8_0"])
def test_a_malformed_reference_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ModelError, match="malformed model reference .* write hf:user/repo"):
        store.resolve(text, Notes())


# --- fetching


def test_a_model_is_announced_with_its_size_fetched_and_its_hash_checked(fake: FakeHub) -> None:
    notes = Notes()
    found = store.resolve("hf:user/repo", notes)
    assert (found.reference, found.name, found.path.read_bytes()) == ("hf:user/repo:m-Q4_K_M.gguf", "m-Q4_K_M", GGUF)
    assert notes.lines == [
        f"fetching hf:user/repo:m-Q4_K_M.gguf: 10 kB, to {fake.cache}",
        "hf:user/repo:m-Q4_K_M.gguf is ready, SHA-256 checked",
    ]


def test_a_cached_model_is_used_without_asking_the_hub(fake: FakeHub) -> None:
    store.resolve("hf:user/repo:Q8_0", Notes())
    fake.asked.clear()
    notes = Notes()
    assert store.resolve("hf:user/repo:q8_0", notes).size == len(GGUF) + 1
    assert (fake.asked, notes.lines) == ([], [])
    store.resolve("hf:user/repo:q8_0", notes, refresh=True)
    assert fake.asked == ["user/repo"]


def test_the_default_is_not_whatever_happens_to_be_cached(fake: FakeHub) -> None:
    store.resolve("hf:user/repo:Q8_0", Notes())
    assert store.resolve("hf:user/repo", Notes()).name == "m-Q4_K_M"


def test_offline_takes_what_is_cached_and_refuses_what_is_not(fake: FakeHub) -> None:
    with pytest.raises(ModelError, match="hf:user/repo is not in the cache and offline mode is on"):
        store.resolve("hf:user/repo", Notes(), offline=True)
    fake.put("user/repo", "m-q8_0.gguf", GGUF)
    assert store.resolve("hf:user/repo", Notes(), offline=True).name == "m-q8_0"
    with pytest.raises(ModelError, match="has no file for 'Q2_K'"):
        store.resolve("hf:user/repo:Q2_K", Notes(), offline=True)
    assert fake.asked == []


def test_a_download_with_the_wrong_hash_is_removed(fake: FakeHub) -> None:
    fake.promised["m-Q4_K_M.gguf"] = "0" * 64
    with pytest.raises(ModelError, match="wrong SHA-256 hash .* it was removed"):
        store.resolve("hf:user/repo", Notes())
    assert hub.stored() == []


def test_a_check_that_is_broken_off_is_made_the_next_time(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(path: Path) -> str:
        raise KeyboardInterrupt

    fake.promised["m-Q4_K_M.gguf"] = "0" * 64
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "sha256", ctrl_c)
        store.resolve("hf:user/repo", Notes())
    assert hub.stored() == []
    with pytest.raises(ModelError, match="wrong SHA-256 hash .* it was removed"):
        store.resolve("hf:user/repo", Notes())


def test_a_check_that_is_broken_off_is_made_the_next_time_in_a_cache_without_links_too(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = fake.put

    def plain(*about: Any) -> Path:
        link = put(*about)
        return link.resolve().replace(link)

    def ctrl_c(path: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "put", plain)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "sha256", ctrl_c)
        store.resolve("hf:user/repo", Notes())
    assert hub.stored() == []
    found = store.resolve("hf:user/repo", Notes())
    assert hub.stored() == [found]
    assert fake.sent == ["m-Q4_K_M.gguf"] * 2  # its bytes went with its name


def test_a_model_that_another_program_brings_after_a_fetch_that_failed_is_here(fake: FakeHub) -> None:
    fake.download_failure = "", _answer(errors.GatedRepoError, "403")
    with pytest.raises(ModelError, match="is gated"):
        store.resolve("hf:user/repo", Notes())
    fake.promised["m-Q4_K_M.gguf"], fake.download_failure = hashlib.sha256(GGUF).hexdigest(), None
    fake.files["m-Q4_K_M.gguf"] = GGUF + b"wrong"
    with pytest.raises(ModelError, match="wrong SHA-256 hash"):
        store.resolve("hf:user/repo", Notes())
    fake.put("user/repo", "m-Q4_K_M.gguf", GGUF)
    assert store.resolve("hf:user/repo", Notes(), offline=True).path.read_bytes() == GGUF


def test_a_model_that_is_being_checked_is_not_here_for_anybody_so_that_a_kill_leaves_none_unchecked(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(path: Path) -> str:
        looks.append(hub.stored())
        with pytest.raises(ModelError, match="not in the cache and offline mode is on"):
            store.resolve("hf:user/repo", Notes(), offline=True)
        return files.sha256(path)

    monkeypatch.setattr(hub, "sha256", look)
    found = store.resolve("hf:user/repo", Notes())
    assert looks == [[]]
    assert store.resolve("hf:user/repo", Notes()) == store.resolve("hf:user/repo", Notes(), refresh=True) == found
    assert hub.stored() == [found]
    assert looks == [[]]  # what was checked once is not checked again


def test_a_model_is_on_the_disk_before_it_is_here(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, synced = os.fsync, list[tuple[int, int]]()

    def noted(handle: int) -> None:
        fsync(handle)
        synced.append((os.fstat(handle).st_ino, len(hub.stored())))

    monkeypatch.setattr(os, "fsync", noted)
    found = store.resolve("hf:user/repo", Notes())
    assert synced == [(found.path.stat().st_ino, 0)]


def test_while_another_revision_is_fetched_and_checked_the_one_that_is_here_is_used(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    old, looks = store.resolve("hf:user/repo", Notes()), []

    def look(path: Path) -> str:
        looks.append(store.resolve("hf:user/repo", Notes(), offline=True))
        return files.sha256(path)

    monkeypatch.setattr(hub, "sha256", look)
    fake.files["m-Q4_K_M.gguf"], fake.revision = GGUF + b"newer", "b" * 40
    new = store.resolve("hf:user/repo", Notes(), refresh=True)
    assert (looks, new.path.read_bytes()) == ([old], GGUF + b"newer")


def test_a_model_whose_check_was_broken_off_is_not_fetched_again_and_needs_no_room(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(path: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hub, "sha256", ctrl_c)
        store.resolve("hf:user/repo", Notes())
    notes = Notes()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9))
    assert store.resolve("hf:user/repo", notes).path.read_bytes() == GGUF
    assert notes.lines == ["hf:user/repo:m-Q4_K_M.gguf is ready, SHA-256 checked"]


def test_too_large_for_the_disk_is_refused_before_the_download(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9))
    with pytest.raises(ModelError, match="not enough disk space .* needs 10 kB, 9 B are free"):
        store.resolve("hf:user/repo", Notes())


def test_a_model_that_has_changed_is_announced_and_must_fit_on_the_disk_too(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    store.resolve("hf:user/repo", Notes())
    fake.files["m-Q4_K_M.gguf"], fake.revision, notes = GGUF + b"newer", "b" * 40, Notes()
    with monkeypatch.context() as patch, pytest.raises(ModelError, match="not enough disk space"):
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9))
        store.resolve("hf:user/repo", Notes(), refresh=True)
    assert store.resolve("hf:user/repo", notes, refresh=True).path.read_bytes() == GGUF + b"newer"
    assert notes.lines == [
        f"fetching hf:user/repo:m-Q4_K_M.gguf: 10 kB, to {fake.cache}",
        "hf:user/repo:m-Q4_K_M.gguf is ready, SHA-256 checked",
    ]


def test_a_revision_in_which_a_model_has_not_changed_needs_no_room(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    store.resolve("hf:user/repo", Notes())
    fake.revision, notes = "b" * 40, Notes()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=9))
    store.resolve("hf:user/repo", notes, refresh=True)
    assert notes.lines == ["hf:user/repo:m-Q4_K_M.gguf is ready, SHA-256 checked"]


def _answer(kind: type[errors.HfHubHTTPError], text: str) -> errors.HfHubHTTPError:
    import httpx2

    return kind(text, response=httpx2.Response(404, request=httpx2.Request("GET", "http://hub.test")))


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (_answer(errors.RepositoryNotFoundError, "404"), "does not exist, or is private"),
        (_answer(errors.GatedRepoError, "403"), "is gated"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (ConnectionError("[Errno -2] Name or service not known"), "cannot be fetched from the hub: [Errno -2] Name or service not known"),
        (RuntimeError("first line\nsecond line"), "cannot be fetched from the hub: first line"),
        (RuntimeError(), "cannot be fetched from the hub: RuntimeError"),
    ],
)
def test_what_the_hub_or_the_network_says_becomes_one_clear_line(fake: FakeHub, failure: Exception, said: str) -> None:
    fake.failure = failure
    with pytest.raises(ModelError) as caught:
        store.resolve("hf:user/repo", Notes())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (OSError(28, "No space left on device"), "the disk is full"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ConnectionError("connection reset"), "cannot be fetched from the hub: connection reset"),
    ],
)
def test_a_download_that_breaks_off_becomes_one_clear_line(fake: FakeHub, failure: Exception, said: str) -> None:
    fake.download_failure = ("", failure)
    with pytest.raises(ModelError) as caught:
        store.resolve("hf:user/repo", Notes())
    assert said in str(caught.value)


# --- split models

FIRST, SECOND, THIRD = (f"Q5_K_M/m-0000{i}-of-00003.gguf" for i in (1, 2, 3))


@pytest.fixture
def split(fake: FakeHub) -> FakeHub:
    fake.files |= {name: GGUF + name.encode() for name in (FIRST, SECOND, THIRD)}
    return fake


@pytest.mark.parametrize("want", ["Q5_K_M", FIRST, THIRD])
def test_all_parts_of_a_split_model_are_fetched_with_one_progress(split: FakeHub, want: str) -> None:
    notes = Notes()
    found = store.resolve(f"hf:user/repo:{want}", notes)
    size, total = len(GGUF + FIRST.encode()), 3 * len(GGUF + FIRST.encode())
    assert (found.reference, found.name, found.path.name, found.size) == (f"hf:user/repo:{FIRST}", "m", Path(FIRST).name, total)
    assert split.sent == [FIRST, SECOND, THIRD]
    assert [path.read_bytes() for path in files.parts(found.path)] == [split.files[name] for name in (FIRST, SECOND, THIRD)]
    assert notes.lines == [
        f"fetching hf:user/repo:{FIRST} and 2 more: 31 kB, to {split.cache}",
        f"hf:user/repo:{FIRST} is ready, SHA-256 checked",
    ]
    assert notes.seen == [(done * size, total) for done in (0, 1, 1, 2, 2, 3)]
    assert store.resolve(f"hf:user/repo:{want}", notes) == found
    assert split.asked == ["user/repo"]


def test_a_fetch_that_broke_off_goes_on_with_the_parts_that_are_missing(split: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the model is neither listed nor used."""
    monkeypatch.setenv("QUINTET_CACHE", str(split.cache / "none"))
    split.download_failure = (SECOND, ConnectionError("connection reset"))
    with pytest.raises(ModelError, match="cannot be fetched from the hub: connection reset"):
        store.resolve("hf:user/repo:Q5_K_M", Notes())
    assert (split.sent, store.stored()) == ([FIRST], [])
    with pytest.raises(ModelError, match="is not in the cache and offline mode is on"):
        store.resolve("hf:user/repo:Q5_K_M", Notes(), offline=True)
    split.download_failure, notes = None, Notes()
    found = store.resolve("hf:user/repo:Q5_K_M", notes)
    assert split.sent == [FIRST, SECOND, THIRD]
    assert notes.lines[0] == f"fetching hf:user/repo:{SECOND} and 1 more: 21 kB, to {split.cache}"
    assert store.stored() == [found]


def test_a_part_with_the_wrong_hash_is_removed_and_the_others_stay(split: FakeHub) -> None:
    split.promised[SECOND] = "0" * 64
    with pytest.raises(ModelError, match="the downloaded Q5_K_M/m-00002-of-00003.gguf has the wrong SHA-256 hash"):
        store.resolve("hf:user/repo:Q5_K_M", Notes())
    del split.promised[SECOND]
    store.resolve("hf:user/repo:Q5_K_M", Notes())
    assert split.sent == [FIRST, SECOND, SECOND, THIRD]


def test_a_repository_that_lacks_a_part_is_refused_before_the_download(split: FakeHub) -> None:
    del split.files[SECOND]
    with pytest.raises(ModelError, match=f"hf:user/repo:{FIRST} is split, and the repository lacks {SECOND}"):
        store.resolve("hf:user/repo:Q5_K_M", Notes())
    assert split.sent == []


# --- the cache


def test_the_list_holds_whole_models_of_every_repository_and_nothing_else(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", str(fake.cache / "none"))
    fake.put("user/repo", "sub/m.gguf", GGUF)
    fake.put("user/repo", "README.md", b"x")
    fake.put("other/model", "mmproj.gguf", GGUF)
    fake.put("other/model", "big-00001-of-00002.gguf", GGUF)
    fake.put("other/model", "a.gguf", GGUF)
    assert [(one.reference, one.size) for one in store.stored()] == [
        ("hf:other/model:a.gguf", len(GGUF)),
        ("hf:user/repo:sub/m.gguf", len(GGUF)),
    ]


def test_without_a_cache_the_list_is_empty(fake: FakeHub) -> None:
    assert hub.stored() == []


def test_every_listed_reference_resolves_to_its_file(fake: FakeHub) -> None:
    fake.put("user/repo", "sub/m.gguf", GGUF)
    (one,) = hub.stored()
    assert store.resolve(one.reference, Notes(), offline=True) == one


def test_the_real_library_offline_gives_one_clear_line(tmp_path: Path) -> None:
    """In a process of its own, where HF_HUB_OFFLINE is set before huggingface_hub is imported."""
    code = "from quintet.models import store; store.resolve('hf:user/repo', None)"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr.splitlines()[-1] == (
        "quintet.errors.ModelError: hf:user/repo is not in the cache and offline mode is on; pull it with a network first."
    )


def test_an_unreachable_hub_gives_one_clear_line(tmp_path: Path) -> None:
    """The real library and HTTP stack, pointed at a closed port."""
    code = "from quintet.models import store\nclass N:\n note = progress = lambda *a: None\nstore.resolve('hf:user/repo', N())"
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr.splitlines()[-1].startswith("quintet.errors.ModelError: hf:user/repo cannot be fetched from the hub: ")


def test_sha256_is_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert files.sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
