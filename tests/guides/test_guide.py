"""Guides by themselves: what each accepts, that whatever ends conforms, and that hostile ones are refused."""

from __future__ import annotations

import asyncio
import json
import random

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.json_schemas import SCHEMAS

from quintet.errors import BadRequest
from quintet.guides.check import MAX_BYTES, GuideCheck
from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.protocol import GuideError
from quintet.guides.translate import BLANKS, translate, verify
from quintet.request import Guide, GuideKind

EOS = 256
BYTES = [*(bytes([byte]) for byte in range(256)), b""]
SCHEMA, OBJECT, REGEX, GRAMMAR, CHOICE = (
    *(GuideKind.JSON_SCHEMA, GuideKind.JSON_OBJECT, GuideKind.REGEX, GuideKind.GRAMMAR),
    GuideKind.CHOICE,
)


def matcher(kind: GuideKind, guide: object) -> Matcher:
    text = guide if isinstance(guide, str) else json.dumps(guide)
    return Compiler(BYTES, frozenset({EOS}), 257).compile(translate(kind, text))


def allowed(at: Matcher) -> list[int]:
    mask = np.zeros(9, np.uint32)
    if not at.fill(mask):
        return []
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def verdict(kind: GuideKind, guide: object, text: str) -> str:
    """accepted; incomplete: more must follow; rejected."""
    at = matcher(kind, guide)
    for byte in text.encode():
        if byte not in allowed(at) or not at.consume(byte):
            return "rejected"
    return "accepted" if EOS in allowed(at) else "incomplete"


def lists(kind: GuideKind, guide: object, accepted: list[str], rejected: list[str], incomplete: list[str]) -> list[object]:
    texts = [(text, "accepted") for text in accepted] + [(text, "rejected") for text in rejected]
    return [(kind, guide, text, wanted) for text, wanted in [*texts, *((text, "incomplete") for text in incomplete)]]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name"],
    "additionalProperties": False,
}

CASES = [
    *lists(OBJECT, "", ["{}", '{ "a": [1, null]}'], ["[]", "1", '{"a" : 1,}', '{"\\u0061":1}'], ["{", '{"a":']),
    *lists(
        SCHEMA,
        PERSON,
        ['{"name":"Bob"}', '{"name": "é€😀", "age": 130}'],
        ['{"age":1}', '{"name":"Bobb"}', '{"name":"a","age":131}', '{"x'],
        ['{"na'],
    ),
    *lists(
        SCHEMA,
        {"type": "array", "maxItems": 2, "minItems": 1, "items": {"enum": [1, "b"]}},
        ["[1]", '["b", 1]'],
        ["[]", "[1,1,1]"],
        ["[1,"],
    ),
    *lists(SCHEMA, {"type": "string", "pattern": "^[ab]{2}$"}, ['"ab"'], ['"abc"', '"c'], ['"a']),
    *lists(
        SCHEMA,
        {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}},
        ["[]", "[[],[[]]]"],
        ["[1]"],
        ["[["],
    ),
    *lists(SCHEMA, {"properties": {"extends": {"type": "null"}}, "type": "object"}, ['{"extends":null}'], ['{"extends":1'], []),
    *lists(SCHEMA, {"type": "object", "properties": {"a/b": {"type": "null"}}}, ['{"a/b":null}'], ['{"a/b":1', '{"a\\/b":1}'], []),
    *lists(SCHEMA, {"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"], []),
    *lists(
        SCHEMA,
        {"type": "object", "propertyNames": {"type": "string"}, "properties": {"a": {"type": "array", "uniqueItems": False}}},
        ['{"a":[1,1]}'],
        ['{"a":1'],
        [],
    ),
    *lists(REGEX, r"[a-c]+\d{2}", ["a12", "abc00"], ["12", "a1b", "a\u0661"], ["a", "a1"]),
    *lists(REGEX, 'a/b"\n', ['a/b"\n'], ["a\\"], ["a/"]),
    *lists(REGEX, r"a\\", ["a\\"], ["b"], ["a"]),
    *lists(REGEX, "(a+)+b", ["ab", "aaaab"], ["b", "abb"], ["aaaa"]),
    *lists(CHOICE, ["yes", 'n"o\n', "é", "ye"], ["yes", "ye", 'n"o\n', "é"], ["x", "yess"], ["y"]),
    *lists(CHOICE, ["", "a"], ["", "a"], ["b"], []),
    *lists(CHOICE, (odd := ["a\x7f", "\x00", "\x85", "\u2028", "\ufeff", "/"]), odd, ["\x7f", "\x01"], ["a"]),
    *lists(SCHEMA, {"type": "object", "required": ["\x7f"]}, ['{"\x7f":1}'], ['{"\\u007f":1}'], []),
    *lists(GRAMMAR, 'root ::= "yes" | "no" root', ["yes", "nonoyes"], ["yesno"], ["no"]),
    *lists(GRAMMAR, 'start: A ("," A)*\nA: /[0-9]+/', ["1", "1,22"], ["a", "1,,"], ["1,"]),
]


@pytest.mark.parametrize(("kind", "guide", "text", "wanted"), CASES)
def test_what_a_guide_accepts(kind: GuideKind, guide: object, text: str, wanted: str) -> None:
    assert verdict(kind, guide, text) == wanted


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"exclusiveMaximum": -20.229999999999997}, ["-20.23", "-20.230000", "-21"], ["-20.2299999999999971", "-20.2"]),
        ({"exclusiveMinimum": 20.229999999999997}, ["20.23", "21"], ["20.2299999999999971", "20.229999999999997"]),
        ({"exclusiveMaximum": 20.229999999999997, "maximum": 7.5}, ["7.5", "3"], ["7.6"]),
        ({"exclusiveMaximum": 9007199254740991}, ["9007199254740990", "3.5"], ["9007199254740990.9999", "9007199254740991"]),
        ({"exclusiveMaximum": 5.0, "exclusiveMinimum": 2}, ["4.9", "2.1", "3"], ["5", "2", "5.0"]),
    ],
)
def test_an_exclusive_bound_is_not_reached_as_a_double_either(bounds: dict[str, float], inside: list[str], outside: list[str]) -> None:
    schema = {"type": "number", **bounds}
    assert [text for text in inside + outside if verdict(SCHEMA, schema, text) == "accepted"] == inside
    valid = jsonschema_rs.Draft202012Validator(schema).is_valid
    assert all(valid(json.loads(text)) for text in inside)
    assert not any(valid(json.loads(text)) for text in outside)


LARGE = [*(2**power + more for power in (53, 60, 63) for more in (-1, 0, 1)), 2**64 - 1, 1234567890123456789, 10**15 + 1, 10**17]


@pytest.mark.fault("H10")
@pytest.mark.parametrize(
    ("schema", "last", "beyond"),
    [
        ('{"const": N}', 0, 1),
        ('{"enum": ["other", N]}', 0, -1),
        ('{"properties": {}, "const": {"id": [N]}}', 0, 1),
        *((f'{{"type": "{kind}", "maximum": N}}', 0, 1) for kind in ("integer", "number")),
        *((f'{{"type": "{kind}", "minimum": N}}', 0, -1) for kind in ("integer", "number")),
        *((f'{{"type": ["null", "{kind}"], "exclusiveMaximum": N}}', -1, 0) for kind in ("integer", "number")),
        ('{"type": "integer", "minimum": N, "exclusiveMinimum": true}', 1, 0),
    ],
)
def test_a_number_of_a_schema_holds_to_the_last_digit_or_is_refused(schema: str, last: int, beyond: int) -> None:
    """The library has doubles, exact to 2^53, and integers that end at 2^63: what it would round is not given to it."""
    around = '{"id":[%d]}' if "id" in schema else "%d"
    for number in (*LARGE, *(-number for number in LARGE)):
        text = schema.replace("N", str(number))
        try:
            verify(SCHEMA, translate(SCHEMA, text))
        except GuideError as error:
            assert abs(number) >= 2**53 and (str(number) in str(error) or "integer range" in str(error)), error
        else:
            assert verdict(SCHEMA, text, around % (number + last)) == "accepted"
            assert verdict(SCHEMA, text, around % (number + beyond)) != "accepted"


@pytest.mark.parametrize(
    "schema", ['{"const": 1e400}', '{"enum": [12345678901234567890.5]}', '{"maximum": -1e400}', '{"multipleOf": -3}', '{"multipleOf": 0}']
)
def test_a_number_that_no_double_or_no_schema_has_is_refused_by_its_keyword(schema: str) -> None:
    with pytest.raises(GuideError, match=next(iter(json.loads(schema)))):
        translate(SCHEMA, schema)


@pytest.mark.parametrize(
    ("number", "text"), [(0.1, "0.1"), (-0.0, "-0"), (5.0, "5"), (1e-7, "0.0000001"), (0.30000000000000004, "0.30000000000000004")]
)
def test_a_fraction_that_is_the_only_value_is_what_comes(number: float, text: str) -> None:
    assert verdict(SCHEMA, {"const": number}, text) == verdict(SCHEMA, {"enum": ["a", number]}, text) == "accepted"


def test_schemas_in_a_grammar_are_enforced_like_others() -> None:
    """White space in them is bounded, and what cannot be enforced is refused; a string that looks like one is a string."""
    lark = 'start: "%json" A | %json {"type": "object"} // %json x\nA: /"%json"/'
    assert verdict(GRAMMAR, lark, '%json"%json"') == verdict(GRAMMAR, lark, '{"a": 1}') == "accepted"
    assert verdict(GRAMMAR, lark, "{" + " " * BLANKS + "}") == "accepted"
    assert verdict(GRAMMAR, lark, "{" + " " * (BLANKS + 1)) == "rejected"
    for schema in ('{"minProperties": 2}', '{"x-guidance": {"lenient": true}}', '{"x\\u002dguidance": {}}', "1", "{"):
        with pytest.raises(GuideError):
            translate(GRAMMAR, f"start: %json {schema}")


@pytest.mark.parametrize("not_code", ["# the %json rule", "// the %json rule", '# "', "# /"])
def test_a_comment_in_a_grammar_is_one_whichever_way_it_begins(not_code: str) -> None:
    lark = f'start: A | %json {{"type": "object"}} {not_code}\nA: /[0-9]+/ {not_code}'
    assert verdict(GRAMMAR, lark, "12") == verdict(GRAMMAR, lark, "{}") == "accepted"
    assert verdict(GRAMMAR, lark, "{" + " " * (BLANKS + 1)) == "rejected"


@pytest.mark.parametrize("rule", ["a[temperature=0.5]", 'a[stop="]", temperature = 1]'])
def test_a_temperature_of_a_rule_is_refused_and_one_that_is_none_is_not(rule: str) -> None:
    """It had no effect: the library leaves it to whoever draws the tokens."""
    with pytest.raises(GuideError, match="temperature"):
        translate(GRAMMAR, f"start: a\n{rule}: /b+/")
    named = 'start: temperature "temperature=" A // temperature=1\ntemperature[capture="temperature=1"]: "a"\nA: /temperature=/'
    assert verdict(GRAMMAR, named, "atemperature=temperature=") == "accepted"


def test_a_schema_behind_a_regular_expression_of_two_lines_is_enforced_like_others() -> None:
    """Taken for a comment, it reached the library as it was."""
    lark = 'start: A | /x\n//y/ %json {"type": "object"}\nA: /[0-9]+/'
    assert verdict(GRAMMAR, lark, "x\ny{}") == "accepted"
    assert verdict(GRAMMAR, lark, "x\ny{" + " " * (BLANKS + 1)) == "rejected"


def test_the_end_of_sequence_comes_exactly_where_the_text_conforms() -> None:
    at = matcher(REGEX, "ab?")
    ends = [EOS in allowed(at)]
    for byte in b"ab":
        assert at.consume(byte)
        ends.append(EOS in allowed(at))
    assert ends == [False, True, True]
    assert allowed(at) == [EOS]


@pytest.mark.fault("B08")
def test_white_space_in_json_is_bounded() -> None:
    """Before the object, in it and behind it."""
    for start, more in (("", 0), ("{", BLANKS), ('{"a":', BLANKS), ("{}", 0)):
        assert verdict(OBJECT, "", start + " " * more) != "rejected"
        assert verdict(OBJECT, "", start + " " * (more + 1)) == "rejected"


@pytest.mark.fault("B12")
@pytest.mark.parametrize("bound", [1999, 2000, 2001, 5000])
def test_repetition_bounds_hold(bound: int) -> None:
    for schema, one, join, around in (
        ({"type": "string", "maxLength": bound, "minLength": bound}, "a", "", '""'),
        ({"type": "array", "maxItems": bound, "minItems": bound, "items": {"const": 0}}, "0", ",", "[]"),
    ):
        at = matcher(SCHEMA, schema)
        for byte in (around[0] + join.join([one] * bound)).encode():
            assert at.consume(byte)
        ahead = allowed(at)
        assert ord(around[1]) in ahead and ord(one) not in ahead and ord(",") not in ahead


@pytest.mark.fault("H10")
@settings(max_examples=100, deadline=None)
@given(SCHEMAS, st.randoms(use_true_random=False))
def test_what_ends_conforms_to_its_schema(schema: dict[str, object], rng: random.Random) -> None:
    """Random walks through random schemas, judged by an independent validator. What cannot be enforced is refused, never weakened."""
    try:
        grammar = translate(SCHEMA, json.dumps(schema))
        verify(SCHEMA, grammar)
    except GuideError:
        return
    guides = Compiler(BYTES, frozenset({EOS}), 257)
    valid = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for _ in range(3):
        at, text = guides.compile(grammar), bytearray()
        while len(text) < 400 and (options := allowed(at)):
            likely = [byte for byte in options if byte in (*b'"}],0a', EOS)] or options
            byte = rng.choice(likely if rng.random() < 0.8 else options)
            if byte == EOS:
                assert valid.is_valid(json.loads(text)), text
                break
            text.append(byte)
            assert at.consume(byte)
        assert not at.error, text  # every way on from a text that may still conform leads somewhere


def test_a_token_that_ends_texts_is_no_text_of_a_guide() -> None:
    """Of an ordinary text: it would end one that does not conform."""
    again = len(BYTES)
    at = Compiler([*BYTES, b"("], frozenset({EOS, ord("(")}), again + 1).compile(translate(REGEX, r"a\(b"))
    for byte, token in ((b"a", ord("a")), (b"(", again), (b"b", ord("b"))):
        assert allowed(at) == [token], byte
        assert at.consume(token)
    assert allowed(at) == [ord("("), EOS]


HOSTILE: dict[str, tuple[GuideKind, object]] = {
    "look-around": (REGEX, "(?=a)b"),
    "back-reference": (REGEX, r"(a)\1"),
    "regex of parentheses": (REGEX, "(" * 60_000 + ")" * 60_000),
    "unclosed group": (REGEX, "("),
    "a backslash before nothing": (REGEX, "abc\\"),
    "a backslash behind an escaped one": (REGEX, r"a\\" + "\\"),
    "Lark of parentheses": (GRAMMAR, "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "GBNF of parentheses": (GRAMMAR, "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "only left recursion": (GRAMMAR, 'root ::= root "a"'),
    "only itself": (GRAMMAR, "root ::= root"),
    "chain of rules": (GRAMMAR, "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000)), 'r5000 ::= "a"'])),
    "alternatives": (GRAMMAR, "root ::= " + " | ".join(f'"a{i}"' for i in range(20_000))),
    "noise": (GRAMMAR, bytes(random.Random(1).randrange(1, 256) for _ in range(60_000)).decode("latin-1")),
    "nothing": (GRAMMAR, ""),
    "weakened": (GRAMMAR, 'start: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}'),
    "circle": (SCHEMA, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "chain of references": (
        SCHEMA,
        {"$ref": "#/$defs/0", "$defs": {**{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(6000)}, "6000": {}}},
    ),
    "remote reference": (SCHEMA, {"$ref": "http://127.0.0.1:1/x.json"}),
    "enumeration": (SCHEMA, {"enum": [f"v{i}" for i in range(10**6)]}),
    "nested schemas": (SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000),
    "type 123": (SCHEMA, {"type": 123}),
    "type hiccup": (SCHEMA, {"type": "hiccup"}),
    "empty type": (SCHEMA, {"type": ""}),
    "a number": (SCHEMA, 123),
    "no JSON": (SCHEMA, "{"),
    "bad pattern": (SCHEMA, {"type": "string", "pattern": "("}),
    "unsatisfiable": (SCHEMA, {"type": "string", "minLength": 5, "maxLength": 2}),
    "lenient": (SCHEMA, {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}),
    "lone surrogate": (SCHEMA, '{"const": "\ud800"}'),
    "no choices": (CHOICE, []),
    "choices of numbers": (CHOICE, [1]),
}


def checked(*guides: Guide, check: GuideCheck | None = None) -> dict[Guide, str]:
    """What ``GuideCheck.translate`` says, in a loop and with processes of their own."""

    async def go() -> dict[Guide, str]:
        made = check or GuideCheck()
        try:
            return await made.translate(guides)
        finally:
            await made.close()

    return asyncio.run(go())


@pytest.mark.fault("A20", "B11", "B12")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_guides_are_refused_and_the_process_stays(name: str) -> None:
    """Processor time is bounded, so that a busy machine only takes longer."""
    kind, guide = HOSTILE[name]
    with pytest.raises(BadRequest) as caught:
        checked(Guide(kind, guide if isinstance(guide, str) else json.dumps(guide), "response_format"))
    assert caught.value.param == "response_format"
    assert str(caught.value).isprintable() and str(caught.value).isascii() and len(str(caught.value)) < 400


@pytest.mark.fault("B12", "H10")
@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(
            ("uniqueItems", True),
            ("contains", {}),
            ("not", {}),
            ("if", {}),
            ("dependentRequired", {"a": ["b"]}),
            ("dependentSchemas", {"a": {}}),
        ),
        *(("propertyNames", {"pattern": "a"}), ("unevaluatedProperties", False), ("minProperties", 2), ("divisibleBy", 2), ("extends", {})),
        *(("disallow", "string"), ("dependencies", {"a": ["b"]}), ("oneOf", [{"type": "integer"}, {"type": "number"}])),
    ],
)
def test_a_keyword_that_cannot_be_enforced_is_named(keyword: str, value: object) -> None:
    schema = {"type": "object", "properties": {"x": {keyword: value}}}
    with pytest.raises(BadRequest, match=keyword):
        checked(Guide(SCHEMA, json.dumps(schema), "f"))


def test_the_longest_guide_is_taken_or_refused_by_its_size() -> None:
    assert checked(Guide(CHOICE, json.dumps(["a" * (MAX_BYTES // 8)]), "f"))
    with pytest.raises(BadRequest, match="at most"):
        checked(Guide(CHOICE, json.dumps(["a" * MAX_BYTES]), "f"))
