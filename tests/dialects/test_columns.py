"""Long lists that are written as they grow, and what all samples of a prompt share of them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.dialects.folding import fold

from quintet.dialects import chunks, columns
from quintet.dialects.base import Dialect, Identity, Renderer
from quintet.dialects.cerebras.dialect import Cerebras
from quintet.dialects.columns import STRETCH, Column, filled, growing, written
from quintet.dialects.fireworks.dialect import Fireworks
from quintet.dialects.novita.dialect import Novita
from quintet.dialects.openai.dialect import OpenAI
from quintet.dialects.together import wire as together
from quintet.dialects.together.dialect import Together
from quintet.dialects.wire import encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, TokenText, Usage

IDENTITY = Identity(id="0", created=1, model="m", fingerprint="fp")
values = st.lists(st.none() | st.integers(-9, 9) | st.text('a\u20ac\0"', max_size=3) | st.floats(allow_nan=False, allow_infinity=False))


class Lists(msgspec.Struct):
    one: list[Any]
    two: list[Any]


@given(st.lists(st.tuples(values, st.booleans()), max_size=12), st.integers(1, 5))
def test_a_column_is_the_json_of_all_that_was_added_to_it(parts: list[tuple[list[Any], bool]], stretch: int) -> None:
    """Whether items come as objects or as JSON, and wherever its stretches end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "STRETCH", stretch)
        column: Column[Any] = Column()
        for items, as_json in parts:
            column += written([Lists(items, [])]).one if as_json and items else items
    assert encode(column) == encode([item for items, _ in parts for item in items])


def test_what_is_json_already_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it stay behind what came before it as objects: a long list would take the square of its length."""
    sizes: list[int] = []

    def counted(items: Any) -> bytes:
        sizes.append(len(items))
        return encode(items)

    monkeypatch.setattr(columns, "STRETCH", 4)
    monkeypatch.setattr(columns, "encode", counted)
    column: Column[Any] = Column()
    shared = columns._items([*range(9)])
    for at in range(4):
        column += [at]
    for part in ([4, 5], [shared], [6], [7], [8], [9], [10]):
        column += part
    assert sizes == [9, 4, 2, 4]
    assert [type(item) for item in column] == [msgspec.Raw] * 4 + [int]


@given(values, values)
def test_a_struct_that_grows_leaves_the_one_it_began_with_as_it_was(first: list[Any], more: list[Any]) -> None:
    begun = Lists(first, list(more))
    grown = growing(begun)
    grown.one += more
    assert (encode(grown.one), begun.one, begun.two) == (encode([*first, *more]), first, more)


def test_a_body_in_parts_is_the_body() -> None:
    class Body(msgspec.Struct):
        name: str
        choices: list[Any]
        rest: list[int]

    choices = [{"text": "a\0"}, {"text": "\u20ac"}]
    for some in (choices, choices[:1], []):
        assert b"".join(filled(Body("n\0", [], [1]), some)) == encode(Body("n\0", some, [1]))


# ---- answers


def tokens(count: int, alternatives: int, start: int = 0) -> tuple[TokenText, ...]:
    top = [(rank, f"t{rank}\u20ac", -0.5 - rank) for rank in range(alternatives)]
    raws = (b"w", *(label.encode() for _, label, _ in top))

    def token(at: int) -> TokenText:
        logprob, text = -1.5 - at % 5, f"w{at % 7}"
        if not at:
            return TokenText(9, text, b"w", None, (), start)
        return TokenText(9, text, b"w", logprob, ((9, text, logprob), *top), start + 2 * at, top_raw=raws)

    return tuple(map(token, range(count)))


def answer(n: int, echoed: int, generated: int, alternatives: int, echo: bool = True) -> list[Event]:
    """Of samples of one prompt, which have its echo in common, as the service makes them."""
    shared = tokens(echoed, alternatives)
    text = "".join(token.text for token in shared)
    events: list[Event] = [ChoiceDelta(index, text, shared) for index in range(n) if echo]
    for token in tokens(generated, alternatives, start=2 * echoed)[1:]:
        events += [ChoiceDelta(index, token.text, (token,)) for index in range(n)]
    return [*events, *(ChoiceDone(index, Finish.LENGTH, seed=index) for index in range(n)), Finished(Usage(echoed, n * generated))]


ASKED: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "openai": (OpenAI(), {"logprobs": 5, "echo": True}),
    "fireworks": (Fireworks(), {"logprobs": 5, "echo": True}),
    "fireworks, content": (Fireworks(), {"logprobs": True, "top_logprobs": 5, "echo": True, "return_token_ids": True}),
    "together": (Together(), {"logprobs": 5, "echo": True}),
    "cerebras": (Cerebras(), {"logprobs": 5, "echo": True}),
    "novita": (Novita(), {"logprobs": 5}),
}


def renderer(name: str, n: int, stream: bool) -> Renderer:
    dialect, fields = ASKED[name]
    parsed = dialect.parse(json.dumps({"model": "m", "prompt": "p", "max_tokens": 99, "n": n, "stream": stream, **fields}).encode(), 7)
    return dialect.renderer(parsed.request, IDENTITY, parsed.options)


def rendered(name: str, n: int, events: Sequence[Event]) -> list[bytes]:
    """Stream and body."""
    stream = renderer(name, n, True)
    return [*(chunk for event in events for chunk in stream.feed(event)), fold(renderer(name, n, False), events)]


@pytest.mark.fault("B06")
@pytest.mark.parametrize("name", ASKED)
@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.integers(0, 3))
def test_an_answer_is_the_same_to_the_byte_however_it_is_written(name: str, n: int, echoed: int, generated: int, alternatives: int) -> None:
    """In short stretches, with the echo shared, or all at once from objects."""
    events = answer(n, echoed, generated, alternatives, echo=name != "novita")
    apart = [structs.replace(event, tokens=(*event.tokens,)[:]) if isinstance(event, ChoiceDelta) else event for event in events]
    made = []
    for stretch, given_ in ((3, events), (10**9, apart)):
        with pytest.MonkeyPatch.context() as patched:
            for module in (columns, chunks, together):
                patched.setattr(module, "STRETCH", stretch)
            made.append(rendered(name, n, given_))
    assert made[0] == made[1]


@pytest.mark.fault("B06")
@pytest.mark.parametrize("name", ["openai", "fireworks", "fireworks, content", "cerebras"])  # Together's answer has it once anyway
def test_an_echo_is_kept_once_for_all_its_samples(name: str) -> None:
    """32 samples of a prompt of 2,000 tokens with five alternatives: the answer is seven megabytes or more, and would be ten times that."""
    echoed, n = 2_000, 32
    events = answer(n, echoed, 2, 5)
    whole = renderer(name, n, stream=False)
    tracemalloc.start()
    try:
        for event in events:
            whole.add(event)
        sizes = [len(part) for part in whole.body()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) > n * echoed * 5 * 10
    assert peak < sum(sizes) / 2


@pytest.mark.fault("B06")
@pytest.mark.parametrize("name", ASKED)
def test_generated_entries_are_kept_as_json_and_not_as_objects(name: str) -> None:
    """A token with five alternatives is a kilobyte of objects; of these there are never more than a stretch for each choice."""
    count = 20 * STRETCH
    whole = renderer(name, 1, stream=False)
    tracemalloc.start()
    try:
        for at in range(count):
            top = tuple((rank, f"t{rank}", -0.5 - rank - at / count) for rank in range(5))
            raws = tuple(label.encode() for _, label, _ in top)
            whole.add(ChoiceDelta(0, "w", (TokenText(9, "w", b"w", -1.5 - at / count, top, at, top_raw=raws),)))
        kept, _ = tracemalloc.get_traced_memory()
        whole.add(ChoiceDone(0, Finish.LENGTH))
        whole.add(Finished(Usage(1, count)))
        size = sum(len(part) for part in whole.body())
    finally:
        tracemalloc.stop()
    assert kept < 1.3 * size + 2_000 * STRETCH
