"""``quintet usage``, and the options that say how a ledger is kept."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from quintet.cli.console import OptionError
from quintet.cli.values import telling
from quintet.config import LedgerConfig
from quintet.errors import shorten

_SECONDS = {"d": 86_400.0, "h": 3_600.0}


def ledger_config(file: Path | None, full: str, keep: str) -> LedgerConfig | None:
    """How to keep a ledger, if one is to be kept.

    Raises:
        OptionError: a malformed option.
    """
    seconds = parse_keep(keep)
    return None if file is None else LedgerConfig(file, serve_when_full=full == "serve", keep=seconds)


def parse_keep(text: str, option: str = "--ledger-keep") -> float:
    """Seconds of an ``option`` such as ``90d`` or ``12h``; 0 = for ever.

    Raises:
        OptionError: not such a time.
    """
    if text.strip() == "0":
        return 0.0
    found = re.fullmatch(r"([1-9]\d{0,5})([dh])", text.strip(), re.ASCII)
    if found is None:
        raise OptionError(f"{option} must be a whole number up to 999999 with a unit d or h, such as 90d, or 0, got {shorten(text)}.")
    return float(found[1]) * _SECONDS[found[2]]


def report(file: Path | None, by: str, since: str | None, until: str | None, key: str | None, form: str) -> None:
    """Print what was used.

    Raises:
        OptionError: a malformed option, a ledger that cannot be read, or a time inside a day of which it has only sums.
    """
    # A server, which is told how to keep one, needs none of it to start.
    from quintet.ledger.report import FORMS, GROUPS, Query, WholeDayError, usage

    if file is None:
        raise OptionError("--ledger FILE must say which ledger.")
    groups = tuple(part.strip() for part in by.split(",") if part.strip())
    if not set(groups) <= set(GROUPS) or len(set(groups)) < len(groups):
        raise OptionError(f"--by must be some of {', '.join(GROUPS)}, each once, with commas between them, got {shorten(by)}.")
    if key is not None and not re.fullmatch("[0-9a-f]{8}", key):
        raise OptionError(f"--key must be a key's id, the 8 hex digits that are in the log, got {shorten(key)}.")
    first = parse_time(since, "--since") if since is not None else 0.0
    last = parse_time(until, "--until") if until is not None else float("inf")
    with telling({"--ledger": file}):
        try:
            rows = usage(file, Query(groups, first, last, key))
        except WholeDayError as error:
            raise OptionError(f"{'--since' if error.time == first else '--until'}: {error}") from None
    sys.stdout.write(FORMS[form](groups, rows))


def parse_time(text: str, option: str) -> float:
    """Unix time of a date or a time, in UTC if it does not say otherwise.

    Raises:
        OptionError: neither.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{option} must be a date such as 2026-11-30, or a time such as 2026-11-30T12:00, got {shorten(text)}.") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
