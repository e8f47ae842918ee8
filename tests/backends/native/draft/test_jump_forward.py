"""What guides make likely, in which tokens; and that drafts change nothing for guided sequences, whatever is guessed."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from tests.backends.native.worker.test_guided import JSON, WORDS, collect, running, spec
from tests.support.preparing import prepare

from quintet.backends.native.draft.jump_forward import JumpForward
from quintet.backends.native.schedule.plan import Kind, Segment
from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.backends.native.worker.masks import Masks
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.translate import translate
from quintet.inputs.sequence import SequenceSpec
from quintet.request import GuideKind, Sampling

WORDS_OF_MODEL = [b'{"', b' "', b'":', b"name", b"first", b"\n ", b'",', b" [", b"true", b"  "]
PIECES = [*(bytes([byte]) for byte in range(256)), b"", *WORDS_OF_MODEL]
COMPILER = Compiler(PIECES, frozenset({256}), len(PIECES))
PERSON = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "name": {"type": "string"}, "ok": {"const": True}},
    "required": ["first_name", "name", "ok"],
    "additionalProperties": False,
}


def matcher(kind: GuideKind, text: str, output: str) -> tuple[Matcher, list[int]]:
    """A matcher behind ``output``, which comes in single bytes."""
    made, tokens = COMPILER.compile(translate(kind, text)), list(output.encode())
    assert all(made.consume(token) for token in tokens)
    return made, tokens


def guessed(made: Matcher, tokens: list[int]) -> list[int]:
    return JumpForward(COMPILER).guess(made.copy(), tokens, lambda: True)


@pytest.mark.parametrize(
    ("output", "guess"),
    [
        ("", [b'{"', b"first", b"_", b"name", b'":', b' "']),
        ('{"', [b"first", b"_", b"name", b'":', b' "']),
        ('{"first_na', [b"m", b"e", b'":', b' "']),
        ('{"first_name": "x', []),  # a string goes on as it likes
        ('{"first_name": "x"', [b",", b' "', b"name", b'":', b' "']),
        ('{\n "first_name":"x",', [b"\n", b' "', b"name", b'":', b'"']),  # white space as it was
        ('{\n  "first_name": "x"\n,\n  ', [b'"', b"name", b'":', b' "']),
        ('{"first_name": "x", "name": "y", "ok": tr', [b"u", b"e"]),
    ],
)
def test_a_guess_is_the_text_without_a_choice_with_white_space_as_before(output: str, guess: list[bytes]) -> None:
    made, tokens = matcher(GuideKind.JSON_SCHEMA, json.dumps(PERSON), output)
    found = [PIECES[token] for token in guessed(made, tokens)]
    assert found[: len(guess)] == guess and bool(found) == bool(guess)


def test_a_guess_that_has_taken_long_enough_is_what_was_found_by_then() -> None:
    made, tokens = matcher(GuideKind.JSON_SCHEMA, json.dumps(PERSON), '{"first_name": "x"')
    pieces = [True, True, False]
    found = JumpForward(COMPILER).guess(made, tokens, lambda: pieces.pop(0))
    assert 0 < len(found) < len(guessed(made, tokens)) or found == guessed(made, tokens)[: len(found)]
    assert not pieces


def test_other_guides_are_foreseen_as_far_as_they_leave_no_choice() -> None:
    made, tokens = matcher(GuideKind.REGEX, "(yes|no), I am (sure|not)", "yes")
    assert b"".join(PIECES[token] for token in guessed(made, tokens)) == b", I am"
    made, tokens = matcher(GuideKind.REGEX, "[a-z]{1,9}", "x")
    assert guessed(made, tokens) == []


def decoding(seq: Sequence, tokens: list[int]) -> Segment:
    return Segment(seq, Kind.DECODE, 0, 0, tokens, len(tokens), len(tokens))


def test_masks_follow_a_draft_as_far_as_it_keeps_to_the_guide() -> None:
    """And a guide that was led astray allows afterwards what it did before."""
    seq = Sequence(0, 0, Group((1,), False, None), 50, Sampling(1.0, 1.0, 0), None, grammar=translate(GuideKind.REGEX, "ab(c|d)e"))
    other = Sequence(0, 1, Group((1,), False, None), 50, Sampling(1.0, 1.0, 0), None)
    masks = Masks(Guides(COMPILER), len(PIECES))
    pending = masks.begin([decoding(other, [5, 5, 5]), decoding(seq, [97, *b"abxe"])])
    assert pending is not None
    masked = pending()
    rows = [bytes(token for token in range(256) if row[token // 32] >> np.uint32(token % 32) & 1) for row in masked.bits]
    assert rows[3:6] == [b"a", b"b", b"cd"]
    assert all(len(row) == 256 for row in [*rows[:3], *rows[6:]]), "no guide, or nothing is drawn there"
    assert masked.ends == [5]
    seq.generated += b"ab"
    again = masks.begin([decoding(seq, [98])])
    assert again is not None and set(np.flatnonzero(np.unpackbits(again().bits.view(np.uint8), bitorder="little"))) == {*b"cd"}


def test_a_guide_that_cannot_go_on_allows_nothing() -> None:
    seq = Sequence(0, 0, Group((1,), False, None), 50, Sampling(1.0, 1.0, 0), None, grammar=translate(GuideKind.REGEX, "ab"))
    seq.generated += b"x"
    pending = Masks(Guides(COMPILER), len(PIECES)).begin([decoding(seq, [120, 97])])
    assert pending is not None
    masked = pending()
    assert not masked.bits[0].any()
    assert masked.ends == []


def test_guided_sequences_give_the_same_with_drafts_and_without() -> None:
    specs: list[SequenceSpec] = [spec(seed, guide) for seed in range(3) for guide in (JSON, WORDS)]

    async def told(*, speculation: bool) -> list[object]:
        async with running(speculation=speculation) as engine:
            found: list[object] = []
            for one in [[each] for each in specs] + [specs[:4]]:
                found += [[(event.token, event.finish) for event in events] for events in await collect(engine, await prepare(engine, one))]
            return [*found, engine.health().counts.accepted > 0]

    with_drafts, without = asyncio.run(told(speculation=True)), asyncio.run(told(speculation=False))
    assert with_drafts[:-1] == without[:-1]
    assert (with_drafts[-1], without[-1]) == (True, False)
