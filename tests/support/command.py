"""A command of ``quintet`` in this process: a second less than one of its own."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

import click

from quintet.cli.app import app
from quintet.errors import QuintetError


@dataclass(frozen=True, slots=True)
class Done:
    """What a command that ended left."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: str) -> Done:
    """Run it as ``quintet.cli.main`` does."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = int(app.main([*words], prog_name="quintet", standalone_mode=False) or 0)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except QuintetError as error:
            err.write(f"error: {error}\n")
            code = 1
    return Done(code, out.getvalue(), err.getvalue())
