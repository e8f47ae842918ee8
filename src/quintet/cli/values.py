"""Kinds of values that options have."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from quintet.cli.console import OptionError
from quintet.errors import QuintetError, shorten


class _AnyPath(click.Path):
    """Of something that is there, or will be; no empty one, which would be the folder where the command runs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if param is not None and (not os.fspath(value) or "\0" in os.fspath(value)):
            name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name
            raise OptionError(f"{name} must not be empty." if not value else f"{name} must be a path, without NUL, got {shorten(value)}.")
        return super().convert(value, param, ctx)


PATH = _AnyPath(path_type=Path, readable=False)
"""What is wrong with a file is told by what reads it: in one line, as a person can mend it, and not as a mistyped option."""

CHOICES = click.IntRange(1, 1_000_000)
"""So many of a request, or that wait, at most: more than any machine computes, and few enough to be listed one by one."""

MOST_SECONDS = 1_000_000
"""More than eleven days; ``poll`` and sockets take about twice as many."""


_T = TypeVar("_T")


def taken(kind: type[_T], values: dict[str, Any]) -> _T:
    """A dataclass of options, which are taken out of those of the command that runs."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind)})  # type: ignore[arg-type]


@contextlib.contextmanager
def telling(files: Mapping[str, Path | None]) -> Iterator[None]:
    """Errors that begin with the path of a file begin with the option that names it.

    Args:
        files: by the option.

    Raises:
        OptionError: instead of such an error.
    """
    try:
        yield
    except QuintetError as error:
        said = str(error)
        named = {option: str(path) for option, path in files.items() if path is not None and said.startswith(str(path))}
        if not named:
            raise
        raise OptionError(f"{max(named, key=lambda option: len(named[option]))} {said}") from None


def check_key(key: str, what: str) -> None:
    """
    Raises:
        OptionError: no request could carry it.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise OptionError(f"{what} must be printable ASCII without spaces, and not empty.")


class Number(click.FloatRange):
    """A finite one. In click NaN is in every range, for it is on neither side of an end.

    Args:
        above: ``least`` itself is not taken.
        off: 0 is, whatever the range: it turns off what the option is about.
    """

    def __init__(self, least: float, most: float | None = None, *, above: bool = False, off: bool = False) -> None:
        super().__init__(least, most, min_open=above)
        self._off = off

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number if self._off and number == 0 else super().convert(number, param, ctx)

    def _describe_range(self) -> str:
        """As click tells it in help and errors."""
        return f"{'0, or ' if self._off else ''}{super()._describe_range()}"
