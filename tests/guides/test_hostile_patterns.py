"""Patterns that end other engines, in every place where a pattern may stand: refused by their field's name, or followed like any other."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from quintet.errors import BadRequest
from quintet.guides.check import GuideCheck
from quintet.guides.matcher import Compiler
from quintet.request import Guide, GuideKind

COMPILER = Compiler([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), 257)

PLACES: dict[str, Callable[[str], Guide]] = {
    "regex": lambda pattern: Guide(GuideKind.REGEX, pattern, "regex"),
    "in a Lark grammar": lambda pattern: Guide(GuideKind.GRAMMAR, f"start: /{pattern}/", "grammar"),
    "pattern": lambda pattern: _schema({"type": "string", "pattern": f"^{pattern}$"}),
    "patternProperties": lambda pattern: _schema(
        {"type": "object", "patternProperties": {f"^{pattern}$": {"const": 1}}, "additionalProperties": False, "required": []}
    ),
    "in a schema in a grammar": lambda pattern: Guide(
        GuideKind.GRAMMAR, "start: %json " + json.dumps({"type": "string", "pattern": f"^{pattern}$"}), "grammar"
    ),
}

NEVER = [r"c(?=a)b", r"c(?!a)b", r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"(?P<n>a)(?P=n)", r"(?:a", r"a{3,2}"]
COSTLY = [r"(a+)+b", r"(a|a)*c", r"(a|aa)+b", r"a{1,99999}", r"(a*)*b", r"((a{1,20}){1,20}){1,20}b", r"[a-c]*a[a-c]{12}"]


def _schema(schema: dict[str, object]) -> Guide:
    return Guide(GuideKind.JSON_SCHEMA, json.dumps(schema), "response_format")


@pytest.fixture(scope="module")
def translated() -> dict[Guide, str | BadRequest]:
    """What came of each, all checked by one server's processes."""

    async def go() -> dict[Guide, str | BadRequest]:
        check = GuideCheck()
        found: dict[Guide, str | BadRequest] = {}
        try:
            for guide in [place(pattern) for place in PLACES.values() for pattern in [*NEVER, *COSTLY]]:
                try:
                    found |= await check.translate([guide])
                except BadRequest as refused:
                    found[guide] = refused
        finally:
            await check.close()
        return found

    return asyncio.run(go())


@pytest.mark.fault("B10")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pattern", NEVER)
def test_what_cannot_be_followed_is_refused_by_its_field(place: str, pattern: str, translated: dict[Guide, str | BadRequest]) -> None:
    guide = PLACES[place](pattern)
    refused = translated[guide]
    assert isinstance(refused, BadRequest) and refused.param == guide.param


@pytest.mark.fault("B10")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pattern", COSTLY)
def test_what_costs_others_a_century_is_followed_or_refused(place: str, pattern: str, translated: dict[Guide, str | BadRequest]) -> None:
    """What comes of it, if it ends, is the pattern's; a mask never ends in an error."""
    guide = PLACES[place](pattern)
    grammar = translated[guide]
    if isinstance(grammar, BadRequest):
        assert grammar.param == guide.param
        return
    matcher, mask, rng, text = COMPILER.compile(grammar), np.zeros(9, np.uint32), random.Random(1), b""
    for _ in range(200):
        assert matcher.fill(mask), matcher.error
        token = rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
        if token == 256:
            found = text.decode() if place in ("regex", "in a Lark grammar") else json.loads(text)
            assert all(re.fullmatch(pattern, one) for one in ([found] if isinstance(found, str) else found))
            return
        assert matcher.consume(token)
        text += bytes([token])
