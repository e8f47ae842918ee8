"""What the docs say to type: each ``quintet ...`` names a command that there is, options that it has, and models as they are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from quintet.cli.app import app
from quintet.models.files import HUB

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ANY_PATH = ("path/", "/", "./", "~/", "tasks/")
"""How a path of the reader's begins here; what else has one slash is a repository of the hub."""


def typed(text: str) -> Iterator[str]:
    """Commands in fenced blocks, continued lines joined, and in inline code."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(quintet .*)$", block.replace("\\\n", " "), re.MULTILINE)
    yield from re.findall(r"`(quintet [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def parsed(words: list[str]) -> list[str]:
    """The arguments of a command, after its options were read.

    Raises:
        click.UsageError: no such command or option.
    """
    command: click.Command = app
    context = click.Context(app, info_name="quintet")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, command_, words = command.resolve_command(context, words)
        assert command_ is not None
        command, context = command_, click.Context(command_, info_name=name, parent=context)
    values, rest, _ = command.make_parser(context).parse_args(words)
    given = [value for parameter in command.params if isinstance(parameter, click.Argument) for value in [values.get(parameter.name or "")]]
    return [word for value in [*given, rest] for word in (value if isinstance(value, list | tuple) else [value]) if isinstance(word, str)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_says_to_type_is_understood(page: Path) -> None:
    for line in typed(page.read_text(encoding="utf-8")):
        words = shlex.split(re.split(r"\s[|<>&]\s?", line)[0].replace("...", ""), comments=True)[1:]
        if words and words[0].isupper():  # a word for any command
            continue
        try:
            found = parsed(words)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")
        for word in found:
            reference = word.partition("=")[2] or word
            hub = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.]+)?", reference) and not reference.startswith(ANY_PATH)
            assert not hub or reference.endswith(".gguf"), f"{line}: a repository of the hub is {HUB}{reference}"


def test_what_the_page_of_settings_shows_is_what_comes_out_of_its_example(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = re.search(r"^```\n\$ (\w+)=(\S+) quintet (.*)\n((?:.*\n)*?)```$", page, re.MULTILINE)
    assert found is not None
    name, value, words, shown = found.groups()
    monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT / "docs")
    code, out, err = command(*words.split())
    assert (code, err) == (0, "")
    lines = [line for line in shown.splitlines() if line != "..."]
    assert len(lines) > 3 and [line for line in out.splitlines() if line in lines] == lines


def test_wrong_words_are_found() -> None:
    for line in ("quintet serves", "quintet serve --no-such-option", "quintet keys adds x"):
        with pytest.raises(click.UsageError):
            parsed(line.split()[1:])
    assert list(typed("```sh\nA=1 quintet serve x \\\n  --port 1\n```\nand `quintet top`")) == [
        "quintet serve x    --port 1",
        "quintet top",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_colon_at_a_paragraphs_end_announces_comes_next(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for said, after in re.findall(r"([^\n]*):\n\n(\S+)", text):
        assert after.startswith(("```", "|", "-", "*", ">", "1.", "[", "![", "<", "$")), f"{page.name}: {said}"
