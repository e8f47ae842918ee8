"""Patterns that look ahead at their beginning, as generators of schemas write them, beside another validator."""

from __future__ import annotations

import random
import re

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.guides.test_pattern import ATOMS, PATTERNS, SETS, admits, require_valid, start

from quintet.guides.lookahead import without_lookahead
from quintet.guides.protocol import GuideError

LABEL = r"[a-z0-9](?:[-0-9a-z]{0,61}[0-9a-z])?"
GENERATED = {
    "Zod 4, email": (r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$", "a.'-+"),
    "Zod 4, hostname": (rf"^(?=.{{1,5}}\.?$){LABEL}(?:\.{LABEL})*\.?$", "a1.-"),
    "Pydantic 2.12, Decimal": (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "01.+-"),
    "a password": (r"^(?=.*[A-Z])(?=.*\d).{3,}$", "aA1 "),
    "one of two": (r"^(?=a.*1|^b)\w*$", "ab1"),
    "no digit first": (r"^(?!\d)\w+$", "a1_"),
    "neither of two first": (r"^(?![\d_]|a.*)\w+$", "a1_b"),
    "not all digits": (r"^(?!\d+$)\w*$", "a1_"),
    "no space": (r"^(?!.* ).+$", "a b"),
    "no two in a row": (r"^(?!.*--.*$)[a-z-]+$", "a-"),
    "not but a set of brackets": (r"^(?![^\]\\]*$)[ab\]\\]+$", "ab]\\"),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_look_ahead_at_the_beginning_holds(name: str) -> None:
    """All that the pattern matches comes, and nothing else."""
    pattern, alphabet = GENERATED[name]
    at, valid, rng = (
        start({"type": "string", "pattern": pattern}),
        jsonschema_rs.Draft202012Validator({"pattern": pattern}),
        random.Random(1),
    )
    after = "@a.bb" if "@" in pattern else ""
    texts = {"".join(rng.choices(alphabet, k=rng.randint(0, 8))) + after for _ in range(600)}
    seen = {text: valid.is_valid(text) for text in texts}
    assert len(set(seen.values())) == 2
    assert {text: admits(at, text) for text in texts} == seen


def test_beside_other_keywords_all_of_them_bind() -> None:
    at = start({"type": "string", "pattern": "^(?!a)[a-z]+$", "maxLength": 3, "allOf": [{"pattern": "^(?=.*b)"}]})
    assert admits(at, "cb")
    assert not any(admits(at, text) for text in ("ab", "cc", "ccbc", ""))


def test_nothing_of_a_line_break_is_admitted_that_the_pattern_does_not() -> None:
    """``.`` stops at one; here it is looked beyond it, so less is admitted."""
    at = start({"type": "string", "pattern": r"^(?!.*x)[\s\S]*$"})
    assert admits(at, "a\nb")
    assert not admits(at, "a\nx")


ONE = st.sampled_from(ATOMS) | SETS
LOOKS = st.one_of(
    PATTERNS.map("(?={})".format),
    st.builds("(?!{})".format, ONE),
    st.builds("(?!{}{}$)".format, ONE, st.sampled_from("*+")),
    st.builds("(?!.*{}{})".format, ONE, st.sampled_from(["", ".*", ".*$"])),
    ONE.map(lambda one: f"(?!.*{one}{one})"),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(LOOKS, min_size=1, max_size=2).map("".join), PATTERNS)
def test_what_is_admitted_is_valid(looks: str, pattern: str) -> None:
    """By another validator, whose ``\\s`` and ``\\w`` are ECMA 262's only where nothing looks ahead."""
    whole = f"^{looks}{pattern}"
    assume(not re.search(r"\\[sSwWdD]", whole))
    require_valid(whole)


@pytest.mark.parametrize(
    "pattern",
    [r"a(?!b)c", r"(?=a)b", r"^(?!a)b|c", r"^(?!ab)c", r"^(?!(a|b)c)d", r"^(?!a)?b", r"^(?!.*$)a", r"^(?!.)a", r"^(?!a", r"^(?!\b)a"],
)
def test_what_looks_ahead_elsewhere_or_otherwise_stays_as_it_is_and_is_refused(pattern: str) -> None:
    assert without_lookahead(pattern) == (pattern,)
    with pytest.raises(GuideError, match="pattern"):
        start({"type": "string", "pattern": pattern})


@pytest.mark.parametrize("pattern", ["^a|b$", "a", "", "^", r"^\(?!a"])
def test_a_pattern_that_does_not_look_ahead_stays_as_it_is(pattern: str) -> None:
    assert without_lookahead(pattern) == (pattern,)
