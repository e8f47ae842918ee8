"""The command line: what options mean, and that what a person can mend is one line and an exit code."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.report import Notes

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.front.engine import Engine
from quintet.cli import console, describe, doctor, engines, loading, run
from quintet.cli.app import app
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, ModelError
from quintet.events import Usage
from quintet.inputs.tokenizer import Tokenizer
from quintet.listen import sockets
from quintet.models import bundled
from quintet.models.files import unusable_cache
from quintet.models.gguf import open_model


def quintet(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person does."""
    command = [sys.executable, "-m", "quintet", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny"))


# --- the program


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, quintet.cli\n"
        "sys.argv = ['quintet', '--help']\n"
        "try: quintet.cli.main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'rich', 'llguidance', 'huggingface_hub', 'quintet.backends.native.worker.worker', 'quintet.backends.toy'}\n"
        "heavy |= {'opentelemetry', 'requests', 'google.protobuf', 'quintet.server.otel'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("serve", "run", "pull", "list", "show", "doctor", "config"):
        assert f" {command} " in done.stdout


def test_a_server_carries_nothing_that_only_its_engine_or_a_terminal_needs() -> None:
    """Each of these is megabytes; the engine, in its own process, imports what computes."""
    code = (
        "import sys, quintet.cli.app, quintet.cli.serve, quintet.cli.serving\n"
        "heavy = {'numpy', 'rich', 'llguidance', 'huggingface_hub', 'quintet.backends.native.worker.worker', 'quintet.backends.toy'}\n"
        "heavy |= {'opentelemetry', 'requests', 'google.protobuf', 'quintet.server.otel'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_of_the_command_names_every_command_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    groups = {name: group for name, group in app.commands.items() if isinstance(group, click.Group)}
    parts = {f"{name} {part}": command for name, group in groups.items() for part, command in group.commands.items()}
    for name, command in {**app.commands, **parts}.items():
        section = page.partition(f"quintet {name}")[2]
        assert section, name
        for option in (option for parameter in command.params for option in parameter.opts if option.startswith("--")):
            assert f"`{option}" in section, (name, option)


def test_version() -> None:
    assert quintet("--version").stdout == "quintet 0.1.0\n"


Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nothing"], "error: unknown model 'nothing'"),
        (["show", "none.gguf"], "error: cannot use none.gguf: No such file or directory."),
        (["pull", __file__], "error: test_cli.py: the file is not GGUF"),
        (["pull", "hf:user/repo"], "error: hf:user/repo is not in the cache and offline mode is on"),
        (["pull", "--offline"], "error: the bundled model is not here"),
        (["serve", "none.gguf", "--port", "0"], "error: cannot use none.gguf"),
        (["serve", "--toy", "--host", "0.0.0.0"], "error: host '0.0.0.0' is reachable from other machines and no API key is set"),
        (["serve", "--kv-cache", "lots"], "error: --kv-cache must be a number above 0 with a unit"),
        (["serve", "--toy", "--log-level", "loud"], "error: --log-level must be one of error, warning, info, debug"),
        (["serve", "--toy", "--ctx-size", "50"], "error: --ctx-size is nothing to the toy model; leave it out."),
        (["serve", "--toy", "model.gguf"], "error: --toy serves the toy model alone: it takes no MODEL, got 'model.gguf'."),
        (["serve", "--toy", "--api-key", ""], "error: --api-key must be printable"),
        (["serve", "--toy", "-a", ""], "error: --served-model-name must not be empty."),
        (["serve", "", "--port", "0"], "error: unknown model ''"),
        (["serve", "toy", "toy", "--port", "0"], "error: the name 'toy' is given twice; write NAME=REFERENCE"),
        (["serve", "toy", "b=none.gguf", "--port", "0"], "error: b, with 1.1 GB of KV cache as its share: cannot use none.gguf"),
        (["serve", "toy", "--alias", "gpt", "--port", "0"], "error: --alias must be NAME=MODEL, got 'gpt'."),
        (["serve", "toy", "--alias", "gpt=x", "--port", "0"], "error: the alias 'gpt' is for 'x', which is not served here; served: toy."),
        (["serve", "toy", "--pin", "x", "--port", "0"], "error: --pin must be the name of a model, toy, got 'x'."),
        (["serve", "toy", "--idle-unload", "soon"], "error: --idle-unload must be a number with a unit s, m or h, got 'soon'."),
        (["serve", "toy", "--admin-key", "two words"], "error: --admin-key must be printable ASCII without spaces"),
        (["serve", "toy", "--admin-key", ""], "error: --admin-key must be printable ASCII without spaces, and not empty."),
        (["serve", "--port", "0", "--kv-cache", "1000TB"], "error: --kv-cache of 1000.0 TB is more than this machine's memory"),
        (["serve", "=smollm2", "--port", "0"], "error: a model is written REFERENCE or NAME=REFERENCE, got '=smollm2'."),
        (["serve", "mine=", "--port", "0"], "error: a model is written REFERENCE or NAME=REFERENCE, got 'mine='."),
        (["serve", "toy", "--port", "9", "--admin-listen", "127.0.0.1:9"], "error: --admin-listen must be another place than --host and"),
        (["serve", "none.gguf", "--prefix-cache-dir", __file__], f"error: --prefix-cache-dir {__file__} is not a folder."),
        (["show", "toy"], "error: the toy model has no file: there is nothing to fetch or to describe."),
        (["pull", "toy"], "error: the toy model has no file"),
        (["batch", "run", "none", "-o", "out", "--toy", "--model", "smollm2"], "error: --toy computes with the toy model alone"),
        (["run", "toy", "x", "--kv-type", "q8"], "error: --kv-type is nothing to the toy model; leave it out."),
        (["run", "a", "b", "c"], "error: run takes a model and a prompt, got 3 arguments"),
        (["run", "none.gguf", "The sky is"], "error: cannot use none.gguf"),
        (["run", "x", "--temperature", "nan"], "error: --temperature must be from 0 to 2, got nan."),
        (["run", "x", "--temperature", "-1"], "error: --temperature must be from 0 to 2, got -1.0."),
        (["run", "x", "--top-p", "0"], "error: --top-p must be above 0 and at most 1, got 0.0."),
        (["run", "x", "--stop", ""], "error: --stop must not be empty."),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_exit_code_1(words: list[str], said: str, command: Command) -> None:
    code, out, err = command(*words)
    assert err.startswith(said)
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("words", [["pull"], ["show"], ["serve", "--port", "0"]])
def test_a_truncated_model_is_refused(words: list[str], tiny: Path, tmp_path: Path, command: Command) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(tiny.read_bytes()[:-1000])
    code, _, err = command(words[0], str(half), *words[1:])
    assert (code, err.count("\n")) == (1, 1)
    assert "truncated or damaged" in err


def test_an_error_from_another_process_looks_the_same(tmp_path: Path) -> None:
    done = quintet("show", str(tmp_path / "none.gguf"))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: cannot use {tmp_path}/none.gguf: No such file or directory.\n")


# --- run


def test_run_streams_text_to_stdout_and_figures_to_stderr_the_same_for_the_same_seed(tiny: Path) -> None:
    words = ["run", str(tiny), "Hello", "--max-tokens", "8", "--seed", "7"]
    first, second = quintet(*words), quintet(*words)
    assert (first.returncode, first.stdout) == (0, second.stdout)
    assert len(first.stdout) > 1
    assert " prompt tokens, 8 generated, first after " in first.stderr
    assert first.stderr.endswith(", seed 7\n")
    assert quintet(*words[:-1], "8").stdout != first.stdout


def test_run_reads_a_piped_prompt(tiny: Path) -> None:
    command = [sys.executable, "-m", "quintet", "run", str(tiny), "--max-tokens", "4", "--seed", "7"]
    piped = subprocess.run(command, input="Hello", capture_output=True, text=True, check=True)
    assert piped.stdout == quintet("run", str(tiny), "Hello", "--max-tokens", "4", "--seed", "7").stdout


def test_run_ends_before_a_stop_string(tiny: Path) -> None:
    words = ["run", str(tiny), "Hello", "--max-tokens", "16", "--temperature", "0"]
    text = quintet(*words).stdout.rstrip("\n")
    stop = text[len(text) // 2]
    assert quintet(*words, "--stop", stop).stdout == text.partition(stop)[0] + "\n"


def test_run_refuses_a_prompt_that_does_not_fit(tiny: Path) -> None:
    done = quintet("run", str(tiny), "Hello " * 50, "--ctx-size", "16")
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'prompt' ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["The sky is"], ("smollm2", "The sky is")),
        (["README.md"], ("smollm2", "README.md")),
        (["smollm2"], ("smollm2", "piped")),
        (["m.gguf"], ("m.gguf", "piped")),
        (["hf:user/repo:Q8_0"], ("hf:user/repo:Q8_0", "piped")),
        ([], ("smollm2", "piped")),
        (["smollm2", "smollm2"], ("smollm2", "smollm2")),
        (["m.gguf", "The sky is"], ("m.gguf", "The sky is")),
    ],
)
def test_a_lone_argument_is_the_prompt_unless_it_is_written_like_a_model(
    words: list[str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped"))
    assert run.model_and_prompt(words) == expected


def test_run_without_a_prompt_on_a_terminal_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    with pytest.raises(console.OptionError, match="give a prompt"):
        run.model_and_prompt(["smollm2"])


def test_the_summary_counts_the_first_token_apart_from_the_speed_of_the_others() -> None:
    options = run.RunOptions(prompt="p", max_tokens=9, temperature=1.0, top_p=1.0, seed=5, stop=())
    assert run.summary(Usage(3, 9), run.Clock(10.0, 10.25, 12.25), options) == (
        "3 prompt tokens, 9 generated, first after 250 ms, then 4.0 tokens/s, seed 5\n"
    )
    together = run.Clock(10.0, 10.25, 10.25 + 1e-4)  # of tokens that came together, nobody knows how fast they were
    assert run.summary(Usage(3, 2), together, options) == "3 prompt tokens, 2 generated, first after 250 ms, seed 5\n"
    greedy = run.RunOptions(prompt="p", max_tokens=9, temperature=0.0, top_p=1.0, seed=5, stop=())
    assert run.summary(Usage(3, 0), run.Clock(10.0), greedy) == "3 prompt tokens, 0 generated\n"


# --- models


def test_show_tells_sizes_quantisation_and_memory_for_a_context(tiny: Path) -> None:
    lines = dict(line.split(None, 1) for line in quintet("show", str(tiny), "--ctx-size", "32").stdout.splitlines())
    assert lines["architecture"] == "llama"
    assert lines["file"].startswith(str(tiny))
    assert lines["quantisation"].split(":")[1].split()[0] in ("F32", "Q4_0", "Q8_0", "Q4_1")
    assert lines["memory"].endswith("for 32 tokens")


def test_list_says_so_when_there_is_nothing(tmp_path: Path) -> None:
    done = quintet("list", QUINTET_CACHE=str(tmp_path / "q"), HF_HOME=str(tmp_path))
    assert done.stdout.startswith(f"no models in {tmp_path / 'q'} or the Hugging Face cache")


# --- engine options


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 1 << 30), ("512mib", 512 << 20), ("2G", 2 * 10**9), ("1.5 kB", 1500), ("64Ki", 65536), ("4096", 4096), ("7b", 7)],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert engines.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GiB", "-1", "GiB", "1XB", "1 G i B", "1e9", "1i", "nan"])
def test_what_is_no_size_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(console.OptionError) as caught:
        engines.parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["0.5", "0.0009kB", "8388608TiB", "18446744073709551616", "9" * 400])
def test_a_size_is_at_least_a_byte_and_one_that_can_be_counted(text: str) -> None:
    with pytest.raises(console.OptionError, match=r"^--max-body must be at least a byte, and less than 2\^63, got '"):
        engines.parse_size(text, "--max-body")


@given(st.integers(1, 1 << 20), st.sampled_from(["KiB", "kib", "Ki", "K", "kB", "MiB", "M", "GB", ""]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert engines.parse_size(f"{number}{unit}") == number * engines.parse_size(f"1{unit}")


def test_the_context_is_what_the_model_and_the_kv_cache_allow(tiny: Path) -> None:
    kv = describe.describe(open_model(tiny)).kv_per_token
    options = engines.EngineOptions(model=str(tiny), ctx_size=0, threads=3, kv_bytes=kv * 50, offline=True, suffix_first=True)
    made = engines.plan(options, Notes())
    assert (made.kv_tokens, made.context, made.threads, made.suffix_first) == (48, 48, 3, True)
    assert made.full_context > 48
    with pytest.raises(ModelError, match="holds 48 tokens, fewer than the context of 64; raise --kv-cache or use --ctx-size 48"):
        engines.plan(engines.EngineOptions(model=str(tiny), ctx_size=64, threads=0, kv_bytes=kv * 50, offline=True), Notes())
    with pytest.raises(ModelError, match="holds 0 tokens"):
        engines.plan(engines.EngineOptions(model=str(tiny), ctx_size=0, threads=0, kv_bytes=kv, offline=True), Notes())
    with pytest.raises(ModelError, match="--ctx-size must be at most"):
        engines.plan(engines.EngineOptions(model=str(tiny), ctx_size=10**6, threads=0, kv_bytes=1 << 30, offline=True), Notes())


def test_a_forced_instruction_set_is_told_and_an_impossible_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_ISA", "portable")
    assert engines.chosen_isa() == "portable"
    monkeypatch.setenv("QUINTET_ISA", "sse9")
    with pytest.raises(console.OptionError, match="QUINTET_ISA must be one of .*portable here, got 'sse9'"):
        engines.chosen_isa()


def test_a_model_that_does_not_load_gives_the_loaders_reason() -> None:
    def broken(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        progress(0.5)
        raise ModelError("tiny.gguf: bad.")

    def buggy(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        raise RuntimeError("a bug")

    async def wait(loader: Loader[Tokenizer]) -> None:
        backend = Engine(loader, EngineConfig())
        try:
            await loading.ready(backend, "tiny")
        finally:
            await backend.close()

    with pytest.raises(ModelError, match=r"tiny\.gguf: bad\."):
        asyncio.run(wait(broken))
    with pytest.raises(EngineFailed, match=r"tiny could not be loaded: the engine broke \(RuntimeError\)"):
        asyncio.run(wait(buggy))


# --- doctor


def test_doctor_passes_here_and_says_what_it_found(tmp_path: Path) -> None:
    with sockets.listen("127.0.0.1", 0) as taken:
        done = quintet("doctor", "--port", str(taken.getsockname()[1]), QUINTET_CACHE=str(tmp_path))
    levels = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}
    assert done.returncode == 0
    assert levels.keys() == {"python", "packages", "cpu", "threads", "memory", "cache", "packs", "model", "port"}
    assert (levels["python"], levels["model"], levels["port"]) == ("ok", "warn", "warn")


def test_doctor_fails_on_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / bundled.FILE).write_bytes(b"GGUF")
    done = quintet("doctor", QUINTET_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "is damaged; `quintet pull smollm2` replaces it" in done.stdout


def test_doctor_fails_where_the_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path))
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(os, "mkdir", Mock(side_effect=refused))
    assert doctor.cache() == doctor.Finding("fail", "cache", unusable_cache(tmp_path, refused))


def test_doctor_fails_where_the_cache_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/beneath"):
        monkeypatch.setenv("QUINTET_CACHE", str(tmp_path / place))
        failed = NotADirectoryError(20, "Not a directory")
        assert doctor.cache() == doctor.Finding("fail", "cache", unusable_cache(tmp_path / place, failed))


def test_doctor_names_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["numpy>=1.26", "no-such-package>=1", 'pytest>=8; extra == "dev"'])
    finding = doctor.packages()
    assert (finding.level, finding.text.split(";")[0]) == ("fail", "missing: no-such-package")
