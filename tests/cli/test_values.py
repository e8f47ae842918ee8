"""Values of options: numbers are finite and within bounds, and what is wrong with a file is told by what reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from quintet.cli.app import app
from quintet.cli.console import OptionError

Command = Callable[..., tuple[int, str, str]]

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "toy", "--timeout"],
        ["serve", "toy", "--drain-timeout"],
        ["serve", "toy", "--watchdog"],
        ["serve", "toy", "--gpu-memory-utilization"],
        ["config", "--timeout"],
        ["top", URL, "--interval"],
        ["bench", URL, "--timeout"],
        ["bench", URL, "--rate"],
        ["check", URL, "--as", "openai", "--timeout"],
        ["eval", "model", "task", "--limit"],
    ],
)
def test_a_number_is_finite(words: list[str], command: Command) -> None:
    for value in ("nan", "inf", "-inf", "1e999"):
        code, out, err = command(*words, value)
        assert (code, out) == (2, "")
        assert err.endswith(f"Invalid value for '{words[-1]}': {value} is not a finite number.\n")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_of_a_file_or_a_variable_is_finite_too(
    value: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(f"timeout = {value}\n")
    assert command("config", "--config", str(file)) == (1, "", f"error: {file}: timeout: {value} is not a finite number.\n")
    monkeypatch.setenv("QUINTET_TIMEOUT", value)
    assert command("config") == (1, "", f"error: QUINTET_TIMEOUT: {value} is not a finite number.\n")


@pytest.mark.parametrize(
    ("option", "value", "taken"),
    [
        ("--watchdog", "0", True),
        ("--watchdog", "1e-9", False),
        ("--watchdog", "0.9", False),
        ("--watchdog", "1", True),
        ("--watchdog", "1e6", True),
        ("--watchdog", "1e8", False),
        ("--drain-timeout", "0", True),
        ("--drain-timeout", "1e300", False),
        ("--timeout", "1e-9", True),
        ("--timeout", "-1", False),
    ],
)
def test_seconds_are_neither_too_few_nor_more_than_can_be_waited_for(option: str, value: str, taken: bool, command: Command) -> None:
    assert command("config", option, value)[0] == (0 if taken else 2)


def test_a_range_that_zero_turns_off_is_told_with_the_zero(command: Command) -> None:
    rule = "0, or 1<=x<=1000000"
    assert command("config", "--watchdog", "0.5")[2].endswith(f"Invalid value for '--watchdog': 0.5 is not in the range {rule}.\n")
    assert f"0 = never. [default: 30; {rule}]" in " ".join(command("serve", "--help")[1].split())


@pytest.mark.parametrize("option", ["--max-choices", "--max-waiting"])
def test_choices_are_no_more_than_an_engine_can_be_told_of(option: str, command: Command) -> None:
    assert command("config", option, "1000000")[0] == 0
    code, out, err = command("serve", "--toy", "--port", "0", option, str(2**64))
    assert (code, out) == (2, "") and err.endswith(f"Invalid value for '{option}': {2**64} is not in the range 1<=x<=1000000.\n")


KEYED = {
    "QUINTET_CHECK_KEY": (["check", URL, "--as", "openai"],),
    "QUINTET_CLIENT_KEY": (["top", URL], ["bench", URL, "--model", "m"], ["eval", "model", "task", "--url", URL]),
}


@pytest.mark.parametrize(
    "key", ["sk-secret\n", "sk-secret\r", "sk-secret\r\n\r\nGET / HTTP/1.1", "sk secret", "sk-s\xe9cret", "sk-secret\x7f"]
)
@pytest.mark.parametrize(("variable", "words"), [(variable, words) for variable, all_ in KEYED.items() for words in all_])
def test_a_key_that_no_header_can_carry_is_told_and_not_shown(
    variable: str, words: list[str], key: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = (1, "", f"error: --key or {variable} must be printable ASCII without spaces, and not empty.\n")
    assert command(*words, "--key", key) == told
    monkeypatch.setenv(variable, key)
    assert command(*words) == told


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from commands(one)


PATHS = [(command, param) for command in commands(app) for param in command.params if isinstance(param.type, click.Path)]


def test_no_file_that_cannot_be_read_is_a_mistyped_option() -> None:
    """It is told in one line with exit code 1, by what reads it."""
    assert len(PATHS) > 20
    assert not any(path.readable or path.exists for _, param in PATHS if isinstance(path := param.type, click.Path))


def test_no_path_may_be_empty_which_would_be_the_folder_where_the_command_runs() -> None:
    for command, param in PATHS:
        with pytest.raises(OptionError) as error:
            param.process_value(click.Context(command), "")
        assert str(error.value) in {f"{name} must not be empty." for name in (*param.opts, str(param.metavar))}


def test_a_path_with_nul_which_only_a_file_can_give_is_told(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text('ledger = "a\\u0000b"\n')
    assert command("serve", "--config", str(file)) == (1, "", f"error: {file}: --ledger must be a path, without NUL, got 'a\\x00b'.\n")


def test_an_empty_path_is_told_by_its_option_and_its_file_and_an_empty_variable_is_none(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "--ledger must not be empty.\n"
    file = tmp_path / "quintet.toml"
    file.write_text("ledger = ''\n")
    for name in ("serve", "config", "usage"):
        assert command(name, "--ledger", "") == (1, "", f"error: {told}")
        assert command(name, "--config", str(file)) == (1, "", f"error: {file}: {told}")
    assert command("batch", "run", "", "-o", "x") == (1, "", "error: IN.jsonl must not be empty.\n")
    monkeypatch.setenv("QUINTET_LEDGER", "")
    assert command("config")[0] == 0
