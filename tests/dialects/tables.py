"""What the contract tests of the dialects' fields share: values of every wrong type, at every bound and beyond, and a backend to ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_backend import ScriptedBackend

from quintet.dialects.base import Dialect
from quintet.dialects.constraints import Grammar, Schema
from quintet.dialects.fields import Boolean, Field, Integer, LogitBias, Number, Object, OneOf, Positive, Prompts, Stop, String
from quintet.dialects.fireworks.images import Images
from quintet.dialects.fireworks.kinds import Effort, LogprobsChoice
from quintet.dialects.predictions import Predicted, Speculation
from quintet.errors import BadRequest
from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.resolve import Known, inside_texts, prompt_texts, resolve
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.inputs.supported import require_supported
from quintet.request import Guide

Tables = Mapping[str, tuple[Dialect, tuple[Field[Any], ...]]]
"""Dialects with the fields of their pages."""

DOCS = Path(__file__).parents[2] / "docs" / "dialects"

NOT_NUMBERS: list[object] = [True, False, "5", "", [], [5], {}, {"a": 1}]
WRONG: dict[type, list[object]] = {
    Boolean: [0, 1, 1.0, "true", "", [], [True], {}],
    Integer: [*NOT_NUMBERS, 1.5],
    Number: NOT_NUMBERS,
    Positive: NOT_NUMBERS,
    String: [0, 1.5, True, False, [], ["a"], {}],
    OneOf: [0, 1.5, True, [], ["text"], {}],
    Object: [0, 1.5, True, False, "", "a", [], [{}]],
    LogitBias: [0, 1.5, True, "", "5", [], [[5, 1]], {"5": "1"}, {"5": None}, {"5": True}, {"5": [1]}, {"5": {}}],
    Prompts: [
        *(0, 1.5, True, {}, [None], [True], [1.5], [{}]),
        *(["a", 1], ["a", None], ["a", [1]], ["1", "2", 3]),
        *([1, "a"], [1, None], [1, True], [1, [1]]),
        *([[1], "a"], [[1], 1], [["a"]], [[1, "a"]], [[1, 2.5]], [[1, [2]]], [[True]]),
    ],
    Stop: [0, 1.5, True, {}, [None], ["a", 1], ["a", None], [["a"]], [True]],
    LogprobsChoice: ["true", "1", "", 1.5, [], [1], {}],
    Effort: [1.5, [], ["low"], {}],
    Schema: [0, 1.5, True, [], [{}]],
    Grammar: [0, 1.5, True, [], {}],
    Images: [0, 1.5, True, "data:,", {}, [1], [None], [{}]],
    Predicted: [
        *(0, 1.5, True, ["a"], {}, {"type": "text", "content": "a"}, {"content": 5}, {"content": [5]}, {"content": [{"text": 5}]}),
        *({"content": "a", "weight": 1}, {"content": [{"type": "image_url", "text": "a"}]}, {"content": [{"text": "a", "detail": "low"}]}),
    ],
    Speculation: [0, 1.5, True, {}, ["a"], [[1]], [1, "a"], [1.5]],
}
OUT_OF_RANGE: dict[type, list[object]] = {
    Boolean: [],
    Object: [],
    Predicted: [],
    Speculation: [[-1], [2**31]],
    Images: [["AAAA"], ["<string>"], ["file:///etc/passwd"], ["data:image/png;base64,AAAA"] * 31, ["http://a/" + "b" * 5000]],
    OneOf: ["", "TEXT", "x" * 5000, "text\0"],
    LogitBias: [
        *({key: 1} for key in ("-1", "+5", " 12 ", "1.5", "1_000", "\u0661\u0662", "1e3", "05", "", "2147483648", "9" * 5000)),
        *({"5": value} for value in (100.5, -101, 1e308, 10**400)),
        {str(key): 1 for key in range(1025)},
    ],
    Prompts: [[], [[]], [[1], []], [-1], [[1, -1]], [2**31], [10**100], [1, 2**63]],
    LogprobsChoice: [-1, 6, 10**100],
    Effort: ["", "LOW", "max", -1],
    Schema: ["", "{", "[]", "5", "null", '{"a":1,"a":2}', "\0"],
    Grammar: ["a\0b"],
}
INSIDE: dict[type, list[object]] = {
    Boolean: [True, False],
    Object: [{}],
    Predicted: ["", "a", {"type": "content", "content": "a"}, {"content": [{"type": "text", "text": "a"}]}],
    Speculation: ["", "a", [], [1, 2]],
    Images: [[], ["data:image/png;base64,AAAA"], [["data:image/png;base64,AAAA"]], ["https://example.org/a.png"] * 30],
    LogitBias: [{}, {"0": -100}, {"5": 100, "2147483647": 0.5}, {str(token): 1 for token in range(1024)}],
    Prompts: ["", "a", "\0", [""], ["a", ""], [0], [1, 2], [2**31 - 1], [[0]], [[1], [2, 3]], ["a"] * 1024, [1.0, 2]],
    LogprobsChoice: [True, False, 0, 5, 5.0],
    Effort: ["none", "low", "medium", "high", 0, 4096, 2**31, 10**100, True, False],
    Schema: [{"type": "object"}, '{"type": "object"}', {"name": "a", "schema": {"type": "object"}}, {"minimum": 10**30}],
    Grammar: ['root ::= "a"'],
}


def bounds(kind: object) -> tuple[list[object], list[object]]:
    """Values at the bounds, and values just outside."""
    if isinstance(kind, Integer):
        low, high = kind.low, kind.high
        inside = [value for value in (low, high) if value is not None]
        outside = [*([low - 1, -(10**100)] if low is not None else []), *([high + 1, 10**100] if high is not None else [])]
        return [*inside, *(float(value) for value in inside if abs(value) < 2**53)], [*outside, 1e300]
    if isinstance(kind, Number):
        return [kind.low, kind.high, int(kind.high), int(kind.low)], [kind.low - 1e-9, kind.high + 1e-3, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, Positive):
        return [5e-324, kind.high], [0, -0.0, -1e-9, kind.high + 1e-3, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, String):
        return ["", "x" * (kind.most or 5000)], ["x" * (kind.most + 1)] if kind.most else []
    if isinstance(kind, Stop):
        many, long = ["a"] * kind.most, "x" * kind.longest
        return [[], "a", ["a"], many, long, "\0"], ["", [""], ["a", ""], [*many, "b"], long + "x", [long + "x"]]
    if isinstance(kind, OneOf):
        return list(kind.words), OUT_OF_RANGE[OneOf]
    return INSIDE[type(kind)], OUT_OF_RANGE[type(kind)]


def each(tables: Tables, pick: Callable[[Field[Any]], list[object]]) -> list[Any]:
    return [
        pytest.param(dialect, field, value, id=f"{dialect}-{field.name}-{str(value)[:30]}")
        for dialect, (_, fields) in tables.items()
        for field in fields
        for value in pick(field)
    ]


def table_in_docs(dialect: str) -> str:
    """The table that the docs have between their marks."""
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", (DOCS / f"{dialect}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1].strip()


class Checking(ScriptedBackend):
    """Backend and preparer as far as a request is checked: with the engine's own rules."""

    def __init__(self) -> None:
        super().__init__([])

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            model="m",
            context=4096,
            vocab=257,
            pieces=[b""] * 257,
            max_logprobs=20,
            max_sequences=1024,
            fingerprint="f",
            supported=EVERYTHING,
        )

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "", watch: object = None) -> tuple[PreparedSequence, ...]:
        require_supported(specs, self.capabilities)
        grammars = {spec.guide: translated(spec.guide) for spec in specs if spec.guide}
        encoded = {text: list(text.encode()) for text in prompt_texts(specs)}
        return resolve(
            specs,
            Known(encoded, inside={text: list(text.encode()) for text in inside_texts(specs)}, grammars=grammars, separator=256),
            self.capabilities,
        )


def translated(guide: Guide) -> str:
    """As the engine does in another process."""
    try:
        grammar = translate(guide.kind, guide.text)
        verify(guide.kind, grammar)
    except GuideError as error:
        raise BadRequest(guide.param, str(error)) from None
    return grammar
