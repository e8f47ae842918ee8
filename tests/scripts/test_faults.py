"""The page of faults: every row has a proof or a reason, and every mark a row."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "scripts" / "faults.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_a_test_or_a_reason_and_the_page_is_that_of_now(faults: ModuleType) -> None:
    data, proved = tomllib.loads(faults.DATA.read_text()), faults.proofs(ROOT / "tests")
    assert len(list(faults.promises(data))) == 137
    assert faults.wrong(data, proved) == []
    assert faults.page(data, proved) == faults.PAGE.read_text(), "run make faults"


DATA = {"A": {"title": "First", "A01": "One.", "A02": "Two."}, "B": {"title": "Second", "B01": "Three."}, "without": {"B01": "not yet"}}

SOURCE = """
import pytest
pytestmark = [pytest.mark.timeout(3), pytest.mark.fault("A01")]

@pytest.mark.fault("A01", "A02")
async def test_both(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("A02")), 2])
def test_a_case(x): ...
"""


def test_marks_are_found_on_files_tests_and_cases(faults: ModuleType) -> None:
    rows = [("A01", ""), ("A01", "test_both"), ("A02", "test_both"), ("A02", "test_a_case")]
    assert list(faults.marked(SOURCE, "tests/x.py")) == rows


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.fault("A01")\ndef helper(): ...',
        'CASES = [pytest.param(1, marks=pytest.mark.fault("A01"))]',
        "@pytest.mark.fault()\ndef test_x(): ...",
        "@pytest.mark.fault(ROW)\ndef test_x(): ...",
        '@pytest.mark.fault("A01", row="A02")\ndef test_x(): ...',
    ],
)
def test_a_mark_that_proves_nothing_is_refused(source: str, faults: ModuleType) -> None:
    with pytest.raises(ValueError, match="a mark of a fault"):
        list(faults.marked(source, "tests/x.py"))


def test_the_page_shows_promise_and_proof_or_the_reason_for_none(faults: ModuleType) -> None:
    proved = {"A01": [("tests/x.py", "test_it_holds"), ("tests/y.py", "")], "A02": [("tests/x.py", "test_it_holds")]}
    assert faults.wrong(DATA, proved) == []
    assert faults.page(DATA, proved).removeprefix(faults.HEAD).splitlines() == [
        "",
        "## A. First",
        "",
        "| row | promise | tests |",
        "|---|---|---|",
        "| A01 | One. | [it holds](../tests/x.py)<br>[all of `y.py`](../tests/y.py) |",
        "| A02 | Two. | [it holds](../tests/x.py) |",
        "",
        "## B. Second",
        "",
        "| row | promise | tests |",
        "|---|---|---|",
        "| B01 | Three. | not yet |",
    ]


def test_a_row_without_proof_a_mark_without_row_and_a_reason_without_need_are_told(faults: ModuleType) -> None:
    told = faults.wrong(DATA, {"A01": [("tests/x.py", "test_x")], "B01": [("tests/x.py", "test_x")], "Z9": [("tests/x.py", "test_x")]})
    assert [line[:4] for line in told] == ["A02:", "B01:", "Z9: "]
