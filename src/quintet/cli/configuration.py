"""Settings from four places: an option beats its variable ``QUINTET_<OPTION>``, that the file of ``--config``, that the default.

A setting is an option of ``quintet serve``, or its argument. Names, types and rules are read off these, so that a new option is a
variable and a key of the file without a word here. Other commands take the settings that they share with ``serve``.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from quintet.cli import references
from quintet.cli.console import OptionError
from quintet.cli.values import PATH
from quintet.errors import QuintetError, shorten
from quintet.models.files import expanded

PREFIX = "QUINTET_"
OTHER_VARIABLES = frozenset({"QUINTET_CACHE", "QUINTET_CHECK_KEY", "QUINTET_CLIENT_KEY", "QUINTET_DUMPABLE", "QUINTET_ISA"})
"""Read by others; no settings."""

_PARTNERS = {"uds_mode": "uds", "ledger_full": "ledger", "ledger_keep": "ledger", "prefix_cache_size": "prefix_cache_dir"}
"""An option, and the one without which it means nothing."""

_OPPONENTS = {
    **dict.fromkeys(("batch_dir", "batch_keep", "batch_max_file", "batch_max_lines", "batch_storage"), ("no_batches", True)),
    "pack_cache_size": ("pack_cache", False),
}
"""An option, and another with that value of which it means nothing."""

_FILE = "quintet.configuration.file"
_DEFAULT = "default"
_ALIKE = 0.75
_HIDDEN = "***"
_BLAMED = re.compile(r"(--[\w-]+)(?: and (--[\w-]+))?")
"""The options that an error's message begins with."""

_USER = re.compile(r"(?<=://)[^/?#]*@")
_F = TypeVar("_F", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose errors name the variable or the file that a wrong value is from."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            said = _plain(error.message)
            if error.param is not None and ctx.get_parameter_source(str(error.param.name)) is ParameterSource.ENVIRONMENT:
                raise OptionError(f"{error.param.envvar}: {said}") from None
            if said == error.message:
                raise
            raise click.BadParameter(said, error.ctx, error.param, error.param_hint) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QuintetError as error:
            found = _BLAMED.match(str(error))
            options = found.groups() if found else ()
            blamed = [origin(ctx, param) for option in options for param in self.params if option in param.opts]
            places = [place for place in dict.fromkeys(blamed) if place not in (*options, _DEFAULT)]
            if not places:
                raise
            raise OptionError(": ".join([*places, str(error)])) from None


def option(command: _F) -> _F:
    """``--config FILE``: what the command's settings are where neither an option nor a variable says so."""
    return click.option(
        "--config",
        metavar="FILE",
        type=PATH,
        envvar=f"{PREFIX}CONFIG",
        is_eager=True,  # before the options whose values it may hold
        expose_value=False,
        callback=_load,
        help="A TOML file of settings, a line for each option.",
    )(command)


def connect(serve: click.Command, *others: click.Command) -> None:
    """Read the settings from the environment, and those options of the ``others`` that ``serve`` has too."""
    names = {param.name for param in settings(serve).values()}
    shared = [param for one in others for param in one.params if isinstance(param, click.Option) and param.name in names]
    for param in (*settings(serve).values(), *shared):
        param.envvar = f"{PREFIX}{str(param.name).upper()}"


def command(serve: click.Command, check: Callable[..., None]) -> click.Command:
    """``quintet config``, which takes what ``serve`` takes.

    Args:
        check: told all of it by name, raises what ``serve`` would refuse of it.
    """

    def config(*, as_json: bool, **values: Any) -> None:
        check(**values)
        _print(values, as_json=as_json)

    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
    help_ = "Print every setting of quintet serve and where it is from: an option, a variable, the file of --config or the default."
    return Command("config", callback=config, params=[*serve.params, as_json], help=help_)


def settings(serve: click.Command) -> dict[str, click.Parameter]:
    """Key of the file -> parameter: an option's long name without the dashes, an argument's name."""
    return {_key(param): param for param in serve.params if param.name != "config"}


def read(file: Path, known: Mapping[str, click.Parameter], ctx: click.Context) -> dict[str, Any]:
    """The settings in a TOML file, by parameter. Paths are relative to the file's folder.

    Raises:
        OptionError: not a readable TOML file, an unknown key, a value that its option would not take, or a key (the secret kind) in a
            file that others may read.
    """
    named_by = ctx.get_parameter_source("config")
    values = _parse(file, f"{PREFIX}CONFIG: --config" if named_by is ParameterSource.ENVIRONMENT else "--config")
    found = {}
    for key, value in values.items():
        if key not in known:
            raise OptionError(f"{file}: unknown {'table' if isinstance(value, dict) else 'key'} {key!r}{_hint(key, known)}")
        rule, right = _rule(known[key])
        if not right(value):
            got = _HIDDEN if _secret(known[key]) else shorten(value)  # whoever forgets the brackets has written a key none the less
            raise OptionError(f"{file}: {key} must be {rule}, got {got}.")
        try:
            known[key].type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise OptionError(f"{file}: {key}: {error.message}") from None
        except OptionError as error:
            raise OptionError(f"{file}: {error}") from None
        try:
            found[str(known[key].name)] = _based(file.parent, known[key], value)
        except OptionError as error:
            raise OptionError(f"{file}: {key}: {error}") from None
    if any(_secret(known[key]) for key in values) and file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise OptionError(f"{file} holds a key and may be read by everybody or written by others; chmod 600 it.")
    return found


def strangers(variables: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """A line for each variable that is none of ``known`` but written much like one."""
    options = {name.removeprefix(PREFIX): name for name in known}
    for name in sorted({name for name in variables if name.startswith(PREFIX)} - OTHER_VARIABLES - {*options.values()}):
        if near := _nearest(name.removeprefix(PREFIX), options):
            yield f"warning: {name} is not a setting; {options[near]} is."


def origin(ctx: click.Context, param: click.Parameter) -> str:
    """Where a value is from: the option, the variable, the file, or ``default``."""
    match ctx.get_parameter_source(str(param.name)):
        case ParameterSource.COMMANDLINE:
            return max(param.opts, key=len) if isinstance(param, click.Option) else str(param.name).upper()
        case ParameterSource.ENVIRONMENT:
            return str(param.envvar)
        case ParameterSource.DEFAULT_MAP:
            return str(ctx.meta[_FILE])
        case _:
            return _DEFAULT


def given() -> tuple[str, ...]:
    """What the command that runs was given, in whatever way, rather than left at its default."""
    ctx = click.get_current_context()
    return tuple(name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT)


def require_partners() -> None:
    """Each option that was given means something beside the others of the command that runs.

    Raises:
        OptionError: one does not.
    """
    given_ones, values = given(), click.get_current_context().params
    for name in given_ones:
        if (partner := _PARTNERS.get(name)) and not values[partner]:
            raise OptionError(f"{_option_of(name)} means nothing without {_option_of(partner)}.")
        opponent, value = _OPPONENTS.get(name, ("", None))
        if opponent and values[opponent] is value:
            raise OptionError(f"{_option_of(name)} means nothing with {_option_of(opponent, off=value is False)}.")


def _option_of(name: str, *, off: bool = False) -> str:
    return f"--{'no-' if off else ''}{name.replace('_', '-')}"


def _load(ctx: click.Context, _: click.Parameter, file: Path | None) -> None:
    if ctx.resilient_parsing:  # a shell asks for words: what is wrong with the settings would stand in the line that is being typed
        return
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    known = settings(root.commands["serve"]) | settings(root.commands["cluster"])
    for line in strangers(os.environ, [f"{PREFIX}CONFIG", *(str(param.envvar) for param in known.values())]):
        sys.stderr.write(f"{line}\n")
    if file is not None:
        ctx.meta[_FILE] = file
        ctx.default_map = read(file, known, ctx)


def _parse(file: Path, place: str) -> dict[str, Any]:
    """
    Args:
        place: what named the file, for who reads of an error.

    Raises:
        OptionError: it cannot be read, or is no TOML.
    """
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # editors on Windows begin a file with a mark
    except OSError as error:
        raise OptionError(f"{place} {file}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"{place} {file} must be UTF-8; the byte at offset {error.start} is not.") from None
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{place} {file} is not TOML: {error}.") from None


def _plain(message: str) -> str:
    """click's, without its own name of a kind of number, and without its list of words for true and false, of which one is empty."""
    message = re.sub(r"is not a valid integer range\.$", "is not an integer.", message)
    return re.sub(r"is not a valid boolean\. Recognized values: .*$", "is neither true nor false.", message)


def _key(param: click.Parameter) -> str:
    return max(param.opts, key=len).lstrip("-") if isinstance(param, click.Option) else str(param.name)


def _several(param: click.Parameter) -> bool:
    return param.multiple or param.nargs == -1


def _secret(param: click.Parameter) -> bool:
    """Never printed. By its name, so that a new key cannot be forgotten."""
    return str(param.name).endswith("_key") and isinstance(param.type, click.types.StringParamType)


def _rule(param: click.Parameter) -> tuple[str, Callable[[Any], bool]]:
    """What its value must be in TOML, in words and as a check."""
    if _several(param):
        return "a list of strings", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
    match param.type:
        case click.types.BoolParamType():
            return "true or false", lambda value: isinstance(value, bool)
        case click.types.IntParamType():
            return "an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)
        case click.types.FloatParamType():
            return "a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return "a string", lambda value: isinstance(value, str)


def _based(folder: Path, param: click.Parameter, value: Any) -> Any:
    """The value with its paths made relative to where the command runs."""
    if isinstance(param.type, click.Path):
        return str(folder / expanded(value))
    if param.name == "mmproj":
        return references.based_encoder(folder, value)
    if param.name == "lora":
        return [references.based_adapter(folder, one) for one in value]
    if isinstance(param, click.Argument) or param.name in ("moderation", "draft"):  # [NAME=]REFERENCE each
        return [references.based(folder, one) for one in value]
    return value


def _nearest(word: str, words: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(word, words, 1, _ALIKE)), None)


def _hint(key: str, known: Collection[str]) -> str:
    near = _nearest(key, known)
    return f"; did you mean {near!r}?" if near else "; the keys are the options of quintet serve, without dashes, in no table."


def _shown(param: click.Parameter, value: Any) -> Any:
    """A value as JSON can hold it, and keys hidden, as are a name and a password in a URL."""
    if _several(param):
        return [_HIDDEN if _secret(param) else without_user(str(item)) for item in value]
    if _secret(param) and value is not None:
        return _HIDDEN
    return without_user(str(value)) if isinstance(value, Path | str) else value


def without_user(text: str) -> str:
    """A text without the name and the password of the URL that it may be."""
    return _USER.sub(f"{_HIDDEN}@", text)


def _print(values: Mapping[str, Any], *, as_json: bool) -> None:
    ctx = click.get_current_context()
    known = settings(ctx.command)
    known.pop("json")
    found = {key: {"value": _shown(param, values[str(param.name)]), "from": origin(ctx, param)} for key, param in known.items()}
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    rows = [("setting", "value", "from"), *((key, json.dumps(one["value"]), one["from"]) for key, one in found.items())]
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, value, place in rows:
        sys.stdout.write(f"{key:{key_width}}  {value:{value_width}}  {place}\n")
