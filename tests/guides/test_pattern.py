"""Regular expressions in JSON Schemas: ECMA 262's, whatever the compiler's dialect is."""

from __future__ import annotations

import itertools
import json
import random

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.pattern import PatternError, from_ecma
from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify
from quintet.request import GuideKind

EOS = 256
COMPILER = Compiler([*(bytes([byte]) for byte in range(256)), b""], frozenset({EOS}), 257)
ALPHABET = ["a", "b", '"', "A", "&", "[", "]", "-", "~", "^", "$", "\\", "{", "1", ",", " ", "\n", "\r", "\u2028", "\ufeff", "\x85", "é"]
TEXTS = ["", *ALPHABET, *random.Random(0).sample([*map("".join, itertools.product(ALPHABET, repeat=2))], 50), "aab", "1]", "a{1}", "a{,2}"]


def start(schema: object) -> Matcher:
    grammar = translate(GuideKind.JSON_SCHEMA, json.dumps(schema))
    verify(GuideKind.JSON_SCHEMA, grammar)
    return COMPILER.compile(grammar)


def allowed(at: Matcher) -> list[int]:
    mask = np.zeros(9, np.uint32)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() if at.fill(mask) else []


def admits(at: Matcher, value: object) -> bool:
    at = at.copy()
    return all(map(at.consume, json.dumps(value, ensure_ascii=False).encode())) and EOS in allowed(at)


def admitted(pattern: str) -> set[str]:
    at = start({"type": "string", "pattern": pattern})
    return {text for text in TEXTS if admits(at, text)}


@pytest.mark.parametrize(
    ("pattern", "some", "none"),
    [
        ("^.$", ["a", "\x85"], ["\n", "\r", "\u2028"]),
        (r"^\s$", ["\ufeff", "\u2028", " "], ["\x85", "a"]),
        (r"^[^\S]$", ["\ufeff", " "], ["\x85", "a"]),
        (r"^\S$", ["\x85", "a"], ["\ufeff", " "]),
        ("^[^a&&b]$", ["1", "A"], ["a", "b", "&"]),
        ("^[[a]$", ["[", "a"], ["]", "b"]),
        ("^[[:1:]]$", ["1]"], ["a", "A"]),
        ("^[a~~b]$", ["a", "b", "~"], ["1"]),
        ("^a{,2}$", ["a{,2}"], ["a", "aa", ""]),
        ("^a{1}$", ["a"], ["aa", "a{1}"]),
        (r"^\w$", ["a", "1"], ["é", "-"]),
        ("^a|b$", ["a", "b", "aab"], ["&", ""]),
        (r"^[^\\]$", ['"', "a", "\n"], ["\\"]),
        (r'^[^"]$', ["\\", "a", "\n"], ['"']),
        (r"^[\x00-!#-~]$", ["a", " "], ['"']),
        (r"^\p{Cc}$", ["\n", "\r"], ['"', "\\"]),
    ],
)
def test_a_pattern_means_what_ecma_262_says(pattern: str, some: list[str], none: list[str]) -> None:
    found = admitted(pattern)
    assert found >= set(some)
    assert found.isdisjoint(none)


@pytest.mark.fault("B10")
@pytest.mark.parametrize(
    "pattern",
    [
        *("[]", "[^]", "[+--]", "[a", "(?i)a", "(?x) a", "(?P<n>a)", "(?=a)b", "(?<!a)b", "a*+", "*a", "a|*", "^*", "(*a)", r"\Aa", r"a\z"),
        *(r"\cA", r"\0", r"(a)\1", r"\x4", r"\u12", "\\", r"[\]"),
    ],
)
def test_what_ecma_262_lacks_or_no_mask_can_follow_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError) as caught:
        from_ecma(pattern)
    assert str(caught.value)
    with pytest.raises(GuideError, match="pattern"):
        translate(GuideKind.JSON_SCHEMA, json.dumps({"patternProperties": {pattern: {}}}))


ATOMS = [*"abA&~1,.^$ ", r"\s", r"\S", r"\d", r"\w", r"\W", r"\[", r"\]", r"\\", r"\-", r"\x61", r"\u00e9", r"\n", r"\{", "]", "{", "}"]
MEMBERS = [*"abA&~1,.^$[ -", '"', r"\x00-\x20", r"\s", r"\S", r"\d", r"\W", r"\]", r"\\", r"\-", r"\n", "a-b", "0-9"]
SETS = st.builds(
    lambda no, members: f"[{no}{''.join(members)}]", st.sampled_from(["", "^"]), st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=5)
)
PATTERNS = st.recursive(
    st.sampled_from(ATOMS) | SETS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.builds(lambda one, other: f"(?:{one}|{other})", inner, inner),
        st.builds(lambda one, times: f"({one}){times}", inner, st.sampled_from(["", "*", "+?", "{2}", "{0,1}", "?"])),
        inner.map(lambda one: f"^{one}$"),
    ),
    max_leaves=6,
)


def require_valid(pattern: str) -> None:
    """What is admitted is valid by another validator, if both take the pattern."""
    try:
        found = admitted(pattern)
        valid = jsonschema_rs.Draft202012Validator({"pattern": pattern})
    except (GuideError, jsonschema_rs.ValidationError, ValueError):
        return
    assert [text for text in found if not valid.is_valid(text)] == []


@settings(max_examples=100, deadline=None)
@given(PATTERNS)
def test_what_a_pattern_admits_is_valid(pattern: str) -> None:
    """By another validator, which reads ECMA 262 too."""
    require_valid(pattern)


FORMATS = ["date", "time", "date-time", "duration", "hostname", "email", "ipv4", "ipv6", "uuid", "uri"]


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_admits_is_valid(name: str) -> None:
    """Random walks, by another validator."""
    valid = jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)
    first, rng, ended = start({"type": "string", "format": name}), random.Random(name), 0
    for _ in range(60):
        at, text = first.copy(), bytearray()
        while len(text) < 120:
            options = allowed(at)
            byte = ord('"') if ord('"') in options and text and rng.random() < 0.3 else rng.choice(options)
            if byte == EOS:
                ended += 1
                assert valid.is_valid(json.loads(text)), text
                break
            text.append(byte)
            assert at.consume(byte)
    assert ended > 10


@pytest.mark.parametrize(
    ("name", "some", "none"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-1-1"]),
        ("time", ["23:59:59Z", "00:00:00.25+05:30"], ["24:00:00Z", "23:59:60Z", "10:00:00", "10:00:00+24:00"]),
        ("date-time", ["2024-02-29T12:00:00Z"], ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "1998-12-31T23:58:60Z"]),
        ("hostname", ["a", "a-b.example.com", "a" * 63], ["-a", "a.", "a" * 64, ".".join(["a" * 60] * 5), "xn--X", "a_b"]),
    ],
)
def test_formats_are_exact_where_a_loose_form_would_not_do(name: str, some: list[str], none: list[str]) -> None:
    at = start({"type": "string", "format": name})
    assert [text for text in some if not admits(at, text)] == []
    assert [text for text in none if admits(at, text)] == []


def test_a_format_beside_a_pattern_and_all_of_binds_too() -> None:
    at = start({"type": "string", "format": "date", "pattern": "^2024", "allOf": [{"pattern": "9$"}]})
    assert admits(at, "2024-02-29")
    assert not any(admits(at, text) for text in ("2023-02-09", "2024-02-30", "2024-02-28", "2024x9"))
