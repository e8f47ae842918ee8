"""``quintet keys``: what each command does to a store, and what it says of a mistake."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintet.cli.app import app
from quintet.cli.console import OptionError
from quintet.cli.keys import parse_expiry
from quintet.errors import QuintetError, TooManyRequests
from quintet.keys.key import Key, Scope
from quintet.keys.limits import Limiter
from quintet.keys.store import PREFIX, KeyStore
from quintet.quota import Limits

RIGHTS = ["--model", "smol*", "--model", "coder", "--requests-per-minute", "3", "--budget", "9", "--priority", "4", "--scope", "admin"]


def run(store: Path, command: str, *words: str, **environment: str) -> str:
    """What it prints."""
    done = CliRunner(env=environment).invoke(app, ["keys", command, "--keys", str(store), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def alice(store: Path) -> Key:
    (found,) = (key for key in KeyStore(store).read() if key.name == "alice")
    return found


def test_a_key_has_what_it_was_given_and_what_is_not_given_again_stays(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    assert run(store, "add", "alice", *RIGHTS).startswith(PREFIX)
    made = alice(store)
    assert (made.models, made.limits) == (("smol*", "coder"), Limits(requests_per_minute=3, budget=9))
    assert (made.priority, made.scopes, made.expires) == (4, frozenset({Scope.ADMIN}), None)
    run(store, "set", "alice", "--tokens-per-day", "7", "--budget", "0")
    assert alice(store).limits == Limits(requests_per_minute=3, tokens_per_day=7)
    run(store, "set", made.id, "--model", "*", "--scope", "none", "--expires", "1h")
    changed = alice(store)
    assert (changed.models, changed.scopes, changed.priority) == ((), frozenset(), 4)
    assert changed.expires is not None and changed.digest == made.digest
    run(store, "set", "alice", "--expires", "never")
    assert alice(store).expires is None


def test_parallel_zero_leaves_a_key_to_what_the_server_says_and_the_help_says_so(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    run(store, "add", "alice", "--parallel", "0")
    limiter = Limiter(1, lambda: 0.0, lambda: 0.0, None)
    with limiter.open(alice(store)), pytest.raises(TooManyRequests):
        limiter.open(alice(store))
    for command in ("add", "set"):
        told = " ".join(CliRunner().invoke(app, ["keys", command, "--help"], terminal_width=200).output.split())
        assert "Completions at once. 0 = what the server's --max-per-key says." in told
        assert told.count("0 = no limit.") == len(fields(Limits)) - 1


def test_the_list_tells_of_every_key_and_never_a_key(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    secrets = [run(store, "add", name, *more).strip() for name, more in (("alice", RIGHTS), ("bob", ()), ("eve", ()))]
    run(store, "revoke", "bob")
    listed: list[dict[str, Any]] = json.loads(run(store, "list", "--json"))
    assert [(one["name"], one["state"]) for one in listed] == [("alice", "in force"), ("bob", "revoked"), ("eve", "in force")]
    assert listed[0]["limits"] == {"requests_per_minute": 3, "budget": 9}
    table = run(store, "list")
    assert "3 requests per minute, 9 tokens in all" in table and "smol*, coder" in table
    assert not any(secret in table + json.dumps(listed) for secret in secrets)


def test_a_key_that_may_use_no_model_is_not_listed_as_one_that_may_use_all(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    KeyStore(store).add(Key(b"", "alice", models=("",)))  # as versions before this one made them
    KeyStore(store).add(Key(b"", "bob"))
    assert [line.split()[-3] for line in run(store, "list").splitlines()[1:]] == ['""', "all"]


def test_the_store_can_be_named_as_the_servers_setting_is(tmp_path: Path) -> None:
    store, file = tmp_path / "keys.db", tmp_path / "quintet.toml"
    file.write_text('keys = "keys.db"\n')
    for words, environment in ((["--config", str(file)], {}), ([], {"QUINTET_KEYS": str(store)})):
        name = f"key-{len(words)}"
        done = CliRunner(env=environment).invoke(app, ["keys", "add", *words, name], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert name in [key.name for key in KeyStore(store).read()]


def test_what_the_server_serves_is_nothing_that_a_key_was_given(tmp_path: Path) -> None:
    store, file = tmp_path / "keys.db", tmp_path / "quintet.toml"
    file.write_text('keys = "keys.db"\nmodels = ["b"]\n')
    run(store, "add", "alice", "--model", "a")
    run(store, "add", "bob", QUINTET_MODELS="b c=./x.gguf")
    run(store, "set", "alice", "--budget", "5", QUINTET_MODELS="b c=./x.gguf")
    run(store, "set", "alice", "--priority", "2", "--config", str(file))
    assert {key.name: key.models for key in KeyStore(store).read()} == {"alice": ("a",), "bob": ()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "two words"], "NAME must be 1 to 64 of"),
        (["add", "a" * 65], "NAME must be 1 to 64 of"),
        (["add", "bob", "--expires", "soon"], "--expires must be a time such as 12h or 30d"),
        (["add", "bob", "--expires", "2001-01-01"], "--expires must be in the future"),
        (["add", "bob", "--expires", "0d"], "--expires must be in the future, got '0d'"),
        (["add", "bob", "--model", ""], "--model must not be empty; . is every model."),
        (["set", "alice", "--model", "a", "--model", ""], "--model must not be empty"),
        (["add", "alice"], "a key named 'alice' is in force already"),
        (["set", "bob", "--budget", "1"], "no key 'bob' is in force"),
        (["revoke", "bob"], "no key 'bob' is in force"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_changes_nothing(tmp_path: Path, words: list[str], said: str) -> None:
    store = tmp_path / "keys.db"
    run(store, "add", "alice")
    before = store.read_bytes()
    with pytest.raises(QuintetError, match=said):
        run(store, *words)
    assert store.read_bytes() == before


def test_an_expired_keys_name_is_not_given_again_but_the_key_is_renewed(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    KeyStore(store).add(Key(b"", "alice", expires=1.0))
    with pytest.raises(
        QuintetError, match="a key named 'alice' has expired; renew it with quintet keys set --expires, revoke it, or choose"
    ):
        run(store, "add", "alice")
    run(store, "set", "alice", "--expires", "1h")
    with pytest.raises(QuintetError, match="a key named 'alice' is in force already"):
        run(store, "add", "alice")


def test_a_key_of_an_expiry_beyond_all_dates_is_listed(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    for name, expires in (("late", 8.64e12), ("last", float("inf"))):  # as versions before this one wrote them
        KeyStore(store).add(Key(b"", name, expires=expires))
    assert run(store, "list").count("9999-12-31T23:59:59Z") == 2


@pytest.mark.parametrize("words", [["--budget", "-1"], ["--priority", "0"], ["--priority", "11"], ["--scope", "root"], ["--parallel", "x"]])
def test_a_value_out_of_its_range_is_a_mistyped_option(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["keys", "add", "bob", "--keys", str(tmp_path / "keys.db"), *words])
    assert done.exit_code == 2
    assert words[0] in done.output


def test_an_expiry_is_a_span_a_date_or_never() -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
    spans = {"90m": 5400, "12h": 43_200, "1.5d": 129_600}
    assert {text: (parse_expiry(text, now) or 0) - now for text in spans} == spans
    dates = {"2027-01-31": "2027-01-31T00:00Z", "2027-01-31T12:30": "2027-01-31T12:30Z", "2027-01-31T14:30+02:00": "2027-01-31T12:30Z"}
    for text, meant in dates.items():
        assert parse_expiry(text, now) == datetime.fromisoformat(meant).timestamp()
    assert parse_expiry("never", now) is None
    for wrong in ("", "30", "30w", "-1d", "tomorrow", "2026-11-22", "99999999d", f"{'9' * 400}d"):
        with pytest.raises(OptionError):
            parse_expiry(wrong, now)
