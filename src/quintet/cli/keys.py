"""``quintet keys``: the keys of a store, which servers with ``--keys`` read while it changes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from quintet.cli import configuration
from quintet.cli.console import OptionError
from quintet.cli.values import PATH, telling
from quintet.errors import shorten
from quintet.keys.key import LAST_TIME, MOST_PRIORITY, Key, Scope
from quintet.quota import MOST, Limits

_F = TypeVar("_F", bound=Callable[..., Any])
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_NO_SCOPE, _NEVER = "none", "never"

_LIMITS = {
    "requests_per_minute": "Requests a minute. 0 = no limit.",
    "requests_per_day": "Requests a day. 0 = no limit.",
    "tokens_per_minute": "Tokens a minute, of prompts and completions. 0 = no limit.",
    "tokens_per_day": "Tokens a day. 0 = no limit.",
    "parallel": "Completions at once. 0 = what the server's --max-per-key says.",
    "budget": "Tokens in all. 0 = no limit.",
}


@click.group()
def keys() -> None:
    """Keys with limits, for quintet serve --keys FILE. Every change counts within a second, without a restart."""


keys.command_class = configuration.Command


def _store(command: _F) -> _F:
    """``--keys FILE``, by whatever way ``serve`` is told it."""

    @functools.wraps(command)
    def told(*, keys: Path, **values: Any) -> Any:
        with telling({"--keys": keys}):
            return command(keys=keys, **values)

    return click.option("--keys", required=True, type=PATH, metavar="FILE", help="The store.")(configuration.option(cast(_F, told)))


def _rights(command: _F) -> _F:
    """What a key may do and use; an option that is not given changes nothing."""
    scopes = click.Choice([*(scope.value for scope in Scope), _NO_SCOPE])
    made = [
        # No name of a setting of serve: with that, what is served by QUINTET_MODELS or the file would be what the key may use.
        click.option("--model", "patterns", metavar="PATTERN", multiple=True, help="Model it may use, * = any text; repeatable."),
        click.option("--expires", metavar="WHEN", help="After 90m, 12h or 30d, on 2027-01-31 (UTC), or never."),
        *(
            click.option(f"--{name.replace('_', '-')}", name, type=click.IntRange(0, MOST), metavar="N", help=told)
            for name, told in _LIMITS.items()
        ),
        click.option(
            "--priority", type=click.IntRange(1, MOST_PRIORITY), metavar="N", help=f"Its share where keys take turns, 1 to {MOST_PRIORITY}."
        ),
        click.option("--scope", "scopes", type=scopes, multiple=True, help="metrics: see everybody's counts; admin: all; repeatable."),
    ]
    for option in reversed(made):
        command = option(command)
    return command


@keys.command()
@click.argument("name")
@_store
@_rights
def add(name: str, keys: Path, **rights: Any) -> None:
    """Make a key and print it: now, and never again."""
    from quintet.keys.store import KeyStore

    if not _NAME.fullmatch(name):
        raise OptionError(f"NAME must be 1 to 64 of A-Z a-z 0-9 . _ @ -, got {shorten(name)}.")
    _require_reader()
    now, store = time.time(), KeyStore(keys)
    secret = store.add(_with(Key(b"", name, now), now, **rights))
    try:
        sys.stdout.write(f"{secret}\n")
        sys.stdout.flush()
    except OSError:  # nobody has it, and nobody can be told it again
        store.change(name, _revoked)
        raise


def _require_reader() -> None:
    """
    Raises:
        OptionError: what is printed leads nowhere, as that of a command whose standard output was closed does.
    """
    with contextlib.suppress(OSError):  # no file is behind it, or there is no such device
        if os.path.samestat(os.fstat(sys.stdout.fileno()), Path(os.devnull).stat()):
            raise OptionError("a key is printed once, and standard output is closed, or is /dev/null.")


@keys.command("set")
@click.argument("key", metavar="NAME")
@_store
@_rights
def set_(key: str, keys: Path, **rights: Any) -> None:
    """Change what the key with this NAME, or id, may do and use."""
    from quintet.keys.store import KeyStore

    KeyStore(keys).change(key, lambda found: _with(found, time.time(), **rights))


@keys.command()
@click.argument("key", metavar="NAME")
@_store
def revoke(key: str, keys: Path) -> None:
    """Take the key with this NAME, or id, out of force. Answers that run are finished."""
    from quintet.keys.store import KeyStore

    KeyStore(keys).change(key, _revoked)


@keys.command("list")
@_store
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(keys: Path, *, as_json: bool) -> None:
    """Print all keys, also those that are not in force any more; never the keys themselves."""
    from quintet.keys.store import KeyStore

    now = time.time()
    store = KeyStore(keys)
    store.settle()
    found = [_told(key, now) for key in store.read()]
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    rows = [("id", "name", "state", "expires", "models", "limits", "priority", "scopes"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def parse_expiry(text: str, now: float) -> float | None:
    """Unix time of ``90m``, ``12h`` or ``30d`` from ``now``, or of a date or time in ISO 8601, UTC if it does not say; ``never`` = None.

    Raises:
        OptionError: none of these, not in the future, or beyond all dates.
    """
    if text == _NEVER:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text, re.ASCII):
        expires = now + float(found[1]) * _SECONDS[found[2]]
        if expires > LAST_TIME:
            raise OptionError(f"--expires must be before the year 10000, or never, got {shorten(text)}.")
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            rule = "must be a time such as 12h or 30d, a date such as 2027-01-31, or never"
            raise OptionError(f"--expires {rule}, got {shorten(text)}.") from None
        expires = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if expires <= now:
        raise OptionError(f"--expires must be in the future, got {shorten(text)}.")
    return expires


def _with(
    key: Key, now: float, *, patterns: Sequence[str], expires: str | None, priority: int | None, scopes: Sequence[str], **limits: int | None
) -> Key:
    """``key`` with what was given.

    Raises:
        OptionError: what could not be meant: no model has an empty name.
    """
    if "" in patterns:
        raise OptionError("--model must not be empty; * is every model.")
    given = {name: value for name, value in limits.items() if value is not None}
    return replace(
        key,
        models=(() if "*" in patterns else tuple(patterns)) if patterns else key.models,
        expires=key.expires if expires is None else parse_expiry(expires, now),
        priority=key.priority if priority is None else priority,
        scopes=frozenset(Scope(word) for word in scopes if word != _NO_SCOPE) if scopes else key.scopes,
        limits=replace(key.limits, **given),
    )


def _revoked(key: Key) -> Key:
    return replace(key, revoked=time.time())


def _told(key: Key, now: float) -> dict[str, Any]:
    state = "revoked" if key.revoked is not None else "in force" if key.live(now) else "expired"
    limits = {field.name: value for field in fields(Limits) if (value := getattr(key.limits, field.name))}
    times = {name: _time(at) for name, at in (("created", key.created), ("expires", key.expires), ("revoked", key.revoked))}
    rights = {"models": list(key.models), "limits": limits, "priority": key.priority, "scopes": sorted(scope.value for scope in key.scopes)}
    return {"id": key.id, "name": key.name, "state": state, **times, **rights}


def _row(told: dict[str, Any]) -> tuple[str, ...]:
    words = {name: name.replace("_", " ") for name in _LIMITS} | {"budget": "tokens in all"}
    limits = ", ".join(f"{value} {words[name]}" for name, value in told["limits"].items())
    models = ", ".join(pattern or '""' for pattern in told["models"]) if told["models"] else "all"
    lists = models, limits or "none", str(told["priority"]), ", ".join(told["scopes"])
    return told["id"], told["name"], told["state"], told["expires"] or _NEVER, *lists


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(min(at, LAST_TIME), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
