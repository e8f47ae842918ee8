"""The JSON-Schema-Test-Suite against what JSON-Schema guides admit: nothing invalid ever, and nothing less than before."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify
from quintet.request import GuideKind

SUITE = Path(__file__).parents[1] / "suites" / "json_schema"
OUTCOMES = SUITE / "outcomes.txt"
UPDATE = "QUINTET_WRITE_OUTCOMES"
EOS = 256
COMPILER = Compiler([*(bytes([byte]) for byte in range(256)), b""], frozenset({EOS}), 257)

REFUSED = "refused"
RANK = {"refused": 0, "-": 1, "+": 2, ".": 2}
"""How good an outcome is. A refused group is worse than one that admits less than it might."""


def spellings(value: object) -> Iterator[object]:
    """The same value with its members in other orders, some of them: guides have the declared order."""
    if isinstance(value, dict):
        for members in itertools.islice(itertools.permutations(value.items()), 24):
            inner = (list(itertools.islice(spellings(one), 6)) for _, one in members)
            yield from (dict(zip((key for key, _ in members), each, strict=True)) for each in itertools.product(*inner))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(itertools.islice(spellings(one), 4)) for one in value)))
    else:
        yield value


def admits(start: Matcher, value: object) -> bool:
    texts = (json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in itertools.islice(spellings(value), 200))
    return any(follows(start.copy(), text.encode()) for text in texts)


def follows(at: Matcher, text: bytes) -> bool:
    mask = np.zeros(9, np.uint32)
    return all(at.consume(byte) for byte in text) and at.fill(mask) and bool(mask[EOS // 32] & 1)


def outcome(group: dict[str, object]) -> str:
    try:
        grammar = translate(GuideKind.JSON_SCHEMA, json.dumps(group["schema"]))
        verify(GuideKind.JSON_SCHEMA, grammar)
    except GuideError:
        return REFUSED
    start, marks = COMPILER.compile(grammar), ""
    for description, value, valid in group["tests"]:  # type: ignore[attr-defined]
        admitted = admits(start, value)
        assert valid or not admitted, f"{group['name']}: {description}: {json.dumps(value)} is invalid and admitted"
        marks += "." if not valid else "+" if admitted else "-"
    return marks


def outcomes(draft: str) -> dict[str, str]:
    lines = (SUITE / f"{draft}.jsonl").read_text(encoding="utf-8").splitlines()
    groups = map(json.loads, lines)
    return {f"{draft}/{group['name']}": outcome(group) for group in groups}


def worth(marks: str, tests: int) -> list[int]:
    return [0] * tests if marks == REFUSED else [RANK[mark] for mark in marks]


def changes(before: dict[str, str], now: dict[str, str]) -> tuple[list[str], list[str]]:
    """What is worse and what is better."""
    worse, better = [], []
    for name, marks in now.items():
        was = before.get(name, REFUSED)
        tests = max(len(one) if one != REFUSED else 0 for one in (was, marks))
        pairs = list(zip(worth(was, tests), worth(marks, tests), strict=True))
        if any(new < old for old, new in pairs):
            worse.append(f"{name}: {was} -> {marks}")
        elif any(new > old for old, new in pairs):
            better.append(f"{name}: {was} -> {marks}")
    return worse, better


@pytest.mark.fault("H10")
def test_guides_admit_nothing_invalid_of_the_suite_and_nothing_less_than_before(capsys: pytest.CaptureFixture[str]) -> None:
    now = outcomes("draft7") | outcomes("draft2020-12")
    if os.environ.get(UPDATE):
        OUTCOMES.write_text("".join(f"{name} {marks}\n" for name, marks in now.items()), encoding="utf-8")
    before = dict(line.split() for line in OUTCOMES.read_text(encoding="utf-8").splitlines())
    worse, better = changes(before, now)
    if better:
        with capsys.disabled():
            print(*("", "better than tests/suites/json_schema/outcomes.txt says:", *better, f"to keep it: {UPDATE}=1"), sep="\n")
    assert before.keys() == now.keys()
    assert worse == []
    counts = Counter(mark for marks in now.values() for mark in ([REFUSED] if marks == REFUSED else marks))
    assert counts["+"] > 600 and counts["."] > 600


@pytest.mark.parametrize(
    ("was", "marks", "verdict"),
    [
        *(("refused", "+.-", "better"), ("+.", "refused", "worse"), ("+", "-", "worse"), ("-.", "+.", "better"), ("+-", "-+", "worse")),
        *(("+.-", "+.-", "same"), ("refused", "refused", "same")),
    ],
)
def test_worse_and_better_are_told_apart(was: str, marks: str, verdict: str) -> None:
    worse, better = changes({"a": was}, {"a": marks})
    assert (bool(worse), bool(better)) == (verdict == "worse", verdict == "better")
