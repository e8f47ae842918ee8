"""What an encrypted stream would show to who watches it: the sizes of its chunks, with OpenAI's padding and without."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.e2e.test_serve_command import Served, served
from tests.support.bundled import bundled_path

TOPICS = ("Money laundering, tax and the law say that", "The cat sat on the mat and it was so very")
TOKENS = 16
SEEDS = range(4)


@pytest.fixture(scope="module")
def one() -> Iterator[Served]:
    with served(str(bundled_path()), "--log-level", "warning") as one:
        yield one


def sizes(one: Served, topic: str, seed: int, padded: bool) -> list[int]:
    """Of each chunk that is sent: one for a token, whatever the network makes of them."""
    body = {"prompt": topic, "seed": seed, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0, "stream": True}
    status, answer = one.post({**body, "stream_options": {"include_obfuscation": padded}})
    assert status == 200
    return [len(frame) for frame in answer.split(b"\n\n") if frame.startswith(b"data: {")]


@pytest.mark.fault("G08")
def test_with_padding_every_text_of_as_many_tokens_has_the_same_sizes(one: Served) -> None:
    """So that nothing can be learnt of them, by whatever classifier."""
    seen = {tuple(sizes(one, topic, seed, True)) for topic in TOPICS for seed in SEEDS}
    assert len({size for each in seen for size in each}) == 1


@pytest.mark.fault("G08", "H03")
def test_without_it_texts_are_told_apart(one: Served) -> None:
    """The inverse control."""
    assert len({tuple(sizes(one, topic, seed, False)) for topic in TOPICS for seed in SEEDS}) == len(TOPICS) * len(SEEDS)


@pytest.mark.fault("G08")
def test_padding_adds_little_and_never_reaches_the_text(one: Served) -> None:
    body = {"prompt": TOPICS[0], "seed": 3, "max_tokens": TOKENS, "temperature": 1.0, "stream": True}
    texts, lengths = [], []
    for padded in (True, False):
        _, answer = one.post({**body, "stream_options": {"include_obfuscation": padded}})
        chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
        texts.append("".join(choice["text"] for chunk in chunks for choice in chunk["choices"]))
        lengths.append(len(answer))
    assert texts[0] == texts[1]
    assert lengths[0] < 1.15 * lengths[1]
