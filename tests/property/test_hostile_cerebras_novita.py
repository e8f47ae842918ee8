"""Whatever is sent, Cerebras and Novita understand it or say in their own words why not; and what they understand is safe to run."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.dialects import cerebras, novita
from quintet.dialects.base import Dialect
from quintet.dialects.fields import Field
from quintet.errors import BadRequest

HOTTEST = {"cerebras": 1.5, "novita": 2}
DIALECTS: list[tuple[Dialect, tuple[Field[Any], ...]]] = [
    (cerebras.Cerebras(), cerebras.FIELDS),
    (novita.Novita(), novita.FIELDS),
]

numbers = st.integers(-(2**70), 2**70) | st.integers(-2, 200) | st.floats() | st.sampled_from([-0.0, 5e-324, 1e308, 10**400, 0.5])
texts = st.text(max_size=5) | st.sampled_from(["root", "ws", "none", "raw", "5", "\0"])
leaves = st.none() | st.booleans() | numbers | texts
keys = st.sampled_from(["include_usage", "5", "-1"]) | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5)


@st.composite
def bodies(draw: st.DrawFn, table: tuple[Field[Any], ...]) -> bytes:
    names = st.sampled_from(sorted({field.name.partition(".")[0] for field in table}))
    body = draw(st.dictionaries(names, values, max_size=4))
    if draw(st.booleans()):
        body["prompt"] = "a"
    return json.dumps(body).encode()


@pytest.mark.parametrize(("dialect", "table"), DIALECTS, ids=[dialect.name for dialect, _ in DIALECTS])
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_body_is_understood_or_refused(dialect: Dialect, table: tuple[Field[Any], ...], data: st.DataObject) -> None:
    try:
        request = dialect.parse(data.draw(bodies(table)), 7).request
    except BadRequest as error:
        reply = dialect.error(error)
        assert reply.status == 400
        assert len(reply.body) < 1000
        assert json.loads(reply.body)["message"].isascii()
        return
    sampling = request.sampling
    assert all(math.isfinite(value) for field in fields(sampling) if isinstance(value := getattr(sampling, field.name), float))
    assert sampling.temperature == 0 or 1e-6 <= sampling.temperature <= HOTTEST[dialect.name]
    assert 0 < sampling.top_p <= 1
    assert sampling.repetition_penalty > 0
    assert sampling.top_k >= 0
    assert -1 <= sampling.min_tokens < 2**31
    assert 0 <= sampling.seed < 2**64
    assert 1 <= request.n <= request.best_of
    assert 1 <= len(request.prompts) * request.best_of <= 128
    assert request.max_tokens is None or request.max_tokens >= max(sampling.min_tokens, 0)
    assert request.logprobs is None or 0 <= request.logprobs <= 20


@pytest.mark.parametrize("dialect", [dialect for dialect, _ in DIALECTS], ids=lambda dialect: dialect.name)
@settings(deadline=None, max_examples=200)
@given(body=st.binary(max_size=60))
def test_any_bytes_are_understood_or_refused(dialect: Dialect, body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        dialect.parse(body, 7)
