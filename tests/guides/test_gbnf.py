"""GBNF means what it means to llama.cpp."""

from __future__ import annotations

import contextlib
import time

import pytest
from tests.guides.test_guide import GRAMMAR, verdict

from quintet.guides.gbnf import is_gbnf, read
from quintet.guides.protocol import GuideError
from quintet.guides.terminals import notation
from quintet.guides.translate import translate, verify

# llama.cpp, grammars/json.gbnf and list.gbnf, as they stand there.
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
LIST = r"""
root ::= item+

# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""

ACCEPTED = [
    (JSON, r'{"a": [1, "x\n\u00e9", {}, null], "b": -0.5e3}'),
    (LIST, "- eggs\n- " + "\u00e9\U0001f95a\n"),
    ('root ::= ("a"{1,2}){1,3}', "aaaaaa"),
    ('root ::= ("a"*)*', "aaa"),
    ('root ::= (((("a"?)*)+)*)* "b"', "aab"),
    ("root ::= " + "(" * 12 + '"a"?' + ")*" * 12, "aaa"),
    ('root ::= ("a"+)? "b"', "b"),
    ('root ::= ("ab"{2})+ "c"', "ababababc"),
    ('root ::= (("a"?)+ "b" # c\n)*', "abb"),
    ('root ::= (x{1,2} )*\nx ::= ([0-9]+)? ","', "12,,3,"),
    (r'root ::= "\u0041\u00e9\U0001F389\x42\x0a\[\]"', "A\u00e9\U0001f389B\n[]"),
    (r'root ::= "\u0022\u005c\t\"\\%/"', '"\\\t"\\%/'),
    (r"root ::= [\u0041-\u0043]+ [\U0001F380-\U0001F390]", "ABC\U0001f389"),
    (r"root ::= [\x41-\x43\u002d\u005d\u005e]+", "A-]^"),
    (r"root ::= [^\]]+", "abc"),
    (r"root ::= [\]\[\\]+", "][\\"),
    ("root ::= [a&&b~~c|]+", "a&b~c|"),
    ("root ::= [-a]+ [b-]+", "-ab-"),
    ("root ::= [^^]+", "a"),
    ("root ::= .+", "a\u00e9\n\U0001f389"),
    ('root ::= start ends\nstart ::= "x"\nends ::= "y"', "xy"),
    ('root ::= (\n  start [:;]\n| "b"[.]":")\nstart ::= "x"', "x:"),
    ('start ::= root\nroot ::= "x" start?', "xx"),
    ('root ::= (\n  start [0-9] "[1]:"\n)\nstart ::= "x"', "x1[1]:"),
    ('root ::= (\n  start [\\]:]\n)\nstart ::= "x"', "x:"),
    ('root ::= (\n  start [0-9] # [1]: one\n)\nstart ::= "x"', "x1"),
    ('root ::= a-b a_b aB\na-b ::= "x"\na_b ::= "y"\naB ::= "z"', "xyz"),
    ('root ::=\n    "x"\n\n  # or\n  | y\n  | "z"\ny ::= "y"\n', "z"),
]
REJECTED = [
    ('root ::= ("a"{1,2}){1,3}', "aaaaaaa"),
    ('root ::= ("ab"{2})+ "c"', "abc"),
    (r'root ::= "\u0041"', "u"),
    ("root ::= [a&&b]", "c"),
    ("root ::= [a-c]", "-"),
    ("root ::= [^^]", "^"),
    (LIST, "- a\u2028"),
]


@pytest.mark.fault("B11")
@pytest.mark.parametrize(("grammar", "text"), ACCEPTED)
def test_what_conforms_is_accepted(grammar: str, text: str) -> None:
    assert verdict(GRAMMAR, grammar, text) == "accepted"


@pytest.mark.parametrize(("grammar", "text"), REJECTED)
def test_what_does_not_is_not(grammar: str, text: str) -> None:
    assert verdict(GRAMMAR, grammar, text) == "rejected"


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('root ::= "a" other', "there is no rule other"),
        (r"root ::= [a\-z]", "Invalid escape sequence"),
        ("root ::= [z-a]", "has a range from its end"),
        (r"root ::= [\uD800-\uDFFF]", "there is a class of no character"),
        ('root ::= * "a"', r"there is nothing before \*"),
        ('root ::= "a"{3,2}', "is no number of times"),
        ('root ::= "a', 'line 1 has "a where the end of the rule was expected'),
        ('root ::= x\n\nx := "a"', "line 3 has : where ::= was expected"),
        ("root ::= (x\n\n", r"line 3 has its end where \) was expected"),
        ('root\n::= "a"', "line 1 has its end where ::= was expected"),
        ('root ::= "a"\n= "b"', "line 2 has = where the name of a rule was expected"),
        ('first ::= "a"', "root"),
        ("", "root"),
    ],
)
def test_what_is_wrong_with_it_is_told(grammar: str, why: str) -> None:
    with pytest.raises(GuideError, match=why):
        translate(GRAMMAR, grammar)


@pytest.mark.parametrize("marks", ["", "?", "!", "!?"])
@pytest.mark.parametrize("more", ["", " ", "[lazy]", '[capture="a:b"]', ' [capture="]:", max_tokens=9] '])
def test_a_rule_start_makes_a_grammar_lark_whatever_is_written_about_it(marks: str, more: str) -> None:
    """``?start: value`` begins Lark's own example, a grammar of JSON."""
    assert verdict(GRAMMAR, f"{marks}start{more}: A\nA: /[0-9]+/", "1") == "accepted"


def test_what_the_library_does_not_take_of_lark_is_told_as_of_lark() -> None:
    with pytest.raises(GuideError, match="priority not supported"):
        verify(GRAMMAR, translate(GRAMMAR, 'start.2: "a"'))


def test_many_rules_cost_no_more_each_than_few() -> None:
    """Of processor time: each was looked for among all the others, half a minute for these."""
    rules = 20_000
    names = " ".join(f"a{number}" for number in range(rules))
    text = f"root ::= {names}\n" + "\n".join(f'a{number} ::= "x"' for number in range(rules))
    began = time.thread_time()
    made = notation(text)
    assert time.thread_time() - began < 3
    assert made.count("x") == rules


@pytest.mark.parametrize("part", ["\n", " \n", "#\n", "[", "{", "[\\", '"\\', "(", "a ", "start\n"])
def test_what_is_no_grammar_is_looked_at_in_time_that_grows_with_it(part: str) -> None:
    """Of processor time: 50 KB of line breaks took 20 seconds."""
    text = part * 50_000
    began = time.thread_time()
    with contextlib.suppress(ValueError):
        assert not is_gbnf(text) or read(text)
    assert time.thread_time() - began < 2
