"""The man page is the commands' help, and a man page as mandoc and man-db read them."""

from __future__ import annotations

import subprocess

from tests.packaging.tools import tool

from scripts import man


def test_it_is_what_the_commands_say_now() -> None:
    assert man.PAGE.read_text(encoding="utf-8") == man.page(), "run make man"


def test_mandoc_finds_nothing_wrong() -> None:
    done = subprocess.run([tool("mandoc"), "-Tlint", "-Wwarning", str(man.PAGE)], capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []  # a date would change with nothing else


def test_man_shows_each_command_with_its_options() -> None:
    shown = subprocess.run([tool("mandoc"), "-Tascii", "-O", "width=200", str(man.PAGE)], capture_output=True, text=True, check=True)
    plain = subprocess.run(["sed", "s/.\x08//g"], input=shown.stdout, capture_output=True, text=True, check=True).stdout
    assert "quintet serve [OPTIONS] [MODEL]..." in plain
    assert "--max-connections INTEGER RANGE" in plain
    assert "quintet keys add" in plain
    assert "-h, --help" not in plain


def test_what_roff_would_take_for_its_own_is_escaped() -> None:
    assert man.escaped(".gguf\n'x' a-b \\n") == "\\&.gguf\n\\(aqx\\(aq a\\-b \\en"
