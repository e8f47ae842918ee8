"""``quintet batch run``: what is wrong with its files is told before anything is computed, and what comes of it is where it was wanted."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny

from quintet.cli import batch_run

Command = Callable[..., tuple[int, str, str]]

LONG = "n" * 300
"""A name that every file system refuses: a look at such a path fails as one without permission does, but for root too."""

ALMOST = "n" * 246
"""One that leaves no room for the names that are made of it."""

LINES = [{"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "n": n}} for n in (1, 0)]
"""One that is answered, and one that is refused."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the command runs in, with a file of requests."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (tmp_path / "link.jsonl").symlink_to("out.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in.jsonl", "-o", "out.jsonl", "--errors", "out.jsonl"], "--output and --errors must be two files, got out.jsonl for both."),
        (["in.jsonl", "-o", "out.jsonl", "--errors", "./link.jsonl"], "--output and --errors must be two files, got out.jsonl for both."),
        (["in.jsonl", "-o", "in.jsonl"], "in.jsonl is the file of requests; give another name for what comes of them."),
        (["in.jsonl", "-o", "o", "--errors", "./in.jsonl"], "in.jsonl is the file of requests; give another name for what comes of them."),
        (["in.jsonl", "-o", "o", "--errors", "o.batch/e"], "o.batch/e must not be in o.batch, which is removed when all is done."),
        (["o.batch/in.jsonl", "-o", "o"], "o.batch/in.jsonl must not be in o.batch, which is removed when all is done."),
        (["in.jsonl", "-o", "."], "--output must be a file's name, got '.'."),
        (["in.jsonl", "-o", "o", "--errors", "."], ". is there already; remove it, or give another name."),
        (["none.jsonl", "-o", "o"], "none.jsonl is no file."),
        (["in.jsonl", "-o", "none/o"], "none is no folder."),
        ([f"{LONG}/in.jsonl", "-o", "o"], f"cannot use {LONG}/in.jsonl: File name too long."),
        (["in.jsonl", "-o", f"{LONG}/o"], f"cannot use {LONG}/o: File name too long."),
        (["in.jsonl", "-o", ALMOST], f"cannot use {ALMOST}.batch.done: File name too long."),
    ],
)
def test_files_that_would_be_in_each_others_way_or_cannot_be_used_are_refused(
    words: list[str], said: str, here: Path, command: Command
) -> None:
    before = sorted(here.iterdir())
    assert command("batch", "run", *words, "--toy") == (1, "", f"error: {said}\n")
    assert sorted(here.iterdir()) == before


def test_lines_that_are_no_requests_are_told_as_errors_a_line_each(here: Path, command: Command) -> None:
    (here / "in\n.jsonl").write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n')
    code, out, err = command("batch", "run", "in\n.jsonl", "-o", "out.jsonl", "--toy")
    assert (code, out) == (1, "")
    told = err.splitlines()
    assert len(told) == 2
    for number, line in enumerate(told, 1):
        assert line.startswith(f"error: in\\n.jsonl, line {number}: The line is no request: ")


def test_an_option_that_is_nothing_to_the_model_is_refused_as_a_server_does(command: Command) -> None:
    said = "error: --kv-type is nothing to the toy model; leave it out.\n"
    assert command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--toy", "--kv-type", "q8") == (1, "", said)


def test_answers_and_refusals_go_where_they_were_wanted(here: Path, command: Command) -> None:
    code, out, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--errors", "wrong.jsonl", "--toy")
    assert (code, out) == (1, "") and err.startswith("1 line answered, 1 refused, see wrong.jsonl; ")
    assert [json.loads((here / name).read_text())["custom_id"] for name in ("out.jsonl", "wrong.jsonl")] == ["1", "0"]


def test_settings_of_a_server_that_tells_dialects_by_the_client_are_taken_and_lines_tell_of_none(here: Path, command: Command) -> None:
    (here / "quintet.toml").write_text('dialect = "auto"\n')
    code, _, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--toy", "--config", "quintet.toml")
    assert (code, err.partition(",")[0]) == (1, "1 line answered")
    assert "system_fingerprint" in json.loads((here / "out.jsonl").read_text())["response"]["body"]
    (here / "quintet.toml").write_text('dialect = "none"\n')
    code, _, err = command("batch", "run", "in.jsonl", "-o", "more.jsonl", "--toy", "--config", "quintet.toml")
    assert code == 1 and err.startswith("error: quintet.toml: --dialect must be one of openai, ")


def test_no_answer_tells_of_the_lines_that_were_computed_beside_it(here: Path, command: Command) -> None:
    lines = [{**LINES[0], "custom_id": f"{n}", "body": {"prompt": "x", "perf_metrics_in_response": True}} for n in range(4)]
    (here / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--toy", "--dialect", "fireworks")[0] == 0
    metrics = [json.loads(line)["response"]["body"]["perf_metrics"] for line in (here / "out.jsonl").read_text().splitlines()]
    assert [(one["num-concurrent-requests"], one["cached-prompt-tokens"]) for one in metrics] == [(1, 0)] * 4


def test_every_line_is_computed_by_the_model_of_a_file_whatever_model_it_names(here: Path, command: Command) -> None:
    write_tiny(here / "tiny.gguf", TinySpec("tiny"))
    bodies = ({"prompt": "x", **named} for named in ({}, {"model": "tiny"}, {"model": "gpt-4"}))
    lines = [{**LINES[0], "custom_id": f"{number}", "body": body} for number, body in enumerate(bodies)]
    (here / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, _, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--model", "./tiny.gguf", "--offline", "--threads", "1")
    assert (code, err.partition(";")[0]) == (0, "3 lines answered")
    answers = [json.loads(line)["response"]["body"] for line in (here / "out.jsonl").read_text().splitlines()]
    assert [answer["model"] for answer in answers] == ["tiny", "tiny", "gpt-4"]
    assert len({answer["system_fingerprint"] for answer in answers}) == 1


def test_a_line_without_a_seed_has_the_same_text_whatever_a_model_is_called_and_in_whose_words_it_is_asked(
    here: Path, command: Command
) -> None:
    for name in ("tiny", "renamed"):
        write_tiny(here / f"{name}.gguf", TinySpec("tiny"))
    (here / "in.jsonl").write_text(json.dumps({**LINES[0], "body": {"prompt": "x", "temperature": 1, "max_tokens": 8}}))

    def text(*more: str, model: str = "tiny", dialect: str = "openai") -> str:
        words = "--model", f"./{model}.gguf", "--dialect", dialect, "--offline", "--threads", "1", *more
        (here / "out.jsonl").unlink(missing_ok=True)
        code, _, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", *words)
        assert code == 0, err
        return str(json.loads((here / "out.jsonl").read_text())["response"]["body"]["choices"][0]["text"])

    assert text() == text(model="renamed") == text(dialect="together") != text("--seed", "1")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder "other" is another file system: nothing is renamed into it, or out of it."""
    link = os.link

    def within(source: Path, target: Path) -> None:
        if "other" in (source.parent.name, target.parent.name) and source.parent != target.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        link(source, target)

    monkeypatch.setattr(os, "link", within)


@pytest.mark.usefixtures("apart")
def test_refusals_go_to_another_file_system_and_none_is_seen_there_before_it_is_whole(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, other = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--errors", "other/wrong.jsonl", "--toy"), here / "other"
    other.mkdir()

    def full(_source: Any, target: Any) -> None:
        target.write(b"{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        assert command(*words) == (1, "", "error: cannot use other/wrong.jsonl: No space left on device.\n")
    assert not [*other.iterdir()]
    code, out, err = command(*words)
    assert (code, out) == (1, "") and err.startswith("1 line answered, 1 refused, see other/wrong.jsonl; ")
    for path, name in ((here / "out.jsonl", "1"), (other / "wrong.jsonl", "0")):
        assert json.loads(path.read_text())["custom_id"] == name and path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in other.iterdir()] == ["wrong.jsonl"] and not (here / "out.jsonl.batch").exists()


TO = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--errors", "other/wrong.jsonl")


@pytest.mark.parametrize("name", ["out.jsonl", "other/wrong.jsonl", "link.jsonl"])
def test_a_file_that_was_there_before_anything_was_computed_is_not_written_over_whatever_a_start_that_failed_has_left(
    name: str, here: Path, command: Command
) -> None:
    (here / "other").mkdir()
    words = (*TO[:4], "link.jsonl", *TO[5:]) if name == "link.jsonl" else TO
    code, _, err = command(*TO, "--model", "./none.gguf")
    assert (code, "none.gguf" in err, (here / "out.jsonl.batch").exists()) == (1, True, True)
    if name != "link.jsonl":  # it is one, to nothing
        (here / name).write_text("keep")
    assert command(*words, "--toy") == (1, "", f"error: {name} is there already; remove it, or give another name.\n")
    assert (here / name).is_symlink() or (here / name).read_text() == "keep"


def without_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", ["out.jsonl", "other/wrong.jsonl"])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_comes_while_a_batch_is_computed_stays_and_the_answers_are_kept_for_the_next_run(
    name: str, links: bool, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").mkdir()
    watch = batch_run._watch

    async def meanwhile(*about: Any) -> None:
        await watch(*about)
        (here / name).write_text("keep")

    with monkeypatch.context() as patched:
        patched.setattr(batch_run, "_watch", meanwhile)
        if not links:
            patched.setattr(os, "link", without_links)
        assert command(*TO, "--toy") == (1, "", f"error: {name} is there already; remove it, or give another name.\n")
    assert (here / name).read_text() == "keep"
    (here / name).unlink()
    code, _, err = command(*TO, "--toy")
    assert code == 1 and err.startswith("1 line answered, 1 refused, ")
    assert [json.loads((here / each).read_text())["custom_id"] for each in ("out.jsonl", "other/wrong.jsonl")] == ["1", "0"]


@pytest.mark.usefixtures("apart")
def test_what_a_run_left_that_was_killed_while_it_handed_out_is_in_nobodys_way(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in their places, and one is still in the folder too; so is the other, as between two file systems."""
    (here / "other").mkdir()

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch_run, "_remove", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        assert command(*TO, "--toy")[0] == 130
    before = {name: (here / name).read_bytes() for name in ("out.jsonl", "other/wrong.jsonl")}
    code, _, err = command(*TO, "--toy")
    assert code == 1 and err.startswith("1 line answered, 1 refused, ")
    assert {name: (here / name).read_bytes() for name in before} == before and not (here / "out.jsonl.batch").exists()


def test_what_a_run_left_that_was_killed_while_it_removed_its_folder_is_in_nobodys_way(here: Path, command: Command) -> None:
    left = here / "out.jsonl.batch.done"
    (left / "files").mkdir(parents=True)
    (left / "files" / "input").touch()
    code, _, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--toy")
    assert code == 1 and err.startswith("1 line answered, 1 refused, ")
    assert (here / "out.jsonl").exists() and not left.exists()


@pytest.mark.parametrize("name", ["out.jsonl.batch", "out.jsonl.batch.done"])
@pytest.mark.parametrize("within", ["notes.txt", "files/notes.txt", "files/input/notes.txt", "lock/notes.txt", "", "link"])
def test_what_is_in_the_place_of_a_batchs_folder_and_was_put_there_by_nobody_of_ours_is_refused_and_stays(
    name: str, within: str, here: Path, command: Command
) -> None:
    place, foreign = here / name, here / name / within
    if within == "link":
        (here / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    else:
        foreign.parent.mkdir(parents=True, exist_ok=True)
        foreign.write_text("keep")
    before = sorted(here.rglob("*"))
    code, out, err = command("batch", "run", "in.jsonl", "-o", "out.jsonl", "--toy")
    what = "no folder" if within in ("", "link") else f"a folder with {within} in it"
    ending = ", and is to be a batch's, which is removed when all is done; give another --output."
    assert (code, out, err) == (1, "", f"error: {name} is {what}{ending}\n")
    assert sorted(here.rglob("*")) == before and (within == "link" or foreign.read_text() == "keep")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kv-type", "q8"], "what computes has changed (the model's file, --kv-type, another option of numbers, or this program)"),
        (["--ctx-size", "16"], "--ctx-size is another"),
        (
            ["--model", "other/tiny.gguf"],
            "what computes has changed (the model's file, --kv-type, another option of numbers, or this program)",
        ),
        (["--seed", "5"], "--seed is another"),
    ],
)
def test_a_run_does_not_go_on_with_what_another_engine_or_other_settings_have_begun(
    words: list[str], said: str, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on with what it was begun with."""
    for folder, seed in ((here, 1), (here / "other", 2)):
        folder.mkdir(exist_ok=True)
        write_tiny(folder / "tiny.gguf", TinySpec("tiny", seed=seed))
    begun = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--model", "./tiny.gguf", "--offline", "--threads", "1")

    async def interrupted(*_: object) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(batch_run, "_watch", interrupted)
        code, _, err = command(*begun)
    assert (code, err.endswith("lines done; the same command goes on with the others.\n")) == (130, True), err
    ending = " since the batch in out.jsonl.batch was begun; give what it was begun with, or remove that folder to begin anew.\n"
    assert command(*begun, *words) == (1, "", f"error: {said}{ending}")
    code, _, err = command(*begun)
    assert code == 1 and err.startswith("1 line answered, 1 refused, ")
