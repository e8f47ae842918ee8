"""Bodies that two JSON readers could understand differently are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.dialects.json_guard import LONG_BYTES, MAX_DEPTH, MAX_DIGITS, MAX_PARTS, MAX_TEXTS, MAX_VALUES, decode_object
from quintet.dialects.openai.dialect import OpenAI
from quintet.errors import BadRequest


def refusal(body: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode_object(body)
    return caught.value


@pytest.mark.fault("A01")
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b'"x"', b"5", b"true", b"{", b"{}}", b"{} {}", b"{'a':1}", b"// c\n{}", b"{}\x00"),
        *(b'{"a":1,}', b'{"a":01}', b'{"a":"\x01"}', b'{"a":+1}', b'{"a":.5}', b'{"a":nan}', b'{"a":0x10}', b'{"a":"\\x"}'),
    ],
)
def test_what_is_not_one_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.fault("A12")
@pytest.mark.parametrize(
    "body",
    [
        *("{}".encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")),
        *('{"a":"\u4e2d"}'.encode("gbk"), '{"a":"\u00e9"}'.encode("latin-1")),
        *(b'{"a":"\xc0\xaf"}', b'{"a":"\xe2\x82"}', b'{"a":"\xed\xa0\x80"}'),
    ],
)
def test_only_utf_8_without_a_byte_order_mark_is_read(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_byte_order_mark_is_called_by_its_name(mark: bytes) -> None:
    assert str(refusal(mark + b"{}")) == "The body must be UTF-8 without a byte order mark."


def test_an_empty_body_is_called_empty() -> None:
    assert str(refusal(b"")) == "The body is empty; it must be a JSON object."


def test_a_bad_byte_is_named_by_its_offset() -> None:
    assert "offset 6" in str(refusal(b'{"a":"\xff"}'))


@pytest.mark.fault("A07")
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(("shape", "param"), [('{"t":%s}', "t"), ('{"a":{"b":[1,%s]}}', "a.b[1]")])
def test_a_number_that_is_not_finite_is_refused_by_name(text: str, shape: str, param: str) -> None:
    error = refusal((shape % text).encode())
    assert (error.param, error.got) == (param, text.replace("1e999", "Infinity")), "an overflow is told as what it was read as"


@pytest.mark.fault("A11")
@pytest.mark.parametrize("half", ["\\ud800", "\\udfff", "\\udc00\\ud800", "ok\\ud83dx"])
def test_half_a_surrogate_pair_is_refused_by_name_and_offset(half: str) -> None:
    error = refusal(b'{"stop":["a","%b"]}' % half.encode())
    assert error.param == "stop[1]"
    assert f"offset {2 if half.startswith('ok') else 0}" in str(error)
    assert refusal(b'{"%b":1}' % half.encode()).param.isascii()


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert decode_object(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.fault("A23")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"b":{"a":1,"a":2}}', "b.a"),
        (b'{"a":1,"b":[0,{"c":{"a":{},"a":2}}]}', "b[1].c.a"),
        (b'{"b":{"a":{"c":1,"c":2},"a":3}}', "b.a"),
    ],
)
def test_a_duplicate_key_is_refused_by_name_and_place(body: bytes, param: str) -> None:
    assert (refusal(body).param, refusal(body).code) == (param, "duplicate_key")


@pytest.mark.fault("A24")
@pytest.mark.parametrize("depth", [MAX_DEPTH, 1000, 16_000])
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(depth: int, left: str, right: str) -> None:
    inner = "1" if left != "[" else ""
    assert "nested deeper" in str(refusal(f'{{"a":{left * depth}{inner}{right * depth}}}'.encode()))


@pytest.mark.fault("A24")
@pytest.mark.parametrize("part", ["[]", "{}", "[1]", "1.5", "1e5", "true", "[" * 64 + "]" * 64])
def test_more_parts_than_any_request_needs_are_refused_before_they_are_made(part: str) -> None:
    for body in (f'{{"a":[{",".join([part] * MAX_PARTS)}]}}'.encode(), b"[" * 1_000_000):
        assert str(refusal(body)) == "The body holds more than 32768 members, arrays, objects and fractions."
        assert refusal(body).code == "too_many_values"


def test_as_many_parts_as_there_may_be_are_read() -> None:
    inside = ",".join(["[]"] * (MAX_PARTS - 3))  # beside an object, its member and the array around them
    assert decode_object(f'{{"a":[{inside}]}}'.encode()) == {"a": [[]] * (MAX_PARTS - 3)}
    assert refusal(f'{{"a":[{inside},[]]}}'.encode()).code == "too_many_values"


@pytest.mark.parametrize("text", ["[{:.eE" * 100_000, '\\"' * 100_000, "\\\\"])
def test_texts_may_hold_as_many_as_they_like(text: str) -> None:
    body = f'{{"a":"{text}","b":["{text}",1]}}'.encode()
    assert decode_object(body) == json.loads(body)


@pytest.mark.fault("A24")
@pytest.mark.parametrize("text", ['""', '"\\\\"', '"a\\"b"', '"\\\\\\""'])
def test_more_texts_than_any_request_has_are_refused_before_they_are_made(text: str) -> None:
    assert decode_object(f'{{"a":[{",".join([text] * (MAX_TEXTS - 1))}]}}'.encode())["a"] == [json.loads(text)] * (MAX_TEXTS - 1)
    refused = refusal(f'{{"a":[{",".join([text] * MAX_TEXTS)}]}}'.encode())
    assert (str(refused), refused.code) == ("The body holds more than 65536 texts.", "too_many_values")


def test_half_a_million_token_ids_are_read_and_no_more() -> None:
    assert decode_object(b'{"a":[%b]}' % b",".join([b"7"] * MAX_VALUES)) == {"a": [7] * MAX_VALUES}
    refused = refusal(b'{"a":[%b]}' % b",".join([b"7"] * (MAX_VALUES + 2)))
    assert (str(refused), refused.code) == ("The body holds more than 524288 values.", "too_many_values")


def test_nesting_up_to_the_limit_is_read() -> None:
    inside = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    decode_object(f'{{"a":{inside}}}'.encode())


def test_integers_stay_exact() -> None:
    assert decode_object(b'{"a":18446744073709551616,"b":-9223372036854775809}') == {"a": 2**64, "b": -(2**63) - 1}


@pytest.mark.fault("A10")
def test_an_integer_of_thousands_of_digits_is_refused() -> None:
    assert "digits" in str(refusal(b'{"a":%b}' % (b"1" * 100_000)))


@pytest.mark.fault("G04")
def test_what_a_refusal_says_is_short_printable_ascii() -> None:
    for body in (b'{"%b":NaN}' % (b"k" * 100_000), b'{"\\r\\n\\u00e9":NaN}', b'["%b"]' % (b"x" * 100_000)):
        error = refusal(body)
        assert len(str(error)) < 250
        assert (str(error) + error.param).isascii()
        assert (str(error) + error.param).isprintable()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), values))
def test_every_other_object_is_read_as_it_was_written(value: dict[str, object]) -> None:
    assert decode_object(json.dumps(value).encode()) == value
    assert decode_object(json.dumps(value, ensure_ascii=False).encode()) == value


NAMES = st.sampled_from(["model", "prompt", "max_tokens", "n", "stop", "seed", "stream", "stream_options", "logit_bias", "best_of", "x"])


@settings(deadline=None)
@given(
    st.binary()
    | st.text().map(str.encode)
    | st.lists(st.sampled_from(list('{}[]",:\\ud8eE+-.019ntfNaIy\u00e9 ')), max_size=40).map(lambda parts: "".join(parts).encode())
    | st.dictionaries(NAMES | st.text(), values | st.floats()).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    try:
        OpenAI().parse(body, 7)
    except BadRequest as error:
        assert str(error)


@pytest.mark.fault("B01")
@pytest.mark.parametrize("number", ["1" * (MAX_DIGITS + 1), "-" + "1" * 4200, "0." + "1" * (MAX_DIGITS + 1)])
def test_a_number_of_many_digits_is_for_small_bodies_alone(number: str) -> None:
    """12 MiB of integers of 4,200 digits took 0.4 s to read, in which nothing else ran."""
    small = f'{{"a":{number},"b":"\\\\"}}'
    assert decode_object(small.encode())
    assert "no number of more than 100 digits" in str(refusal(f'{small[:-1]},"c":"{"x" * LONG_BYTES}"}}'.encode()))


@pytest.mark.parametrize("text", ["1" * 2 * LONG_BYTES, '\\\\\\"' + "1" * 2 * LONG_BYTES, '\\"1' * LONG_BYTES])
def test_a_text_may_have_as_many_digits_as_it_likes(text: str) -> None:
    assert decode_object(f'{{"prompt":"{text}","n":{"1" * MAX_DIGITS}}}'.encode())["n"] == int("1" * MAX_DIGITS)
