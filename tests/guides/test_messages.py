"""What a refused guide is told: the reason first, in the client's own words and not in the library's."""

from __future__ import annotations

import json

import pytest

from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify
from quintet.request import GuideKind

DAYS = "(Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday), [0-9]{1,2} (January|February|March|April|May|June|July) "


def refusal(kind: GuideKind, guide: object) -> str:
    with pytest.raises(GuideError) as caught:
        verify(kind, translate(kind, guide if isinstance(guide, str) else json.dumps(guide)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (r"\d{4}\b", "lookarounds not supported yet; WordUnicode"),
        ("(?=x)", "look-around, including look-ahead and look-behind, is not supported: (?=x)"),
        ("(", "unclosed group: ("),
    ],
)
def test_a_long_regular_expression_is_not_repeated_before_the_reason(end: str, reason: str) -> None:
    assert reason in refusal(GuideKind.REGEX, 2 * DAYS + end)
    if end == "(":
        assert reason in refusal(GuideKind.JSON_SCHEMA, {"type": "string", "pattern": 2 * DAYS + end})


def test_quotes_and_backslashes_are_told_as_they_came() -> None:
    assert refusal(GuideKind.REGEX, r"\bfoo").endswith(r"in regex /\bfoo/")
    assert refusal(GuideKind.JSON_SCHEMA, {"minimum": "3"}).endswith("""Expected f64 for 'minimum', got "3\"""")
    assert refusal(GuideKind.REGEX, "é\x7f(é").endswith(r"unclosed group: (\xe9")


def test_no_option_is_recommended_that_a_request_cannot_set() -> None:
    message = refusal(GuideKind.JSON_SCHEMA, {"oneOf": [{"type": "integer"}, {"type": "number"}]})
    assert "oneOf" in message
    assert "coerce" not in message


@pytest.mark.parametrize(("kind", "guide"), [(GuideKind.REGEX, "[a&&b]"), (GuideKind.GRAMMAR, "start: a\na: a")])
def test_what_admits_nothing_is_told_so(kind: GuideKind, guide: object) -> None:
    assert refusal(kind, guide) == "must admit some text, and not come to where nothing can follow"
