"""Hostile requests for completions, as many as one likes, each from a seed and a number alone.

A body begins as a request that the dialect's page allows, is spoilt value by value and key by key as JSON text (so that it may hold what
no JSON writer writes), and then perhaps byte by byte; some are sent under headers that do not fit them.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quintet.dialects.catalog import Provider
from quintet.dialects.fields import Boolean, Field, Integer, Number, Object, OneOf, Positive, Prompts, Status, Stop, String

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request's body and headers."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", JSON),)


def deep(opening: str, inner: str, closing: str, times: int) -> str:
    return opening * times + inner + closing * times


NUMBERS = (
    *("0", "-0", "-0.0", "1", "2", "5", "-1", "-2", "1.0", "0.5", "1.5", "2e0", "1E2", "0.1e1", "100.5", "128", "129", "1000000"),
    *("1000000000", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "5e-324", "1e-400", "1e308", "-1e308", "1e300", "2147483647"),
    *("2147483648", "-2147483649", "9007199254740991", "9007199254740993", "9007199254740993.0", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616"),
    *("1" + "0" * 100, "-1" + "0" * 400, "9" * 4300, "9" * 5000, "1." + "0" * 5000, "01", "+1", ".5", "1.", "0x10", "1_000", "--1", "1e"),
    *("1e+", "\u0661"),
)
STRINGS = (
    *('""', '" "', '"5"', '"true"', '"null"', '"a"', '"e"', '"aaaa"', '"\\u0000"', '"a\\u0000b"', '"\\u001f\\u007f\\u0085"', '"\x01"'),
    *("'a'", '"\\ud800"', '"a\\udfff"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u2028"', '"\ufeffa"', '"\u00e9\u4e2d\U0001f600"'),
    *('"\\x41"', '"../../etc/passwd"', '"https://localhost/x"', '"<image>"', '"{{7*7}}"', '"\\r\\nx: y"', '"</s>"', '"<|endoftext|>"'),
    *('"' + "x" * 257 + '"', '"' + "x" * 513 + '"', '"' + "x" * 1025 + '"', '"' + "a" * 5000 + '"', '"' + "\\n" * 3000 + '"'),
    *('"' + "\u0301" * 1000 + '"', '"abc', '"none"', '"high"', '"truncate"', '"error"', '"json_object"', '"root"', '"golden"', '"raw"'),
    *('"priority"',),
)
LISTS = (
    *("[]", "[[]]", "[[[]]]", "[null]", "[true]", "[{}]", '[""]', '["a"]', '["a",1]', '["a",[1]]', "[1]", "[1,2,3]", "[1.0]", "[1.5]"),
    *("[-1]", "[256]", "[257]", "[2147483648]", "[1e999]", "[NaN]", "[[1],[2,3]]", "[[1],[]]", '[[1],"a"]', "[[1,null]]", "[1,2", "[1,]"),
    *("[,1]", '["a","b","c","d","e"]', "[" + ",".join(['"a"'] * 33) + "]", "[" + ",".join(['"a"'] * 129) + "]"),
    *("[" + ",".join(["1"] * 3000) + "]", "[" + ",".join(["1"] * 5000) + "]", deep("[", "", "]", 63), deep("[", "", "]", 65)),
    *(deep("[", "1", "]", 900), deep("[", "", "", 5000)),
)
OBJECTS = (
    *("{}", '{"a":1}', '{"":1}', '{"a":1,"a":1}', '{"a":{"a":1,"a":2}}', '{"a":null}', "{1:2}", '{"a"}', '{"a":1,}', '{"type":"text"}'),
    *('{"type":5}', '{"type":"json_object"}', '{"type":"json_schema"}', '{"type":"nonsense"}', '{"type":"grammar","grammar":""}'),
    *('{"include_usage":1}', '{"type":"json_schema","json_schema":{"type":"hiccup"}}'),
    *('{"type":"json_schema","json_schema":{"type":123}}', '{"include_usage":true}', '{"type":"json_schema","schema":{"$ref":"#"}}'),
    *('{"type":"json_schema","json_schema":{"$ref":"http://localhost/x"}}',),
    *('{"type":"json_schema","json_schema":{"type":"string","pattern":"("}}', '{"type":"json_schema","json_schema":"{\\"a\\":"}'),
    *('{"type":"grammar","grammar":"root ::= root"}', '{"type":"grammar","grammar":"root ::= \\u0000"}'),
    *('{"type":"enabled","budget_tokens":1}', '{"type":"disabled"}', '{"type":"enabled"}'),
    *('{"include_usage":true,"include_obfuscation":false}', '{"include_usage":null,"x":1}', deep('{"a":', "1", "}", 62)),
    *(deep('{"a":', "1", "}", 66), deep('{"a":', "1", "}", 900), deep('{"a":', "", "", 5000)),
)
HUGE = (
    *(deep("[", "", "]", 100_000), deep('{"a":', "1", "}", 100_000), '"' + "A" * 1_000_000 + '"', '"' + "\\u00e9" * 300_000 + '"'),
    *("[" + ",".join(['""'] * 100_000) + "]", "[" + ",".join(["1"] * 900_000) + "]", "[" + ",".join(["[]"] * 600_000) + "]"),
    *("{" + ",".join(f'"{key}":1' for key in range(100_000)) + "}", "[" + ",".join(["null"] * 400_000) + "]", '"' + " " * 2_200_000 + '"'),
)
"""Far more of something than any field takes."""

BIAS_KEYS = (
    *("0", "5", "101", "255", "256", "257", "-1", "-0", "00", "05", "+5", " 12 ", "1.5", "1e3", "1_000", "\u0661\u0662", "", "a", "0x1"),
    *("\u00b2", "2147483647", "2147483648", "9" * 10, "9" * 5000, "5\\u0000", "\\ud800", "5\\n"),
)
BIAS = ("0", "1", "-100", "100", "100.0001", "-101", "1e999", "NaN", '"5"', "null", "true", "[]", "{}", "1e308", "5e-324")
KEYS = (
    *("Prompt", "PROMPT", "prompt ", "prompt\\u0000", "", "\\ud800", "\u00e9", "a" * 300, "__proto__", "constructor", "x\\r\\ny: z"),
    *('\\"', "N", "api_base", "user_config", "prompt_embeds", "chat_template", "chat_parser", "mm_processor_kwargs"),
    *("kv_transfer_params", "cache_salt", "guided_json", "guided_regex", "structured_outputs", "min_tokens", "ignore_eos", "messages"),
    *("tools", "n_predict", "images", "truncate_prompt"),
)
BYTES = (
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\x00", b"\x1f", b"\x80", b"\xfe\xff"),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"-", b"e9999", b"\\u", b"\\ud800", b" ", b"\n", b"//", b"NaN"),
    *(b"\x1f\x8b", b"\xdb\xc0"),
)
HEADERS = (
    *((("content-type", value),) for value in ("text/plain", "multipart/form-data; boundary=x", "application/json; charset=utf-16", "a;b")),
    *((("content-type", JSON), ("content-encoding", value)) for value in ("gzip", "deflate", "br", "gzip, gzip", "identity", "x" * 500)),
    *((("content-type", JSON), ("content-length", value)) for value in ("-1", "abc", "99999999999999999999", "3000000", "0")),
    *((("content-type", JSON), ("x-request-id", value)) for value in ("", "a" * 129, "x y", "../../etc", "' or 1=1", "\xe9", "fine-1")),
    *((("content-type", JSON), ("x-completions-dialect", value)) for value in ("", "none", "openai", "TOGETHER", "cerebras, novita")),
    *((("content-type", JSON), ("idempotency-key", value)) for value in ("x" * 10_000, "\x85", "")),
    *((), (("content-type", ""),), (("content-type", JSON), ("origin", "http://evil"))),
    *((("content-type", "application/x-www-form-urlencoded"),),),
)
PACKED = (
    *(b"", b"\xc1", b"\x80", b"\x81", b"\x81\xa1a", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xffabc"),
    *(b"\x91" * 100_000, b"\x81\xa6prompt\xa1a", b"\x81\xa6prompt\xc4\x01a", b"\x82\xa1a\x01\xa1a\x02", b"\x81\x01\x02"),
    *(b"\x81\xa6prompt\xa1\xff", b"\x81\xc0\xc0", b"\x81\xa4seed\xcf" + b"\xff" * 8, b"\x81\xa4seed\xcb\x7f\xf8" + b"\0" * 6),
    *(b"\x81\xa6prompt\xd6\xff\0\0\0\0", b"\x81\xa1a" * 100_000),
)


class Bodies:
    """Requests for one dialect.

    Args:
        model: a name that is served.
    """

    def __init__(self, provider: Provider, model: str, seed: int) -> None:
        self._provider = provider
        self._model = model
        self._seed = seed
        self._fields = [field for field in provider.fields if "." not in field.name]
        self._members = [field for field in provider.fields if "." in field.name]

    def number(self, number: int) -> Hostile:
        """The request of this number; always the same."""
        rng = random.Random(f"{self._provider.name}/{self._seed}/{number}")
        if self._provider.packed and rng.random() < 0.3:
            return self._packed(rng)
        if rng.random() < 0.01:
            return Hostile(b"".join(rng.choices(BYTES, k=rng.randrange(8))))
        text = self._text(rng)
        body = self._encoded(rng, text)
        if rng.random() < 0.25:
            body = spoilt(rng, body)
        return Hostile(body, rng.choice(HEADERS)) if rng.random() < 0.04 else Hostile(body)

    def _text(self, rng: random.Random) -> str:
        pairs: dict[str, str] = {"prompt": '"ab"', "max_tokens": rng.choice(("1", "1", "2", "0"))}
        if rng.random() < 0.7:
            pairs["model"] = json.dumps(self._model)
        for field in rng.choices(self._fields, k=rng.randrange(5)):
            pairs[field.name] = allowed(rng, field)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 4))):
            self._spoil_value(rng, pairs)
        parts = [f'"{key}":{value}' for key, value in pairs.items()]
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            self._spoil_key(rng, parts, pairs)
        rng.shuffle(parts)
        return "{" + ",".join(parts) + "}"

    def _spoil_value(self, rng: random.Random, pairs: dict[str, str]) -> None:
        field = rng.choice(self._fields)
        if field.name == "logit_bias" and rng.random() < 0.8:
            some = rng.choices(BIAS_KEYS, k=rng.randrange(1, 4))
            pairs[field.name] = "{" + ",".join(f'"{key}":{rng.choice(BIAS)}' for key in some) + "}"
        elif rng.random() < 0.15 and self._members:
            member = rng.choice(self._members)
            outer, _, inner = member.name.partition(".")
            kept = f'"type":"{rng.choice(("json_schema", "text", "grammar", "enabled"))}",' if rng.random() < 0.5 else ""
            pairs[outer] = f'{{{kept}"{inner}":{self._value(rng)}}}'
        else:
            pairs[field.name] = self._value(rng)

    def _value(self, rng: random.Random) -> str:
        if rng.random() < 0.0008:
            return rng.choice(HUGE)
        kind = rng.choice((NUMBERS, NUMBERS, STRINGS, STRINGS, LISTS, OBJECTS, ("null", "true", "false", "", "nul", "None")))
        return rng.choice(kind)

    def _spoil_key(self, rng: random.Random, parts: list[str], pairs: dict[str, str]) -> None:
        if rng.random() < 0.4:  # the same twice
            key = rng.choice(list(pairs))
            parts.append(f'"{key}":{rng.choice((pairs[key], self._value(rng)))}')
        elif rng.random() < 0.3:
            field = rng.choice(self._fields).name
            parts.append(f'"{rng.choice((field.upper(), field.title(), field + " ", field + chr(92) + "u0000"))}":1')
        else:
            parts.append(f'"{rng.choice(KEYS)}":{self._value(rng)}')

    def _encoded(self, rng: random.Random, text: str) -> bytes:
        if rng.random() < 0.02:
            return text.encode(rng.choice(("utf-16", "utf-32", "utf-16-le", "utf-8-sig", "latin-1", "gb18030")), "replace")
        if rng.random() < 0.03:
            text = rng.choice((f"[{text}]", text + text, text + " x", f" \n{text}\n ", text[:-1], f"\x00{text}", "null", "[]", "5", ""))
        return text.encode("utf-8", "surrogatepass")

    def _packed(self, rng: random.Random) -> Hostile:
        """Compressed, in MessagePack, or both; or said to be."""
        headers, text = [("content-type", JSON)], self._text(rng)
        body = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.6:
            headers = [("content-type", rng.choice(("application/vnd.msgpack", "application/msgpack", "application/x-msgpack")))]
            body = rng.choice(PACKED) if rng.random() < 0.2 else _as_msgpack(text)
        if rng.random() < 0.3:
            body = spoilt(rng, body)
        if rng.random() < 0.5:
            headers.append(("content-encoding", "gzip"))
            body = gzip.compress(body, 1, mtime=0)
            if rng.random() < 0.4:
                body = rng.choice((spoilt(rng, body), body[: rng.randrange(len(body))], body + body, body + b"\0", BOMB, b""))
        return Hostile(body, tuple(headers))


BOMB = gzip.compress(b" " * 50_000_000, 9, mtime=0)
"""50 kB that become 50 MB."""


def _as_msgpack(text: str) -> bytes:
    """The body as a client with MessagePack would send it, if it is JSON at all."""
    try:
        return msgspec.msgpack.encode(json.loads(text))
    except (ValueError, RecursionError, OverflowError):
        return text.encode("utf-8", "surrogatepass")


def allowed(rng: random.Random, field: Field[Any]) -> str:
    """A value that the page allows, as JSON text; small where work grows with it."""
    kind = field.kind
    if field.status is Status.LATER or rng.random() < 0.1:
        return "null"
    match kind:
        case Boolean():
            value: object = rng.random() < 0.5
        case Integer(low, high):
            value = rng.choice([low or 0, max(low or 0, 1), min(high if high is not None else 3, 3)])
        case Number(low, high):
            value = rng.choice([low, high, rng.uniform(low, high)])
        case Positive(high):
            value = high * (1 - rng.random())
        case OneOf(words):
            value = rng.choice(words)
        case Prompts():
            value = rng.choice(["", "a", "The sky", ["a", "b"], [97], [[97], [98, 99]], "\u00e9\u4e2d"])
        case Stop():
            value = rng.choice(["a", "e ", ["t", "s"], []])
        case String():
            value = rng.choice(["", "a", "b c"]) if field.name != "model" else "golden"
        case Object():
            value = None
        case _:
            value = None
    return json.dumps(value)


def spoilt(rng: random.Random, body: bytes) -> bytes:
    """With a few bytes changed, cut out, doubled or put in; or cut short."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body = body[:at] + rng.choice(BYTES) + body[at:]
            case 1:
                body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
            case 2:
                body = body[:at] + body[at + rng.randrange(1, 9) :]
            case 3:
                body = body[:at] + body[at : at + 12] + body[at:]
            case 4:
                body = body[:at]
            case _:
                body = body + rng.choice(BYTES)
    return body


def described(request: Hostile, most: int = 400) -> str:
    """For a failure's message."""
    shown: Sequence[object] = request.headers
    return f"{len(request.body)} bytes {request.body[:most]!r} with {shown}"
