"""Settings: which place counts, what a file may hold, and what ``quintet config`` prints."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

from quintet import cli
from quintet.cli import configuration, console
from quintet.cli.app import app

ROOT = Path(__file__).parents[2]
KNOWN = configuration.settings(app.commands["serve"])

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in this process: (exit code, stdout, stderr)."""

    def call(*words: str, **variables: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["quintet", *words])
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                cli.main()
        return (int(end.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture
def printed(command: Command) -> Callable[..., dict[str, Any]]:
    """What ``quintet config --json`` prints, as (value, from) by setting."""

    def call(*words: str, **variables: str) -> dict[str, Any]:
        code, out, err = command("config", "--json", *words, **variables)
        assert (code, err) == (0, "")
        return {key: (one["value"], one["from"]) for key, one in json.loads(out).items()}

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def call(text: str, mode: int = 0o600) -> str:
        file = tmp_path / "quintet.toml"
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
        return str(file)

    return call


Write = Callable[..., str]
Printed = Callable[..., dict[str, Any]]


# --- which place counts


def test_an_option_beats_its_variable_which_beats_the_file_which_beats_the_default(printed: Printed, write: Write) -> None:
    file = write('port = 1\nthreads = 1\nkv-cache = "1MiB"\nstrict = true\n')
    found = printed("--config", file, "--port", "3", QUINTET_PORT="2", QUINTET_THREADS="2", QUINTET_STRICT="no")
    assert found["port"] == (3, "--port")
    assert found["threads"] == (2, "QUINTET_THREADS")
    assert found["strict"] == (False, "QUINTET_STRICT")
    assert found["kv-cache"] == ("1MiB", file)
    assert found["host"] == ("127.0.0.1", "default")


def test_the_file_itself_can_be_named_by_a_variable(printed: Printed, write: Write) -> None:
    file = write("port = 1\n")
    assert printed(QUINTET_CONFIG=file)["port"] == (1, file)


def test_the_list_of_one_place_replaces_that_of_another(printed: Printed, write: Write) -> None:
    file = write('served-model-name = ["a", "b c"]\n')
    assert printed("--config", file)["served-model-name"] == (["a", "b c"], file)
    assert printed("--config", file, QUINTET_SERVED_MODEL_NAME="x y")["served-model-name"] == (["x", "y"], "QUINTET_SERVED_MODEL_NAME")
    assert printed("--config", file, "-a", "z", QUINTET_SERVED_MODEL_NAME="x")["served-model-name"] == (["z"], "--served-model-name")


def test_an_empty_variable_counts_as_none(printed: Printed) -> None:
    assert printed(QUINTET_PORT="")["port"] == (8000, "default")


def test_every_option_of_serve_is_a_setting_with_its_variable() -> None:
    options = {max(param.opts, key=len) for param in app.commands["serve"].params if isinstance(param, click.Option)}
    assert {f"--{key}" for key, param in KNOWN.items() if isinstance(param, click.Option)} == options - {"--config"}
    for key, param in KNOWN.items():
        assert param.envvar == "QUINTET_" + key.upper().replace("-", "_")


def test_run_takes_the_settings_that_it_shares_and_no_others(command: Command, write: Write) -> None:
    file = write("port = 1\nthreads = 9999\n")
    code, _, err = command("run", "none.gguf", "The sky is", "--config", file)
    assert (code, err) == (1, f"error: {file}: threads: 9999 is not in the range 0<=x<=1024.\n")
    words = ["run", "none.gguf", "The sky is"]
    assert command(*words, QUINTET_THREADS="x")[2] == "error: QUINTET_THREADS: 'x' is not an integer.\n"
    assert command(*words, QUINTET_OFFLINE="maybe")[2] == "error: QUINTET_OFFLINE: 'maybe' is neither true nor false.\n"
    assert command(*words, QUINTET_TEMPERATURE="x")[2].startswith("error: cannot use none.gguf")


# --- paths and keys


def test_a_path_in_the_file_is_relative_to_the_file(printed: Printed, write: Write, tmp_path: Path) -> None:
    assert printed("--config", write('api-key-file = "keys"\n'))["api-key-file"][0] == str(tmp_path / "keys")
    assert printed("--config", write('api-key-file = "/keys"'))["api-key-file"][0] == "/keys"
    assert printed("--api-key-file", "keys")["api-key-file"] == ("keys", "--api-key-file")


@pytest.mark.parametrize(
    ("text", "based"),
    [
        ("smollm2", "smollm2"),
        ("hf:user/repo:one.gguf", "hf:user/repo:one.gguf"),
        ("one.gguf", "/etc/one.gguf"),
        ("/one.gguf", "/one.gguf"),
        ("coder=one.gguf", "coder=/etc/one.gguf"),
        ("coder=hf:user/repo:one.gguf", "coder=hf:user/repo:one.gguf"),
        ("org/coder=one.gguf", "org/coder=/etc/one.gguf"),
        ("./models/a=b.gguf", "/etc/models/a=b.gguf"),
    ],
)
def test_a_models_file_is_relative_to_the_file_too_with_a_name_before_it_or_not(text: str, based: str) -> None:
    assert configuration._based(Path("/etc"), KNOWN["models"], [text]) == [based]


@pytest.mark.parametrize(("text", "based"), [("m.gguf", "{}/m.gguf"), ("/m.gguf", "/m.gguf"), ("none", "none"), ("", "")])
def test_an_image_encoders_file_is_relative_to_the_file_unless_there_is_none(
    text: str, based: str, printed: Printed, write: Write, tmp_path: Path
) -> None:
    assert printed("--config", write(f'mmproj = "{text}"\n'))["mmproj"][0] == based.format(tmp_path)


def test_the_page_lists_every_setting_that_holds_paths_relative_to_the_file() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z-]+)`", page.partition("**A path in the file is relative")[2].partition("; `~`")[0]))
    values = {key: ["name=of:a/b.gguf"] if configuration._several(param) else "a/b.gguf" for key, param in KNOWN.items()}
    assert told == {key for key, value in values.items() if configuration._based(Path("/etc"), KNOWN[key], value) != value}


def test_the_models_are_a_setting_too(printed: Printed, write: Write, tmp_path: Path) -> None:
    file = write('models = ["smollm2", "coder=one.gguf"]\nalias = ["gpt-3.5-turbo-instruct=coder"]\n')
    found = printed("--config", file)
    assert found["models"] == (["smollm2", f"coder={tmp_path}/one.gguf"], file)
    assert found["alias"] == (["gpt-3.5-turbo-instruct=coder"], file)
    assert printed("one.gguf", "--config", file)["models"] == (["one.gguf"], "MODELS")
    assert printed("--config", file, QUINTET_MODELS="a b=one.gguf")["models"] == (["a", "b=one.gguf"], "QUINTET_MODELS")


@pytest.mark.fault("G02")
def test_keys_are_never_printed(command: Command, write: Write) -> None:
    for words, variables in (
        (["--admin-key", "hush"], {}),
        (["--api-key", "hush"], {}),
        ([], {"QUINTET_API_KEY": "hush hush"}),
        (["--config", write('api-key = ["hush"]')], {}),
    ):
        for form in ([], ["--json"]):
            code, out, err = command("config", *words, *form, **variables)
            assert (code, err) == (0, "")
            assert '"***"' in out
            assert "hush" not in out


def test_who_a_url_is_asked_as_is_never_printed(printed: Printed) -> None:
    assert printed("--otlp-endpoint", "http://user:hu@sh@host:4318/v")["otlp-endpoint"][0] == "http://***@host:4318/v"
    assert printed("--otlp-endpoint", "http://host/a@b")["otlp-endpoint"][0] == "http://host/a@b"


def test_whatever_is_called_a_key_is_taken_for_one() -> None:
    assert {key for key, param in KNOWN.items() if configuration._secret(param)} == {"api-key", "admin-key"}
    assert not configuration._secret(click.Option(["--no-api-key"], is_flag=True))
    assert not configuration._secret(click.Option(["--max-per-key"], type=int))


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_file_that_holds_a_key_is_nobody_elses(mode: int, command: Command, write: Write) -> None:
    file = write('api-key = ["hush"]', mode)
    said = f"error: {file} holds a key and may be read by everybody or written by others; chmod 600 it.\n"
    assert command("config", "--config", file) == (1, "", said)
    assert command("config", "--config", write('api-key-file = "keys"', mode))[0] == 0


# --- what is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", ": unknown key 'prot'; did you mean 'port'?"),
        ("kv_cache = '1MiB'", ": unknown key 'kv_cache'; did you mean 'kv-cache'?"),
        ("colour = 1", ": unknown key 'colour'; the keys are the options of quintet serve, without dashes, in no table."),
        ("config = 'x'", ": unknown key 'config'; the keys are the options of quintet serve, without dashes, in no table."),
        ("[serve]\nport = 1", ": unknown table 'serve'; the keys are the options of quintet serve, without dashes, in no table."),
        ("port = '9000'", ": port must be an integer, got '9000'."),
        ("port = true", ": port must be an integer, got true."),
        ("port = 1.5", ": port must be an integer, got 1.5."),
        ("[port]\na = 1", ": port must be an integer, got {'a': 1}."),
        ("port = 70000", ": port: 70000 is not in the range 0<=x<=65535."),
        ("timeout = '1'", ": timeout must be a number, got '1'."),
        ("timeout = -1", ": timeout: -1.0 is not in the range 0<=x<=1000000."),
        ("strict = 1", ": strict must be true or false, got 1."),
        ("kv-cache = 5", ": kv-cache must be a string, got 5."),
        ("speculation = 'on'", ": speculation: 'on' is not one of 'auto', 'off'."),
        ("api-key = 'x'", ": api-key must be a list of strings, got ***."),
        ("admin-key = 4711", ": admin-key must be a string, got ***."),
        ("served-model-name = [1]", ": served-model-name must be a list of strings, got [1]."),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_place_and_value(text: str, said: str, command: Command, write: Write) -> None:
    file = write(text)
    for name in ("config", "serve"):
        assert command(name, "--config", file) == (1, "", f"error: {file}{said}\n")


def test_what_is_no_toml_is_told_with_its_line(command: Command, write: Write) -> None:
    code, out, err = command("config", "--config", write("port = 1\nhost = \n"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "quintet.toml is not TOML: " in err
    assert "line 2" in err


def test_a_file_may_begin_with_the_mark_that_editors_on_windows_write(printed: Printed, write: Write) -> None:
    assert printed("--config", write("\ufeffport = 9000\n"))["port"][0] == 9000


def test_a_file_that_cannot_be_read_is_told(command: Command, tmp_path: Path) -> None:
    assert command("config", "--config", str(tmp_path / "no"))[2] == f"error: --config {tmp_path / 'no'}: No such file or directory.\n"
    (latin := tmp_path / "latin").write_bytes(b"host = '\xe4'")
    assert command("config", "--config", str(latin))[2].startswith(f"error: --config {latin} must be UTF-8; the byte")


def test_what_an_option_refuses_later_tells_the_variable_or_the_file_that_it_is_from(command: Command, write: Write) -> None:
    said = "--kv-cache must be a number above 0 with a unit such as MiB or GB, got 'lots'.\n"
    file = write('kv-cache = "lots"')
    assert command("serve", QUINTET_KV_CACHE="lots") == (1, "", f"error: QUINTET_KV_CACHE: {said}")
    assert command("serve", "--config", file) == (1, "", f"error: {file}: {said}")
    assert command("serve", "--kv-cache", "lots") == (1, "", f"error: {said}")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"QUINTET_KV_CACHE": "lots"}, "--kv-cache must be a number above 0"),
        ({"QUINTET_LEDGER_KEEP": "9d"}, "--ledger-keep means nothing without --ledger."),
        ({"QUINTET_LOG_LEVEL": "loud"}, "--log-level must be one of error, warning, info, debug, got 'loud'."),
        ({"QUINTET_DIALECT": "x"}, "--dialect must be one of openai, "),
        ({"QUINTET_TOY": "1", "QUINTET_MODELS": "smollm2"}, "--toy serves the toy model alone"),
        ({"QUINTET_BATCH_KEEP": "x"}, "--batch-keep must be a whole number"),
        ({"QUINTET_ADMIN_LISTEN": "x"}, "--admin-listen must be HOST:PORT"),
        ({"QUINTET_PORT": "9", "QUINTET_ADMIN_LISTEN": "127.0.0.1:9"}, "--admin-listen must be another place than --host and --port"),
        ({"QUINTET_ADMIN_KEY": "a b"}, "QUINTET_ADMIN_KEY: --admin-key must be printable"),
        ({"QUINTET_HOST": "0.0.0.0"}, "host '0.0.0.0' is reachable from other machines and no API key is set"),
        (
            {"QUINTET_PORT": "0", "QUINTET_ADMIN_LISTEN": "0.0.0.0:0"},
            "host '0.0.0.0' is reachable from other machines and no API key is set",
        ),
        ({"QUINTET_ALIAS": "x"}, "--alias must be NAME=MODEL"),
        ({"QUINTET_MODERATION": "x"}, "--moderation must be NAME=FORMAT"),
        ({"QUINTET_ALLOW_IMAGE_URLS": "a/b"}, "--allow-image-urls must be a host"),
        ({"QUINTET_ALLOW_IMAGE_URLS": "a:65535 a:99999"}, "or one with a port from 1 to 65535 such as example.org:8080, got 'a:99999'."),
        ({"QUINTET_ALLOW_IMAGE_URLS": "*:0"}, "got '*:0'."),
        ({"QUINTET_DRAFT": "x", "QUINTET_SPECULATION": "off"}, "--draft needs --speculation auto."),
        ({"QUINTET_LORA": "x"}, "--lora must be NAME=MODEL:PATH"),
        ({"QUINTET_TRUSTED_PROXY": "x"}, "--trusted-proxy must be a network"),
        ({"QUINTET_OTLP_ENDPOINT": "x"}, "--otlp-endpoint must be a collector's base URL"),
    ],
)
def test_config_refuses_what_serve_refuses_of_the_settings_themselves(variables: dict[str, str], said: str, command: Command) -> None:
    refused = command("config", **variables)
    assert (refused[:2], said in refused[2]) == ((1, ""), True), refused
    assert refused == command("serve", "--lazy", **variables)


def test_config_reads_no_file_that_the_settings_name(printed: Printed, tmp_path: Path) -> None:
    missing = str(tmp_path / "no")
    words = "none.gguf", "--api-key-file", missing, "--keys", missing, "--prefix-cache-dir", missing, "--moderation", "none=no"
    assert printed(*words)["keys"] == (missing, "--keys")
    assert not (tmp_path / "no").exists()


def test_without_a_home_directory_batches_need_a_folder_that_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(_: int) -> NoReturn:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUINTET_CACHE", str(tmp_path))
    assert command("config", "--toy") == (1, "", "error: cannot use ~/.local/state: there is no such home directory.\n")
    for words in (("--batch-dir", str(tmp_path)), ("--no-batches",)):
        assert command("config", "--toy", *words)[0] == 0


def test_a_mistyped_option_stays_what_it_was(command: Command) -> None:
    code, _, err = command("serve", "--port", "x")
    assert (code, err.splitlines()[-1]) == (2, "Error: Invalid value for '--port': 'x' is not an integer.")


# --- variables that are no settings


def test_a_variable_written_much_like_a_settings_is_a_warning(command: Command) -> None:
    code, _, err = command("config", QUINTET_PROT="1", QUINTET_KVCACHE="1", QUINTET_SAMPLING_CASES="1")
    warnings = [
        "warning: QUINTET_KVCACHE is not a setting; QUINTET_KV_CACHE is.",
        "warning: QUINTET_PROT is not a setting; QUINTET_PORT is.",
    ]
    assert (code, err.splitlines()) == (0, warnings)


def test_the_projects_own_variables_are_no_settings_and_not_like_any() -> None:
    files = [
        path for folder in ("src", "csrc", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc"
    ]
    texts = [
        path.read_text(encoding="utf-8")
        for path in files
        if path.is_file() and path != Path(__file__) and path.suffix in (".py", ".sh", ".h", ".cpp")
    ]
    used = {name for text in [*texts, (ROOT / "Makefile").read_text()] for name in re.findall(r"\bQUINTET_[A-Z0-9_]*[A-Z0-9]\b", text)}
    variables = {str(param.envvar) for param in KNOWN.values()} | {"QUINTET_CONFIG"}
    assert used >= {"QUINTET_ISA", "QUINTET_TEST_MODEL", "QUINTET_API_KEY"}
    assert list(configuration.strangers(used, variables)) == []


# --- the page and its example


def test_the_example_of_the_page_is_a_file_that_serves(printed: Printed) -> None:
    file = ROOT / "docs" / "quintet.toml"
    found = printed("--config", str(file))
    given = {key: value for key, (value, place) in found.items() if place == str(file)}
    assert (given["port"], given["api-key-file"]) == (9000, str(ROOT / "docs" / "keys.txt"))
    assert len(given) == len(re.findall(r"^[a-z-]+ = ", file.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_table_of_config_has_a_line_for_each_setting(command: Command) -> None:
    _, out, _ = command("config", "--port", "7")
    heading, *lines = out.splitlines()
    assert heading.split() == ["setting", "value", "from"]
    assert [line.split()[0] for line in lines] == list(KNOWN)
    assert ["port", "7", "--port"] in [line.split() for line in lines]


def test_a_value_that_no_option_has_a_rule_for_is_a_string() -> None:
    rule, right = configuration._rule(KNOWN["idle-unload"])
    assert (rule, right("10m"), right(10)) == ("a string", True, False)


def test_reading_gives_values_by_the_names_that_the_commands_know(write: Write) -> None:
    ctx = click.Context(app.commands["serve"])
    assert configuration.read(Path(write("ctx-size = 5")), KNOWN, ctx) == {"ctx_size": 5}
    with pytest.raises(console.OptionError, match="unknown key"):
        configuration.read(Path(write("ctx_size = 5")), KNOWN, ctx)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--uds-mode", "600"), "--uds-mode means nothing without --uds."),
        (("--ledger-full", "refuse"), "--ledger-full means nothing without --ledger."),
        (("--ledger-keep", "90d"), "--ledger-keep means nothing without --ledger."),
        (("--prefix-cache-size", "1GiB"), "--prefix-cache-size means nothing without --prefix-cache-dir."),
        (("--no-batches", "--batch-dir", "x"), "--batch-dir means nothing with --no-batches."),
        (("--no-batches", "--batch-keep", "1d"), "--batch-keep means nothing with --no-batches."),
        (("--no-batches", "--batch-max-file", "1MB"), "--batch-max-file means nothing with --no-batches."),
        (("--no-batches", "--batch-max-lines", "9"), "--batch-max-lines means nothing with --no-batches."),
        (("--no-batches", "--batch-storage", "1GB"), "--batch-storage means nothing with --no-batches."),
        (("--no-pack-cache", "--pack-cache-size", "1GB"), "--pack-cache-size means nothing with --no-pack-cache."),
    ],
)
@pytest.mark.parametrize("of", ["serve", "cluster"])
def test_an_option_that_means_nothing_beside_the_others_is_refused(of: str, words: tuple[str, ...], said: str, command: Command) -> None:
    assert command(of, *words) == (1, "", f"error: {said}\n")


def test_so_it_is_where_there_is_no_server(command: Command) -> None:
    for of in (("run", "toy", "x"), ("batch", "run", "none", "-o", "out")):
        assert command(*of, "--no-pack-cache", "--pack-cache-size", "1GB")[2].endswith("size means nothing with --no-pack-cache.\n")


def test_a_variable_that_means_nothing_is_named(command: Command) -> None:
    said = "QUINTET_LEDGER_KEEP: --ledger-keep means nothing without --ledger."
    assert command("serve", QUINTET_LEDGER_KEEP="9d") == (1, "", f"error: {said}\n")
