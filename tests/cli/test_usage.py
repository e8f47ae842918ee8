"""``quintet usage``, and the options of the ledger: what they print, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quintet.cli.app import app
from quintet.config import LedgerConfig
from quintet.errors import QuintetError
from quintet.ledger.report import as_table
from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store

DAY = 86_400
ADA, BEN = "0a1b2c3d", "77e01f9a"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Three requests of two keys on two days; the first day is summed up."""
    file = tmp_path / "usage.db"
    store = Store(file)
    first = store.begin(0.0)
    rows = [
        Row(first, "a", ADA, "smollm2", "openai", 1, 5.0, prompt=1000, completion=200, cached=64, state=State.COMPLETED),
        Row(first + 1, "b", ADA, "coder", "together", 2, DAY + 5.0, prompt=10, completion=20, reasoning=7, state=State.CANCELLED),
        Row(first + 2, "c", BEN, "smollm2", "openai", 1, DAY + 3600.0, prompt=1, completion=2, state=State.COMPLETED),
    ]
    store.write({row.number: row for row in rows})
    assert not store.expire(DAY)
    store.close()
    return file


def usage(*words: object) -> Result:
    return CliRunner().invoke(app, ["usage", *map(str, words)], standalone_mode=False)


def rows(*words: object) -> list[dict[str, object]]:
    found = usage("--format", "json", *words)
    assert found.exception is None
    return list(json.loads(found.output))


def test_a_table_for_people(ledger: Path) -> None:
    assert usage("--ledger", ledger).output.splitlines() == [
        "key       model    requests  prompt  completion  cached  reasoning  total",
        "0a1b2c3d  coder           1      10          20       0          7     30",
        "0a1b2c3d  smollm2         1   1,000         200      64          0  1,200",
        "77e01f9a  smollm2         1       1           2       0          0      3",
    ]


def test_in_a_table_who_has_no_key_is_a_dash() -> None:
    assert as_table(("key", "day"), [("", "1970-01-01", 0, 0, 0, 0, 0, 0)]).splitlines()[1].split()[:2] == ["-", "1970-01-01"]


def test_csv_and_json_tell_the_same(ledger: Path) -> None:
    words = "--ledger", ledger, "--by", "day,key"
    told = list(csv.DictReader(io.StringIO(usage(*words, "--format", "csv").output)))
    assert told == [{name: str(value) for name, value in row.items()} for row in rows(*words)]
    assert [(row["day"], row["key"], row["total"]) for row in told] == [
        ("1970-01-01", ADA, "1200"),
        ("1970-01-02", ADA, "30"),
        ("1970-01-02", BEN, "3"),
    ]


@pytest.mark.parametrize("group", ["key", "model", "day", "dialect", "state", ""])
def test_every_grouping_has_the_same_sums(ledger: Path, group: str) -> None:
    found = rows("--ledger", ledger, "--by", group)
    sums = {
        name: sum(int(str(row[name])) for row in found) for name in ("requests", "prompt", "completion", "cached", "reasoning", "total")
    }
    assert sums == {"requests": 3, "prompt": 1011, "completion": 222, "cached": 64, "reasoning": 7, "total": 1233}


def test_only_what_arrived_in_a_time_and_by_a_key(ledger: Path) -> None:
    def requests(*words: object) -> int:
        return sum(int(str(row["requests"])) for row in rows("--ledger", ledger, *words))

    assert requests("--since", "1970-01-02") == 2
    assert requests("--until", "1970-01-02") == 1
    assert requests("--since", "1970-01-02T01:00") == requests("--since", "1970-01-02T02:00+01:00") == 1
    assert requests("--since", "1970-01-02", "--until", "1970-01-02T00:30") == 1
    assert requests("--since", "1970-01-01") == 3
    assert (requests("--until", "1970-01-01"), requests("--until", "1970-01-02T01:00")) == (0, 2), "at that moment is after it"
    assert (requests("--key", ADA), requests("--key", "ffffffff")) == (2, 0)


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_time_inside_a_day_of_which_only_sums_are_kept_is_refused(ledger: Path, option: str) -> None:
    for time in ("1970-01-01T00:00:01", "1970-01-01T23:59:59.9"):
        error = usage("--ledger", ledger, option, time).exception
        assert isinstance(error, QuintetError) and str(error) == f"{option}: 1970-01-01 is kept as a whole day only."
    assert usage("--ledger", ledger, option, "1970-01-01T01:00+01:00").exception is None, "its beginning is none inside"
    assert usage("--ledger", ledger, option, "1970-01-01T12:00", "--key", BEN).exception is None, "this key has no sum of that day"


def test_the_ledger_is_a_setting_like_others(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_LEDGER", str(ledger))
    assert len(usage().output.splitlines()) == 4
    monkeypatch.delenv("QUINTET_LEDGER")
    file = ledger.with_name("quintet.toml")
    file.write_text('ledger = "usage.db"\nledger-keep = "90d"\n')
    assert len(usage("--config", file).output.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--ledger FILE must say which ledger"),
        (("--ledger", "/nowhere/usage.db"), "there is no such file"),
        (("--ledger", "x", "--by", "key,user"), "--by must be some of key, model, day, dialect, state, each once"),
        (("--ledger", "x", "--by", "key,key"), "--by must be some of"),
        (("--ledger", "x", "--since", "yesterday"), "--since must be a date such as 2026-11-30"),
        (("--ledger", "x", "--since", ""), "--since must be a date such as 2026-11-30"),
        (("--ledger", "x", "--until", ""), "--until must be a date such as 2026-11-30"),
        (("--ledger", "x", "--key", "sk-secret"), "--key must be a key's id"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(words: tuple[str, ...], said: str) -> None:
    error = usage(*words).exception
    assert isinstance(error, QuintetError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ledger", "x", "--ledger-keep", "90"), "--ledger-keep must be a whole number up to 999999 with a unit d or h"),
        (("--ledger", "x", "--ledger-keep", "1000000d"), "--ledger-keep must be a whole number up to 999999 with a unit d or h"),
        (("--ledger", "x", "--ledger-keep", "0d"), "--ledger-keep must be"),
    ],
)
def test_options_of_serve_that_cannot_be_meant_are_refused(words: tuple[str, ...], said: str) -> None:
    error = CliRunner().invoke(app, ["serve", "--toy", *words], standalone_mode=False).exception
    assert isinstance(error, QuintetError)
    assert said in str(error)


def test_how_a_ledger_is_kept_follows_from_the_options() -> None:
    from quintet.cli.usage import ledger_config

    assert ledger_config(None, "refuse", "0") is None
    assert ledger_config(Path("x"), "refuse", "0") == LedgerConfig(Path("x"), serve_when_full=False, keep=0.0)
    assert ledger_config(Path("x"), "serve", "90d") == LedgerConfig(Path("x"), serve_when_full=True, keep=90.0 * DAY)
    assert ledger_config(Path("x"), "refuse", "12h") == LedgerConfig(Path("x"), serve_when_full=False, keep=12 * 3600.0)
