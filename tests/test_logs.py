"""Log lines to a stream that nobody reads: nothing waits for them, they are counted, and what is read later is whole lines."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from quintet.logs import FORMS, JSON, MOST_KEPT, REQUEST, TEXT, Lines, LinesHandler


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def drained(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    try:
        while part := os.read(fd, 1 << 20):
            found += part
    except BlockingIOError:
        pass
    return found


def test_what_is_read_arrives_in_order() -> None:
    with pipe() as (reader, writer):
        lines = Lines(writer)
        for number in range(100):
            lines.write(f"{number}\n")
        assert drained(reader) == b"".join(b"%d\n" % number for number in range(100))


@pytest.mark.fault("D08")
def test_nobody_waits_for_a_reader_and_what_is_lost_is_counted_where_reading_begins_again() -> None:
    count, text = 3 * MOST_KEPT, "x" * 200
    with pipe() as (reader, writer):
        lines = Lines(writer)
        for number in range(count):
            lines.write(f"{number} {text}\n")
        assert lines.dropped > MOST_KEPT
        found = b""
        while b"dropped" not in found:
            found += drained(reader)
            lines.write("more\n")
        said = (found + drained(reader)).decode().splitlines()
    (told,) = [line for line in said if "dropped" in line]
    kept = [line for line in said if line.endswith(text)]
    assert kept == [f"{number} {text}" for number in range(len(kept))]  # the first ones, each whole
    assert len(kept) > MOST_KEPT
    assert int(told.split()[0]) + len(kept) >= count  # and as many of "more" as came before there was room


@pytest.mark.fault("D08")
def test_on_a_full_disk_lines_are_kept_then_counted_and_each_that_is_written_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk takes the first half of a line and then no more, as it does where that fills its last block."""
    room, write = 5, os.write

    def limited(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(fd, data[:room])
        room -= taken
        return taken

    count = MOST_KEPT + 7
    file = tmp_path / "log"
    with file.open("wb") as opened:
        monkeypatch.setattr(os, "write", limited)
        lines = Lines(opened.fileno())
        for number in range(count):
            lines.write(f"line {number}\n")
        assert (file.read_bytes(), lines.dropped) == (b"line ", 7)
        room = 1 << 20
        lines.write("after\n")
    *kept, told = file.read_text().splitlines()
    assert kept == [f"line {number}" for number in range(MOST_KEPT)]
    assert told == "8 lines of the log dropped: there was no room"


def test_a_line_longer_than_a_pipe_takes_at_once_is_written_whole_when_there_is_room() -> None:
    with pipe() as (reader, writer):
        lines, long = Lines(writer), "y" * 200_000 + "\n"
        lines.write(long)
        found = b""
        while b"z" not in found:
            found += drained(reader)
            lines.write("z\n")
    assert found.startswith(long.encode() + b"z\n")


@pytest.mark.fault("D08")
def test_a_closed_stream_is_no_error() -> None:
    with pipe() as (_, writer):
        closed = os.dup(writer)
    os.close(closed)
    Lines(closed).write("a\n")
    reader, writer = os.pipe()
    lines = Lines(writer)
    os.close(reader)
    lines.write("a\n")
    os.close(writer)


def test_a_character_that_no_encoding_has_is_told_as_its_number() -> None:
    with pipe() as (reader, writer):
        Lines(writer).write("a\ud800\n")
        assert drained(reader) == b"a\\ud800\n"


def test_a_line_that_cannot_be_made_ends_nothing_of_whoever_logs(capsys: pytest.CaptureFixture[str]) -> None:
    with pipe() as (reader, writer):
        LinesHandler(Lines(writer)).handle(record("%d", "no number"))
        assert drained(reader) == b""
    assert "Logging error" in capsys.readouterr().err


def test_a_record_is_a_line_of_its_form() -> None:
    with pipe() as (reader, writer):
        for form in FORMS:
            LinesHandler(Lines(writer), form).handle(record("said %d", 7, facts={"model": "m", "ms": 1.5, "key": "", "finish": None}))
        told, text = drained(reader).decode().splitlines()
    found = json.loads(told)
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {"level": "info", "logger": "name", "message": "said 7", "model": "m", "ms": 1.5}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+ INFO name: said 7 model=m ms=1.5", text)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_written_while_a_request_is_answered_has_its_id(form: str) -> None:
    async def answer(name: str) -> None:
        REQUEST.set(name)
        await asyncio.sleep(0)
        handler.handle(record("of one"))

    async def both() -> None:
        await asyncio.gather(answer("first"), answer("second"))

    with pipe() as (reader, writer):
        handler = LinesHandler(Lines(writer), form)
        asyncio.run(both())
        handler.handle(record("of none"))
        first, second, none = drained(reader).decode().splitlines()
    assert ("first" in first, "second" in second, "request_id" in none) == (True, True, False)


def test_a_line_of_either_form_is_one_line_whatever_is_in_it() -> None:
    with pipe() as (reader, writer):
        LinesHandler(Lines(writer), JSON).handle(record("a\nb\x1b[2J", facts={"model": "x\ny"}))
        said = drained(reader)
    assert said.count(b"\n") == 1 and b"\x1b" not in said and json.loads(said)["message"] == "a\nb\x1b[2J"


def record(message: str, *args: object, facts: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("name", logging.INFO, "file", 1, message, args, None)
    if facts is not None:
        made.facts = facts
    return made


@pytest.mark.fault("G01", "G04")
def test_an_exception_is_told_by_kind_and_place_and_never_by_its_words() -> None:
    secret = f"prompt-{os.getpid()}"

    def inner() -> None:
        raise ValueError(secret)

    try:
        try:
            inner()
        except ValueError as error:
            raise KeyError(secret) from error
    except KeyError:
        raised = sys.exc_info()
    with pipe() as (reader, writer):
        LinesHandler(Lines(writer), JSON).handle(logging.LogRecord("name", logging.ERROR, "file", 1, "it broke", (), raised))
        told = json.loads(drained(reader))
        LinesHandler(Lines(writer), TEXT).handle(logging.LogRecord("name", logging.ERROR, "file", 1, "it broke", (), raised))
        said = drained(reader).decode().partition("name: ")[2]
    assert told["exception"] == said.removeprefix("it broke\n").rstrip("\n")
    assert said.startswith("it broke\n") and "KeyError\nraised while handling:\n" in said and said.endswith("ValueError\n")
    assert "in inner" in said and "test_logs.py" in said
    assert secret not in said


@pytest.mark.fault("G01")
def test_of_a_task_that_nobody_waits_for_the_values_at_hand_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async def broken() -> None:
            raise ValueError("a secret")

        task = asyncio.create_task(broken())
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(go())
    (record,) = (record for record in caplog.records if record.name == "asyncio")
    assert "a secret" in record.getMessage(), "else there is nothing to hide"
    record.exc_text = None  # pytest's own handler has kept its form of it
    with pipe() as (reader, writer):
        LinesHandler(Lines(writer)).handle(record)
        said = drained(reader).decode()
    assert "asyncio: Task exception was never retrieved\n" in said and said.endswith("ValueError\n")
    assert "a secret" not in said.replace('raise ValueError("a secret")', "")
