"""Safetensors files: what a good one holds, and that no other gets past a ``ModelError`` of one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.folders import raw, write_safetensors

from quintet.errors import ModelError
from quintet.models.files import Map
from quintet.models.folder.safetensors import StoredTensor, read_tensors

GOOD = {"a": raw(np.arange(6, dtype=np.float32).reshape(2, 3)), "b": ("BF16", (4,), bytes(8)), "c": ("F16", (1, 2, 1), bytes(4))}
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def read(path: Path) -> dict[str, StoredTensor]:
    return read_tensors(path, Map(path, 8))


def put(path: Path, header: object, data: bytes = bytes(8), length: int | None = None) -> Path:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + data)
    return path


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    found = read(write_safetensors(tmp_path / "m.safetensors", GOOD))
    assert {name: (one.type, one.shape, one.data.tobytes()) for name, one in found.items()} == GOOD
    assert (found["a"].rows, found["a"].cols, found["b"].rows, found["b"].cols) == (2, 3, 1, 4)
    assert all(one.data.readonly for one in found.values())


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "the header: must hold an object"),
        (b'{"a": 1', "the header: must be JSON"),
        (b"\xff", "the header: must be JSON"),
        (b'{"a":' * 30000, "the header: is nested too deep"),
        ({"a": 5}, "tensor 'a' must have a dtype, a shape and data_offsets"),
        ({"a": {**ENTRY, "more": 1}}, "tensor 'a' must have a dtype, a shape and data_offsets, and no more"),
        ({"a": {**ENTRY, "dtype": "F64"}}, "tensor 'a' must be one of F32 F16 BF16 to be read"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3"}}, "use the repository of the model that is not quantised, or a GGUF file), got 'F8_E4M3'"),
        ({"a": {**ENTRY, "dtype": ["F32"]}}, "tensor 'a' must be one of F32 F16 BF16"),
        ({"a": {**ENTRY, "shape": [3]}}, "tensor 'a' must have 12 bytes, as its dtype and shape say, got 8"),
        ({"a": {**ENTRY, "shape": []}}, "must have a shape of 1 to 4 counts from 1 up"),
        ({"a": {**ENTRY, "shape": [0]}}, "must have a shape of 1 to 4 counts from 1 up"),
        ({"a": {**ENTRY, "shape": [-2]}}, "must have a shape of 1 to 4 counts from 1 up"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, "must have a shape of 1 to 4 counts from 1 up"),
        ({"a": {**ENTRY, "shape": [1 << 62, 4]}}, "must have a shape of 1 to 4 counts from 1 up"),
        ({"a": {**ENTRY, "data_offsets": [0, 9]}}, "tensor 'a' must have data_offsets of two counts, in order and at most 8"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "tensor 'a' must have data_offsets of two counts"),
        ({"a": {**ENTRY, "data_offsets": [-8, 0]}}, "tensor 'a' must have data_offsets of two counts"),
        ({"a": {**ENTRY, "data_offsets": "08"}}, "tensor 'a' must have data_offsets of two counts"),
        ({"a": ENTRY, "b": ENTRY}, "tensor 'b' must begin at byte 8 of the data, where the one before it ends, got 0"),
        ({"a": {**ENTRY, "shape": [1], "data_offsets": [4, 8]}}, "tensor 'a' must begin at byte 0 of the data"),
        ({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}, "has 8 bytes of tensors where its header tells of 4"),
        (b'{"a": {}, "a": {}}', "key 'a' is there twice"),
    ],
)
def test_a_wrong_header_is_refused_by_what_is_wrong(header: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        read(put(tmp_path / "m.safetensors", header))
    assert said in str(error.value)
    assert str(error.value).startswith("m.safetensors: ")


@pytest.mark.parametrize("length", [9, 1 << 26, 1 << 63, (1 << 64) - 1])
def test_a_header_must_fit(length: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the length of the header must be at most"):
        read(put(tmp_path / "m.safetensors", b"", length=length))


def test_the_order_in_the_header_is_free(tmp_path: Path) -> None:
    second = {"dtype": "BF16", "shape": [4], "data_offsets": [8, 16]}
    assert list(read(put(tmp_path / "m.safetensors", {"b": second, "a": ENTRY}, bytes(16)))) == ["b", "a"]


def numbers() -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(-9, 40), st.integers(), st.none(), st.text(max_size=3), st.lists(st.integers(-3, 20), max_size=4))


@settings(max_examples=200, deadline=None)
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__", "\udc80", "c\n"]),
        st.one_of(
            numbers(),
            st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from(["F32", "BF16", "F16", "I8", "", 3]),
                    "shape": st.one_of(st.lists(st.integers(-1, 5), max_size=5), numbers()),
                    "data_offsets": st.one_of(st.lists(st.integers(0, 24), min_size=2, max_size=2), numbers()),
                }
            ),
        ),
        max_size=3,
    ),
    data=st.binary(max_size=24),
)
def test_whatever_the_header_says_is_read_within_the_file_or_refused(header: dict[str, Any], data: bytes, tmp_path_factory: Any) -> None:
    path = put(tmp_path_factory.getbasetemp() / "any.safetensors", header, data)
    try:
        found = read(path)
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert sum(one.data.nbytes for one in found.values()) == len(data)


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 400), byte=st.integers(0, 255), end=st.integers(0, 400))
def test_a_file_that_is_cut_or_changed_never_does_more_than_fail(at: int, byte: int, end: int, tmp_path_factory: Any) -> None:
    path = write_safetensors(tmp_path_factory.getbasetemp() / "hurt.safetensors", GOOD)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    path.write_bytes(content[: end or None])
    try:
        read(path)
    except ModelError as error:
        assert "\n" not in str(error)
