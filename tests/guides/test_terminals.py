"""A GBNF grammar admits its texts, all of them and no others, however it was cut into terminals."""

from __future__ import annotations

import random

import pytest
from tests.guides.test_guide import BYTES, EOS, GRAMMAR, allowed, verdict

from quintet.guides import terminals
from quintet.guides.gbnf import Chars, Choice, Name, Node, Sequence, Times, read
from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify

LETTERS, LONGEST = "ab\u00e9\u00e8", 3
"""The last two begin with the same byte."""

OVERLAPPING = [
    ('root ::= key "=" val\nkey ::= [^ ]+\nval ::= [0-9]+', ["a=1", "a=b=1"], ["a", "a b=1"]),
    ('root ::= word " " word\nword ::= [a-z ]+', ["a b", "a b c"], ["ab", " "]),
    ('root ::= [a-z]+ "ing"', ["running", "inging"], ["ing", "runn"]),
    ('root ::= ("a" | "ab") ("c" | "bcd")', ["abcd", "abc", "ac"], ["ab"]),
    ("root ::= id id\nid ::= [a-z] [a-z]?", ["ab", "abc", "abcd"], ["a"]),
    ('root ::= "a"? "aa"*', ["", "a", "aa", "aaa"], ["b"]),
    ('root ::= text | text "(" root ")"\ntext ::= [^ ]+', ["a", "a(b)", "a(b(c))"], ["", "a ("]),
    ('root ::= ("<" root ">" | text)*\ntext ::= [^<>]+', ["", "a<b<>>c"], ["a<b", ">"]),
    ('root ::= "\u00e9"+ ("\u00e8" | "(" root ")")', ["\u00e9\u00e9\u00e8", "\u00e9(\u00e9\u00e8)"], ["\u00e9", "\u00e8"]),
]


@pytest.mark.parametrize(("grammar", "texts", "others"), OVERLAPPING)
def test_what_one_part_could_take_is_left_to_the_next(grammar: str, texts: list[str], others: list[str]) -> None:
    assert [text for text in texts if verdict(GRAMMAR, grammar, text) != "accepted"] == []
    assert [text for text in others if verdict(GRAMMAR, grammar, text) == "accepted"] == []


def written(rng: random.Random) -> str:
    """A grammar at random, of three rules that may name each other."""

    def one(depth: int) -> str:
        kind = rng.random()
        if kind < 0.3:
            return '"' + "".join(rng.choices(LETTERS, k=rng.randrange(1, 4))) + '"'
        if kind < 0.55:
            return rng.choice(["[ab]", "[^a]", "[a\u00e9]", ".", "[^\u00e8]", "[\u00e8\u00e9]"])
        if kind < 0.75 or depth == 2:
            return rng.choice(["one", "two", "root"])
        return f"({choice(depth + 1)})"

    def sequence(depth: int) -> str:
        return " ".join(one(depth) + rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,2}"]) for _ in range(rng.randrange(1, 4)))

    def choice(depth: int) -> str:
        return " | ".join(sequence(depth) for _ in range(rng.choice([1, 2, 2, 3])))

    return "\n".join(f"{name} ::= {choice(1)}" for name in ("root", "one", "two"))


def texts_of(rules: dict[str, Node]) -> frozenset[str]:
    """All texts of up to so many letters: of each rule those that the others' texts give, until there are no more."""
    known: dict[str, frozenset[str]] = dict.fromkeys(rules, frozenset())

    def joined(ones: frozenset[str], others: frozenset[str]) -> frozenset[str]:
        return frozenset(one + other for one in ones for other in others if len(one + other) <= LONGEST)

    def found(node: Node) -> frozenset[str]:
        match node:
            case Chars(ranges):
                return frozenset(letter for letter in LETTERS if any(first <= ord(letter) <= last for first, last in ranges))
            case Name(name):
                return known[name]
            case Choice(parts):
                return frozenset().union(*map(found, parts))
            case Sequence(parts):
                made = frozenset({""})
                for part in parts:
                    made = joined(made, found(part))
                return made
            case Times(inner, least, most):
                each, by_times = found(inner), [frozenset({""})]
                for _ in range(least + LONGEST if most is None else most):
                    by_times.append(joined(by_times[-1], each))
                return frozenset().union(*by_times[least:])

    while (more := {name: found(node) for name, node in rules.items()}) != known:
        known = more
    return known["root"]


def admitted(at: Matcher, text: str = "") -> set[str]:
    ahead = allowed(at)
    made = {text} if EOS in ahead else set()
    for letter in LETTERS if len(text) < LONGEST else "":
        after = at.copy()
        if letter.encode()[0] in ahead and all(after.consume(byte) for byte in letter.encode()):
            made |= admitted(after, text + letter)
    return made


@pytest.mark.parametrize("limits", [{}, {"MOST_OF_ONE": 0}, {"MOST_NODES": 0}, {"MOST_STEPS": 20}])
def test_random_grammars_admit_what_they_mean(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also such as are too large to be looked at, or to be looked at to the end."""
    for name, most in limits.items():
        monkeypatch.setattr(terminals, name, most)
    compiler, tried = Compiler(BYTES, frozenset({EOS}), 257), 0
    for seed in range(20):
        grammar = written(random.Random(seed))
        wanted = texts_of(read(grammar))
        try:
            notation = translate(GRAMMAR, grammar)
            verify(GRAMMAR, notation)
        except GuideError:
            assert not wanted, grammar
            continue
        assert admitted(compiler.compile(notation)) == wanted, grammar
        tried += 1
    assert tried > 15


@pytest.mark.parametrize(
    ("grammar", "in_one_piece"),
    [
        ('root ::= word ("," word)*\nword ::= [a-z]+', True),  # all of it
        ('root ::= "(" root ")" | [a-z]+', True),
        ('root ::= "(" ([a-z]+ | root)* ")"', True),  # two such in a row are one
        ('root ::= "(" ([a-z]+ | root){1,2} ")"', False),
        ('root ::= "(" root ")" | [a-z]+ "x"', True),
        ('root ::= root "x" | [a-z]+', False),
        ('root ::= "(" root ")" | [a-z]+ root?', False),
    ],
)
def test_a_run_of_characters_is_one_terminal_where_that_loses_no_text(grammar: str, in_one_piece: bool) -> None:
    """Masks take a tenth of the time."""
    assert ("(?:[a-z]){1,}" in terminals.notation(grammar)) is in_one_piece
