"""Compiled guides are kept within a bound on what they really take; what is used stays, what is dropped goes back to the system."""

from __future__ import annotations

import gc
import json
import random
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from quintet.guides import compiled, heap
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.translate import translate
from quintet.request import GuideKind

WORDS = 9
COMPILER = Compiler([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}), 257)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not heap.in_use(), reason="only glibc 2.33 and later tell what is in use")


@cache
def schema(name: int, properties: int = 60) -> str:
    fields = {f"field_{name}_{at}": {"enum": [f"v{name}{at}", "b"]} if at % 3 else {"type": "string"} for at in range(properties)}
    return translate(GuideKind.JSON_SCHEMA, json.dumps({"type": "object", "properties": fields, "additionalProperties": False}))


def regex(name: int) -> str:
    return translate(GuideKind.REGEX, f"[a-z]{{1,{name % 90 + 5}}}x{name}")


def walk(guides: Guides, grammar: str, steps: int = 30) -> Matcher:
    """Follow a guide a little, as a sequence does."""
    matcher, mask, rng = guides.matcher(grammar), np.zeros(WORDS, np.uint32), random.Random(0)
    for _ in range(steps):
        with guides.growing(grammar):
            if not matcher.fill(mask):
                break
        token = rng.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
        if token == 256 or not matcher.consume(token):
            break
    return matcher


def resident() -> int:
    """Bytes of this process."""
    gc.collect()
    heap.give_back()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A bound of a few guides."""
    monkeypatch.setattr(compiled, "CACHE_BYTES", 4 * MIB)
    monkeypatch.setattr(compiled, "SHARE", 32)
    monkeypatch.setattr(compiled, "TRIM_BYTES", MIB)
    yield 4 * MIB


@pytest.mark.fault("B09")
@pytest.mark.parametrize("make", [schema, regex])
def test_what_guides_are_charged_is_what_they_take(make: object) -> None:
    """By the process's own size: at least two thirds of it, and at most three times as much."""
    guides = Guides(COMPILER)
    walk(guides, make(0))  # type: ignore[operator]
    before, charged = resident(), guides.bytes
    for name in range(1, 60 if make is schema else 300):
        walk(guides, make(name))  # type: ignore[operator]
    taken = resident() - before
    assert taken / 1.5 < guides.bytes - charged < taken * 3 + 2 * MIB


@pytest.mark.fault("B09")
def test_bytes_stay_below_the_bound_and_the_process_does_not_grow(small: int) -> None:
    """Three times as many as fit, and three times as many again: nothing is added by these. One that is used again and again stays."""
    guides, hot = Guides(COMPILER), schema(-1, 5)
    sizes = []
    for turn in range(3):
        for name in range(40):
            walk(guides, schema(turn * 1000 + name))
            walk(guides, hot)
            assert guides.bytes <= small
            assert guides.ready(hot)
        sizes.append(resident())
    assert sizes[2] - sizes[0] < 2 * MIB


@pytest.mark.fault("B09")
def test_many_small_ones_are_bounded_too(small: int) -> None:
    guides = Guides(COMPILER)
    for name in range(150):
        walk(guides, regex(name), 5)
    before = resident()
    for name in range(150, 450):
        walk(guides, regex(name), 5)
        assert guides.bytes <= small
    assert resident() - before < 2 * MIB


@pytest.mark.fault("B09")
def test_what_is_followed_is_kept_and_goes_when_nobody_follows_it(small: int) -> None:
    guides = Guides(COMPILER)
    followed = [walk(guides, schema(name)) for name in range(10)]
    for name in range(100, 140):
        walk(guides, schema(name))
    assert all(guides.ready(schema(name)) for name in range(10))
    assert all(matcher.fill(np.zeros(WORDS, np.uint32)) or not matcher.error for matcher in followed)
    del followed
    for name in range(200, 240):
        walk(guides, schema(name))
    assert not any(guides.ready(schema(name)) for name in range(10)) and guides.bytes <= small


@pytest.mark.fault("B09")
def test_where_all_are_followed_the_large_ones_are_not_followed_further(small: int) -> None:
    """Beyond twice the bound; a small one still is."""
    guides, little = Guides(COMPILER), regex(1)
    followed = [walk(guides, little)]
    number = 0
    while guides.bytes <= 2 * small:
        followed.append(walk(guides, schema(number)))
        number += 1
    with guides.growing(schema(0)) as large, guides.growing(little) as tiny:
        assert (large, tiny) == (False, True)
    followed.clear()
    walk(guides, regex(2))
    with guides.growing(schema(number - 1)) as large:
        assert large and guides.bytes <= small


@pytest.mark.fault("B09")
def test_those_that_nobody_follows_any_more_make_room_for_one_that_is_kept(small: int) -> None:
    """Nothing is compiled for whoever asks for it again, which would have had them go."""
    guides = Guides(COMPILER)
    followed: list[Matcher] = []
    while guides.bytes <= 2 * small:
        followed.append(walk(guides, schema(len(followed))))
    last = schema(len(followed) - 1)
    followed.clear()
    with guides.growing(last) as room:
        assert room and guides.bytes <= small and guides.ready(last)


@pytest.mark.fault("B09")
def test_samples_that_each_meet_a_limit_hold_no_more_than_others(small: int) -> None:
    """Each has a lexer of its own from then on: beyond twice the bound the large ones are not followed further, until they are gone."""
    guides, grammar = Guides(COMPILER), schema(0)
    followed = []
    while guides.bytes <= 2 * small:
        followed.append(walk(guides, grammar))
        guides.forget(grammar)
        assert len(followed) < 1000
    followed.append(walk(guides, grammar))
    with guides.growing(grammar) as room:
        assert not room
    followed.clear()
    with guides.growing(grammar) as room:
        assert room and guides.bytes <= small


def test_what_is_forgotten_is_made_anew_and_its_followers_go_on() -> None:
    guides, grammar, mask = Guides(COMPILER), regex(7), np.zeros(WORDS, np.uint32)
    first = guides.matcher(grammar)
    guides.forget(grammar)
    assert not guides.ready(grammar)
    second = guides.matcher(grammar)
    assert guides.ready(grammar) and first.fill(mask) and second.fill(mask)


@pytest.mark.fault("B09")
def test_what_is_forgotten_is_charged_until_its_last_follower_is_gone() -> None:
    """Samples that each meet a limit begin anew, and the others go on with what they share: up to 30 MB each, which nobody counted."""
    guides, grammar = Guides(COMPILER), regex(7)
    first, second = guides.matcher(grammar), guides.matcher(grammar)
    alone = guides.bytes
    guides.forget(grammar)
    assert guides.bytes == alone
    third = guides.matcher(grammar)
    both = guides.bytes
    assert both > alone
    del first
    assert guides.bytes == both
    del second
    assert guides.bytes == both - alone > 0
    guides.forget(grammar)
    del third
    assert guides.bytes == 0


@pytest.mark.fault("B09")
def test_threads_that_compile_follow_and_drop_agree_on_the_bytes(small: int) -> None:
    guides = Guides(COMPILER)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(50):
            walk(guides, schema(rng.randrange(40), 30), 4)
            if rng.random() < 0.1:
                guides.forget(schema(rng.randrange(40), 30))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guides.bytes == sum(kept.bytes for kept in guides._kept.values()) <= small


@pytest.mark.fault("D11")
def test_when_memory_runs_short_only_what_is_followed_is_kept() -> None:
    guides = Guides(COMPILER)
    followed = walk(guides, schema(0))
    alone = guides.bytes
    for name in range(1, 4):
        walk(guides, schema(name))
    gc.collect()
    assert guides.bytes > alone
    guides.shed()
    assert [guides.ready(schema(name)) for name in range(4)] == [True, False, False, False]
    assert guides.bytes == alone
    del followed
    gc.collect()
    guides.shed()
    assert not guides.ready(schema(0)) and guides.bytes == 0
