"""The oracle against transformers, which is where the models come from: the same greedy text, and the same log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference import forward
from tests.reference.as_gguf import ARCHITECTURES, has_file, keys, write_gguf
from tests.reference.dequantize import GGUFFile
from tests.reference.divergence import log_softmax
from tests.reference.transformers_tiny import EVERY, GREEDY, PROMPT, answers, models

CLOSE = 2e-3
"""What two log-probabilities may differ by if only the order of float32 sums does."""
BEGINNING = PROMPT + 2
"""Tokens that are enough to see a mistake."""

GgufPath = Callable[[str], Path]
NAMES = [name for name, tiny in models().items() if ARCHITECTURES[tiny.config["model_type"]] in forward.INTERLEAVED]


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> GgufPath:
    """Writes a model's GGUF file, once."""
    folder = tmp_path_factory.mktemp("transformers")
    return cache(lambda name: write_gguf(folder / f"{name}.gguf", models()[name]))


def reference(path: Path, name: str) -> forward.Reference:
    found = forward.Reference(path)
    if not has_file(models()[name]):
        found.window = models()[name].config["sliding_window"] or 0
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_transformers_in_float32(name: str, gguf_path: GgufPath) -> None:
    theirs = answers(name)
    found = log_softmax(reference(gguf_path(name), name)(theirs.tokens))
    asked = found[PROMPT - 1 : -1]
    assert (asked.argmax(-1) == theirs.tokens[PROMPT:]).all()
    np.testing.assert_allclose(asked[np.arange(GREEDY), theirs.tokens[PROMPT:]], theirs.chosen, atol=CLOSE)
    np.testing.assert_allclose(found[::EVERY], theirs.rows, atol=CLOSE)


SIZES = {"block_count", "embedding_length", "feed_forward_length", "expert_feed_forward_length", "expert_shared_feed_forward_length"}
SIZES |= {"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_count"}
SIZES |= {"vocab_size", "context_length", "rope.scaling.type", "rope.dimension_count"}
"""Keys of which another value is another file, or the same model."""


def another(key: str, value: Any) -> Any:
    if key.endswith(("epsilon", "original_context_length")):
        return 100 * value
    if isinstance(value, list):
        return [not one for one in value]
    return value + 1 if isinstance(value, int) else 2 * value


class Misread(GGUFFile):
    """A file of which one key is read as another value."""

    wrong = ""

    def setting(self, key: str, default: Any = None) -> Any:
        found = super().setting(key, default)
        return another(key, found) if key == self.wrong else found


@pytest.mark.parametrize("name", NAMES)
def test_another_value_of_any_key_is_seen(name: str, gguf_path: GgufPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inverse control: each thing that a config says, said a little otherwise, is far outside the bound."""
    theirs = answers(name)
    monkeypatch.setattr(forward, "GGUFFile", Misread)
    for key in keys(models()[name].config).keys() - SIZES:
        monkeypatch.setattr(Misread, "wrong", key)
        rows = log_softmax(reference(gguf_path(name), name)(theirs.tokens[:BEGINNING]))[::EVERY]
        assert np.abs(rows - theirs.rows[: len(rows)]).max() > 10 * CLOSE, key
