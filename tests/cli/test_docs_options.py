"""docs/cli.md tells every option of every command, under the command's heading, with the default of its help; and no other option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quintet.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = re.split(r"^## ", (DOCS / "cli.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
SCALE = (DOCS / "scale.md").read_text(encoding="utf-8")


def commands(group: click.Group = app, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from commands(one, f"{before}{name} ")
        else:
            yield f"{before}{name}", one


COMMANDS = dict(commands())
SERVES = {option for param in COMMANDS["serve"].params for option in param.opts}


def options(name: str) -> list[click.Option]:
    """Those that are told there: a command that takes all of serve's has the others."""
    found = [param for param in COMMANDS[name].params if isinstance(param, click.Option) and not param.hidden]
    return [one for one in found if name not in ("cluster", "config") or not SERVES & set(one.opts)]


def section(name: str) -> str:
    """What stands below the command's heading, or its group's; of cluster, the page that its section leads to."""
    words = {name, name.split()[0]}
    (found,) = [part for part in SECTIONS if words & set(re.findall(r"`quintet ([a-z]+(?: [a-z]+)?)", part.partition("\n")[0]))]
    return found + SCALE if name == "cluster" else found


def row(option: click.Option, text: str) -> str:
    """The line of a table that tells it, if one does."""
    name = max(option.opts, key=len)
    return next(iter(re.findall(rf"^\| [^|]*(?:\\\|[^|]*)*`{name}[ `].*$", text, re.MULTILINE)), "")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_of_a_command_is_told_there(name: str) -> None:
    text = section(name)
    told = {long for one in options(name) for long in one.opts if long.startswith("--")}
    assert {long for long in told if not re.search(rf"`{long}[ `]", text)} <= {"--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_default_is_that_of_the_help(name: str) -> None:
    text = section(name)
    for one in options(name):
        line, default = row(one, text), one.default
        if line and "as for `serve`" not in line and one.show_default and not isinstance(default, bool):
            assert re.search(rf"(?<![\w.]){re.escape(f'{default}')}(?![\w.])", line), f"{one.opts[0]}: {default}"
            assert default != "", f"the help of {one.opts[0]} tells an empty default"


@pytest.mark.parametrize("heading", range(len(SECTIONS)), ids=lambda at: SECTIONS[at].partition("\n")[0].replace("`", ""))
def test_a_table_names_no_option_that_is_not_there(heading: int) -> None:
    text = SECTIONS[heading]
    of = [one for name, one in COMMANDS.items() if section(name).startswith(text)]
    known = {option for one in of for param in one.params for option in (*param.opts, *param.secondary_opts)}
    cells = re.findall(r"^\| ((?:[^|]|\\\|)*?) \|", text, re.MULTILINE)
    told = {option for cell in cells for option in re.findall(r"`(--?[a-z][a-z-]*)", cell)}
    assert told <= known
    assert told or not re.search(r"^\| option \|", text, re.MULTILINE)
