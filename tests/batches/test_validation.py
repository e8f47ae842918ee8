"""What is a batch's file, and what is said of one that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.batch import NewBatch
from quintet.batches.validation import MOST_FAULTS, Contents, Limits, body_of, validate

STRICT = NewBatch(input_file="file", endpoint="/v1/completions", window="24h", window_s=86_400)
BARE = NewBatch(input_file="file", endpoint="/v1/completions", window="48h", window_s=172_800, bare=True)
FEW = Limits(10, 500)
GOOD = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}'


def found(folder: Path, text: str | bytes, asked: NewBatch = STRICT, limits: Limits = FEW) -> Contents:
    path = folder / "in"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    *_, last = validate(path, asked, limits, lambda number: number * 7)
    return last


@pytest.mark.fault("J04")
@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "empty_file", None),
        ("\n \n", "empty_file", None),
        ("{", "invalid_json_line", 1),
        (f"{GOOD}\nnot json\n", "invalid_json_line", 2),
        ("[1]", "invalid_request", 1),
        (b'{"custom_id": "\xff"}', "invalid_json_line", 1),
        ("[" * 400, "invalid_request", 1),
        (GOOD.replace('"a"', "1"), "invalid_request", 1),
        (GOOD.replace('"a"', '""'), "invalid_custom_id", 1),
        (GOOD.replace('{"model": "m", "prompt": "x"}', "[]"), "invalid_request", 1),
        (GOOD.replace("POST", "GET"), "invalid_method", 1),
        (GOOD.replace('"method"', '"priority": 1, "method"'), "invalid_request", 1),
        (GOOD.replace('"method": "POST", ', ""), "invalid_method", 1),
        (GOOD.replace("/v1/completions", "/v1/chat/completions"), "mismatched_url", 1),
        (GOOD.replace('"url": "/v1/completions", ', ""), "mismatched_url", 1),
        (f"{GOOD}\n{GOOD}", "duplicate_custom_id", 2),
        ("\n".join(GOOD.replace('"a"', f'"{number}"') for number in range(11)), "too_many_tasks", 11),
        (GOOD.replace('"x"', f'"{"x" * 600}"'), "line_too_long", 1),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_a_code(tmp_path: Path, text: str | bytes, code: str, line: int | None) -> None:
    faults = found(tmp_path, text).faults
    assert [(fault.code, fault.line) for fault in faults] == [(code, line)] and faults[0].message.endswith(".")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"zzz", "invalid character (byte 0)"),
        (b'{"custom_id": NaN}', "invalid character (byte 14)"),
        (b'{"custom_id": "a"', "it ends too soon, or has half of a surrogate pair"),
        (GOOD.replace('"x"', r'"\ud83d"').encode(), "it ends too soon, or has half of a surrogate pair"),
        (b'{"custom_id": "\xff"}', "it is not UTF-8"),
        (GOOD.replace('"x"', "[" * 5000 + "]" * 5000).encode(), "it is nested too deeply"),
    ],
)
def test_what_is_no_json_is_told_why(tmp_path: Path, line: bytes, why: str) -> None:
    (fault,) = found(tmp_path, line, limits=Limits()).faults
    assert fault.message == f"This line is not parseable as valid JSON: {why}."


def test_the_mark_with_which_editors_on_windows_begin_a_file_is_no_part_of_its_first_line(tmp_path: Path) -> None:
    (line,) = found(tmp_path, f"\ufeff{GOOD}\r\n").lines
    assert (tmp_path / "in").read_bytes()[line.start : line.start + line.size] == f"{GOOD}\r\n".encode()


def test_only_requests_count_toward_the_most_of_them_and_only_so_many_lines_may_be_blank(tmp_path: Path) -> None:
    requests = [GOOD.replace('"a"', f'"{number}"') for number in range(10)]
    for end in ("\n\n", "\r\n\r\n", "\n \n"):
        what = found(tmp_path, "".join(f"{request}{end}" for request in requests))
        assert (len(what.lines), what.faults) == (10, [])
    for text, line in ((f"\n{chr(10).join(requests)}\n{GOOD}\n", 12), (f"{GOOD}\n{chr(10) * 11}", 12)):
        assert [(fault.code, fault.line) for fault in found(tmp_path, text).faults] == [("too_many_tasks", line)]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_lines_end_is_not_of_its_bytes(tmp_path: Path, end: str) -> None:
    whole, after = GOOD + " " * (500 - len(GOOD)), end + GOOD.replace('"a"', '"b"') if end else ""
    assert not found(tmp_path, f"{whole}{after}").faults
    assert [(fault.code, fault.line) for fault in found(tmp_path, f"{whole} {after}").faults] == [("line_too_long", 1)]


@pytest.mark.fault("A23")
@pytest.mark.parametrize(
    ("again", "name"),
    [
        ('"custom_id": "b"', "custom_id"),
        ('"custom_id": "a"', "custom_id"),
        ('"method": "POST"', "method"),
        ('"\\u0075rl": "/v1/completions"', "url"),
        ('"body": {"model": "m", "prompt": "y"}', "body"),
    ],
)
def test_a_member_that_is_given_twice_is_a_fault_of_its_line_whatever_its_values(tmp_path: Path, again: str, name: str) -> None:
    for text in (f"{GOOD[:-1]}, {again}}}", f"{{{again}, {GOOD[1:]}"):
        assert [(fault.code, fault.line, fault.param) for fault in found(tmp_path, text).faults] == [("duplicate_key", 1, name)]


def test_a_member_that_means_nothing_is_named_in_few_words(tmp_path: Path) -> None:
    named, long = (found(tmp_path, f'{GOOD[:-1]}, "{name}": 1}}').faults[0].message for name in ("priority", "é" * 200))
    assert "unknown field `priority`" in named and len(long) < 200


def test_every_line_that_is_wrong_is_told_up_to_a_number(tmp_path: Path) -> None:
    assert len(found(tmp_path, "{\n" * 1000, limits=Limits(10_000, 500)).faults) == MOST_FAULTS


def test_bare_lines_are_for_those_who_have_them(tmp_path: Path) -> None:
    assert not found(tmp_path, '{"custom_id": "a", "body": {}}', BARE).faults
    assert found(tmp_path, '{"custom_id": "a", "body": {}}', STRICT).faults
    assert found(tmp_path, '{"custom_id": "a", "url": "/other", "body": {}}', BARE).faults


def test_one_model_is_told_and_several_are_not(tmp_path: Path) -> None:
    other = GOOD.replace('"a"', '"b"')
    assert found(tmp_path, f"{GOOD}\n{other}").model == "m"
    another = other.replace('"m"', '"n"')
    assert [(fault.code, fault.line) for fault in found(tmp_path, f"{GOOD}\n{another}").faults] == [("model_mismatch", 2)]
    several = found(tmp_path, f"{GOOD}\n{another}", limits=Limits(10, 500, one_model=False))
    assert (several.model, several.faults) == ("", [])


bodies = st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=8), st.booleans())
def test_a_lines_body_is_found_again_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, given: list[dict[str, object]], crlf: bool
) -> None:
    given = [{key: value for key, value in body.items() if key != "model"} for body in given]
    lines = [json.dumps({"custom_id": str(number), "body": body}) for number, body in enumerate(given)]
    data = ("\r\n" if crlf else "\n").join(lines).encode()
    what = found(tmp_path_factory.mktemp("lines"), data, BARE, Limits(10, 10_000))
    assert [line.name for line in what.lines] == [str(number) for number in range(len(given))]
    assert [json.loads(body_of(data[line.start : line.start + line.size], line.name) or b"") for line in what.lines] == given
    assert [line.seed for line in what.lines] == [line.number * 7 for line in what.lines]
