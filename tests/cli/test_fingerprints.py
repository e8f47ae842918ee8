"""Equal fingerprints mean equal answers: what changes an answer changes it, and how much memory there is changes neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.tiny_model import FAMILIES, write_tiny
from tests.support.report import Notes

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import Batch
from quintet.cli import engines, fleet

LONG = next(spec for spec in FAMILIES if spec.long_factors)
BORDER = 300
"""Tokens up to which its factors for short texts count."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("fingerprints") / "long.gguf", LONG)


def options(tiny: Path, ctx_size: int = 0, kv_tokens: int = 2048) -> engines.EngineOptions:
    kv = engines.plan(engines.EngineOptions(model=str(tiny), ctx_size=64, threads=1, kv_bytes=1 << 24, offline=True), Notes())
    return engines.EngineOptions(
        model=str(tiny), ctx_size=ctx_size, threads=1, kv_bytes=kv_tokens * (1 << 24) // kv.kv_tokens, offline=True
    )


def computed(asked: engines.EngineOptions) -> tuple[int, str, bytes]:
    """The context, the fingerprint, and a row that it computes."""
    made = engines.plan(asked, Notes())
    loaded = made._loader()(lambda _share: None)
    loaded.runner.allocate(2)
    zero, tokens = np.zeros(1, np.int32), np.arange(1, PAGE + 1, dtype=np.int32)
    row = loaded.runner.forward(Batch(tokens, zero + PAGE, zero, np.array([[0]], np.int32), zero + PAGE - 1))
    return made.context, loaded.fingerprint, row.tobytes()


def test_no_bit_of_a_model_with_two_lists_of_rotations_depends_on_the_memory_for_its_kv_cache(tiny: Path) -> None:
    """A draft model, several models and a small ``--kv-cache`` shorten the context."""
    full, small = computed(options(tiny, kv_tokens=2048)), computed(options(tiny, kv_tokens=BORDER - 44))
    drafted = computed(replace(options(tiny, kv_tokens=BORDER + 20), draft=str(tiny)))
    assert full[0] > BORDER > max(small[0], drafted[0])
    assert full[1:] == small[1:] == drafted[1:]


def test_where_the_context_that_was_asked_for_chooses_other_rotations_the_fingerprint_is_another(tiny: Path) -> None:
    short, border, beyond, full = (computed(options(tiny, size)) for size in (64, BORDER, BORDER + 1, 0))
    assert short[1:] == border[1:]
    assert beyond[1:] == full[1:]
    assert border[1] != beyond[1]
    assert border[2] != beyond[2]


def test_what_prepares_requests_otherwise_than_by_default_is_part_of_the_fingerprint(tiny: Path) -> None:
    plain = options(tiny)
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"suffix_first": True},
        {"think_tags": ("a", "b")},
        {"think_tags": ("a", "c")},
        {"longest_edge": 64},
    )
    found = [fleet.plan(fleet.FleetOptions((str(tiny),), replace(plain, **change)), Notes()).models[0].settings for change in changes]
    assert found[0] == ""
    assert len(set(found)) == len(found)
