"""Write packaging/man/quintet.1 from the commands and their help, in man(7)'s macros.

Usage: python -m scripts.man. A test holds the page to the commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from quintet import __version__
from quintet.cli.app import app

PAGE = Path(__file__).parents[1] / "packaging/man/quintet.1"
FILES = {
    "$QUINTET_CACHE, else ~/.cache/quintet/models": "The bundled model, and packed weights of all models.",
    "$HF_HOME, else ~/.cache/huggingface": "Models from the hub.",
}
EXITS = {"0": "It did what was asked.", "1": "It could not; one line on stderr, error: ..., says why.", "2": "A mistyped option."}


def escaped(text: str) -> str:
    """Text as roff reads it: no line is a request, and no backslash, hyphen or quotation mark is anything else."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", "\\\\&.", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", cleandoc(text))):
        if number:
            yield ".PP"
        yield escaped(" ".join(paragraph.replace("\b", "").split()))


def tagged(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {escaped(term)}"
    yield from paragraphs(text)


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Context, click.Command]]:
    """All that do something, with those of groups; hidden ones are left out."""
    if not isinstance(command, click.Group):
        yield context, command
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            yield from commands(found, click.Context(found, info_name=name, parent=context))


def of_command(context: click.Context, command: click.Command) -> Iterator[str]:
    words = " ".join(command.collect_usage_pieces(context))
    yield f".SS {escaped(f'{context.command_path} {words}')}"
    yield from paragraphs(command.help or "")
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts:
            record = option.get_help_record(context)
            yield from tagged(*record) if record else ()


def page() -> str:
    """The whole page."""
    root = click.Context(app, info_name="quintet")
    lines = [f'.TH QUINTET 1 "" "quintet {__version__}" "User Commands"', ".SH NAME"]
    lines += [
        "quintet \\- serve text completions in five providers\\(aq dialects",
        ".SH SYNOPSIS",
        ".B quintet",
        "COMMAND [OPTIONS] [ARGUMENTS]",
    ]
    lines += [".SH DESCRIPTION", *paragraphs(app.help or ""), ".SH COMMANDS"]
    for context, command in commands(app, root):
        lines += of_command(context, command)
    for title, table in (("EXIT STATUS", EXITS), ("FILES", FILES)):
        lines += [f".SH {title}", *(line for term, text in table.items() for line in tagged(term, text))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
