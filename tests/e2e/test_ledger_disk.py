"""A real server whose ledger's disk fills up, fails and hangs: no row is lost, none is twice, and nobody is served unaccounted for."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.ledger.disk import Disk, needs_disk
from tests.ledger.files import rows_in
from tests.support.waiting import until

from quintet.backends.toy import EOS
from quintet.ledger.rows import State

pytestmark = needs_disk

SHORT = {"prompt": "The sky is", "max_tokens": 3, "logit_bias": {str(EOS): -100}}
KINDS: list[tuple[str, Callable[[Disk], None]]] = [
    ("ENOSPC", lambda disk: disk.fails(errno.ENOSPC)),
    ("EDQUOT", lambda disk: disk.fails(errno.EDQUOT)),
    ("EIO", lambda disk: disk.fails(errno.EIO)),
    ("EIO of synchronisations alone", lambda disk: disk.fails(errno.EIO, syncs=True)),
]


def ask(one: Served) -> tuple[int, Any]:
    status, body = one.post(SHORT)
    return status, json.loads(body)


def usage(file: Path, *words: str) -> Any:
    """What ``quintet usage`` prints, as a process of its own."""
    command = [sys.executable, "-m", "quintet", "usage", "--ledger", str(file), "--format", "json", *words]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=PATIENCE_S).stdout)


@pytest.mark.fault("D06")
def test_while_the_disk_fails_requests_are_refused_and_served_again_when_it_works(tmp_path: Path) -> None:
    """The third kind of fault shows that a row counts as written only when it is synchronised."""
    file, disk = tmp_path / "usage.db", Disk(tmp_path, "usage.db")
    answered: list[str] = []
    with served("--toy", "--ledger", str(file), **disk.environment()) as one:
        for name, breaks in KINDS:
            status, body = ask(one)
            assert status == 200, name
            answered.append(body["id"])
            breaks(disk)
            for _ in range(3):
                status, body = ask(one)
                assert (status, body["error"]["message"]) == (503, "The server cannot keep account of requests now; try again later."), name
            disk.works()
            until(lambda: ask_again(one, answered))
        until(lambda: completed(file) == len(answered))  # the end of the last answer is written a moment after it was sent
        assert usage(file, "--by", "state") == [total("completed", len(answered))]
        code, err = one.end(signal.SIGTERM)
    assert code == 0
    assert err.count("ledger: cannot write") == err.count("ledger: it can be written again") == len(KINDS)
    rows = [row for row in rows_in(file).values() if row]
    assert sorted(f"cmpl-{row.id}" for row in rows) == sorted(answered)
    assert {(row.state, row.completion) for row in rows} == {(State.COMPLETED, 3)}


def completed(file: Path) -> int:
    return sum(row is not None and row.state is State.COMPLETED for row in rows_in(file).values())


def ask_again(one: Served, answered: list[str]) -> bool:
    status, body = ask(one)
    if status == 200:
        answered.append(body["id"])
    return status == 200


def total(state: str, count: int) -> dict[str, object]:
    sums = {"requests": count, "prompt": 10 * count, "completion": 3 * count, "cached": 0, "reasoning": 0, "total": 13 * count}
    return {"state": state, **sums}


@pytest.mark.fault("D06")
def test_where_it_may_serve_on_each_row_is_written_once_when_the_disk_works_again_also_at_the_end(tmp_path: Path) -> None:
    file, disk = tmp_path / "usage.db", Disk(tmp_path, "usage.db")
    answered = []
    with served("--toy", "--ledger", str(file), "--ledger-full", "serve", **disk.environment()) as one:
        for _, breaks in KINDS:
            breaks(disk)
            for _ in range(3):
                status, body = ask(one)
                assert status == 200
                answered.append(body["id"])
            disk.works()
            until(lambda: len(rows_in(file)) == len(answered))
        disk.slow(300)
        answered += [ask(one)[1]["id"] for _ in range(2)]
        one.end(signal.SIGTERM)
    rows = [row for row in rows_in(file).values() if row]
    assert sorted(f"cmpl-{row.id}" for row in rows) == sorted(answered)
    assert {row.state for row in rows} == {State.COMPLETED}


def test_a_server_whose_ledger_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "usage.db")
    disk.fails(errno.ENOSPC)
    with served("--toy", "--ledger", str(tmp_path / "usage.db"), **disk.environment()) as one:
        assert one.banner == ""
        code, err = one.end(0)
    assert (code, err.count("\n")) == (1, 1), err
    assert err.startswith(f"error: --ledger {tmp_path / 'usage.db'}: ")
