"""Packing of GGUF tensors, against the ``gguf`` package's own dequantisation."""

from __future__ import annotations

from typing import NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.dequantize import dequantize

from quintet import _core_testing
from quintet.models.gguf import TENSOR_TYPES

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


class Layout(NamedTuple):
    """A stored block: values, bytes, and the byte offsets of its fp16 fields."""

    values: int
    size: int
    halves: tuple[int, ...]


LAYOUTS = {
    "F32": Layout(1, 4, ()),
    "F16": Layout(1, 2, (0,)),
    "BF16": Layout(1, 2, ()),
    "Q4_0": Layout(32, 18, (0,)),
    "Q4_1": Layout(32, 20, (0, 2)),
    "Q5_0": Layout(32, 22, (0,)),
    "Q5_1": Layout(32, 24, (0, 2)),
    "Q8_0": Layout(32, 34, (0,)),
    "Q2_K": Layout(256, 84, (80, 82)),
    "Q3_K": Layout(256, 110, (108,)),
    "Q4_K": Layout(256, 144, (0, 2)),
    "Q5_K": Layout(256, 176, (0, 2)),
    "Q6_K": Layout(256, 210, (208,)),
    "IQ1_S": Layout(256, 50, (0,)),
    "IQ1_M": Layout(256, 56, ()),
    "IQ2_XXS": Layout(256, 66, (0,)),
    "IQ2_XS": Layout(256, 74, (0,)),
    "IQ2_S": Layout(256, 82, (0,)),
    "IQ3_XXS": Layout(256, 98, (0,)),
    "IQ3_S": Layout(256, 110, (0,)),
    "IQ4_NL": Layout(32, 18, (0,)),
    "IQ4_XS": Layout(256, 136, (0,)),
    "TQ1_0": Layout(256, 54, (52,)),
    "TQ2_0": Layout(256, 66, (64,)),
    "MXFP4": Layout(32, 17, ()),
    "NVFP4": Layout(64, 36, ()),
    "Q1_0": Layout(128, 18, (0,)),
}
TYPES = list(LAYOUTS)
FLOATS = ["F32", "F16", "BF16"]
REQUANTISED = [*FLOATS, "Q6_K"]
KEPT = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K"]
"""Types of which ``kept_scales`` tells the scale and the minimum that are kept."""
EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0"]
"""Types whose scale is an fp16 number, or one of a few that fp16 has."""
MINIMA = {"Q2_K": (15, 3, 15), "Q4_K": (63, 15, 63), "Q5_K": (63, 31, 63)}
"""Types whose scale and minimum are integers times an fp16 number: their largest scale, code and minimum."""
SCALED = [name for name in TYPES if name not in (*KEPT, *MINIMA, *REQUANTISED, "Q5_1")]
"""Types whose integers are kept with a scale that is rounded to fp16."""
LARGEST_SCALE = np.float32(65504)

rows_and_blocks = st.tuples(st.integers(1, 40), st.integers(1, 3))
seeds = st.integers(0, 2**32 - 1)


def oracle(name: str, raw: U8, rows: int) -> F32:
    with np.errstate(all="ignore"):
        return dequantize(raw.reshape(rows, -1), gguf.GGMLQuantizationType[name])


def columns(name: str, blocks: int) -> int:
    return blocks * max(32, LAYOUTS[name].values)


def random_bytes(name: str, rows: int, cols: int, seed: int) -> U8:
    layout = LAYOUTS[name]
    return np.random.default_rng(seed).integers(0, 256, rows * cols // layout.values * layout.size, dtype=np.uint8)


def with_halves(name: str, raw: U8, halves: npt.NDArray[np.float16]) -> U8:
    """The blocks with their fp16 fields replaced by ``halves`` [blocks, fields]."""
    layout = LAYOUTS[name]
    blocks = raw.reshape(-1, layout.size).copy()
    for field, offset in enumerate(layout.halves):
        blocks[:, offset : offset + 2] = np.ascontiguousarray(halves[:, field : field + 1]).view(np.uint8)
    return blocks.reshape(-1)


def weights(name: str, rows: int, cols: int, seed: int) -> U8:
    """Random blocks with every bit of their integers in play and scales such as models have."""
    rng = np.random.default_rng(seed)
    if name in FLOATS:
        values = (rng.normal(size=(rows, cols)) * 10.0 ** rng.integers(-7, 3, (rows, 1))).astype(np.float32)
        return np.ascontiguousarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])).view(np.uint8).reshape(-1)
    raw = random_bytes(name, rows, cols, seed)
    shape = (raw.size // LAYOUTS[name].size, len(LAYOUTS[name].halves))
    raw = with_halves(name, raw, (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 2, shape)).astype(np.float16))
    blocks = raw.reshape(-1, LAYOUTS[name].size)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(128 - 24, 128 + 16, len(blocks))  # the powers of two that fp16 has
    if name == "IQ1_M":  # its fp16 is the highest nibbles of four words
        words = (rng.normal(size=len(blocks)) * 10.0 ** rng.integers(-4, 2, len(blocks))).astype(np.float16).view(np.uint16)
        nibbles = (words[:, None] >> np.array([0, 4, 8, 12], np.uint16)).astype(np.uint8) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles << 4
    if name == "Q8_0":
        raw.reshape(-1, 34)[:, 2:][raw.reshape(-1, 34)[:, 2:] == 0x80] = 0x81  # no quantiser writes -128
    return raw


def blocks_of(values: F32) -> F32:
    return values.reshape(-1, 32)


def smallest_half_scale(magnitude: F32) -> F32:
    """The smallest fp16 d with magnitude / d <= 127, found by stepping from the nearest."""
    d = (magnitude / np.float32(127)).astype(np.float16)
    low = d.astype(np.float32) * 127 < magnitude
    with np.errstate(over="ignore"):  # of the neighbour of the largest fp16, which is not taken
        above = np.nextafter(d, np.float16(np.inf))
    return np.asarray(np.where(low, above, d), np.float32)


def integers(name: str, raw: U8) -> F32:
    """The stored integers of a kept type [blocks of 32, 32], read by the oracle from blocks whose scales are 1 and minima 0."""
    halves = np.tile(np.array([1, 0], np.float16)[: len(LAYOUTS[name].halves)], (raw.size // LAYOUTS[name].size, 1))
    plain = with_halves(name, raw, halves)
    if name == "Q4_K":
        plain.reshape(-1, 144)[:, 4:16] = [1] * 4 + [0] * 4 + [1] * 4
    return blocks_of(oracle(name, plain, 1)) + np.float32(8 if name == "Q4_0" else 0)


def kept_scales(name: str, raw: U8) -> tuple[F32, F32]:
    """Scale and minimum that the packed block must hold, as fp16 values [blocks of 32, 1]."""
    layout = LAYOUTS[name]
    blocks = raw.reshape(-1, layout.size)
    fields = [blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in layout.halves]
    if name == "Q4_1":
        return fields[0], fields[1]
    if name == "Q4_0":
        return fields[0], (-8 * fields[0]).astype(np.float16).astype(np.float32)
    if name != "Q4_K":
        return fields[0], np.zeros_like(fields[0])
    scales, minima = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16].copy())
    d, m = fields[0] * scales.astype(np.float32), -(fields[1] * minima.astype(np.float32))
    return d.astype(np.float16).astype(np.float32).reshape(-1, 1), m.astype(np.float16).astype(np.float32).reshape(-1, 1)


def assert_kept(name: str, raw: U8, packed: F32) -> None:
    """The packed blocks are ``d * q + m`` in fp32, with the file's integers and the block's fp16 scale and minimum."""
    with np.errstate(all="ignore"):
        d, m = kept_scales(name, raw)
        q = integers(name, raw)
        expected = d * np.maximum(q, -127) if name in ("Q5_0", "Q8_0") else d * q + m
    np.testing.assert_array_equal(blocks_of(packed), expected)


def assert_scaled(values: F32, packed: F32) -> None:
    """Each value is the oracle's but for the rounding of its scale to fp16; of 32 values whose scale fp16 cannot hold none is finite."""
    before, after = blocks_of(values), blocks_of(packed)
    finite = np.isfinite(before)
    assert not np.isfinite(after[~finite]).any()
    with np.errstate(all="ignore"):
        close = np.abs(after - before) <= np.abs(before) * 2**-11 + 127 * 2**-25
        beyond = (np.abs(before).max(axis=1, keepdims=True) > LARGEST_SCALE) & ~np.isfinite(after)
    assert (close | beyond | ~finite).all()


def assert_requantised(values: F32, packed: F32) -> None:
    """Each block is within half a step of its fp16 scale, or, if no fp16 scale can hold it, NaN throughout."""
    before, after = blocks_of(values), blocks_of(packed)
    with np.errstate(all="ignore"):
        magnitude = np.abs(before).max(axis=1, keepdims=True)
        fits = magnitude[:, 0] <= 127 * LARGEST_SCALE
    assert np.isnan(after[~fits]).all()
    step = smallest_half_scale(magnitude[fits]).astype(np.float64)
    error = np.abs(after[fits].astype(np.float64) - before[fits])
    assert (error <= step * (0.5 + 1e-5)).all()
    multiples = np.divide(after[fits], step, out=np.zeros(after[fits].shape), where=step > 0)
    assert (multiples == np.rint(multiples)).all()
    assert (np.abs(multiples) <= 127).all()


@pytest.mark.parametrize("name", TYPES)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_dequantized_values_equal_those_of_gguf(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    np.testing.assert_array_equal(_core_testing.dequantize(name, rows, cols, raw), oracle(name, raw, rows))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("cols", [1, 31, 33, 100])
def test_float_vectors_need_not_fill_a_block(name: str, cols: int) -> None:
    raw = weights(name, 3, cols, seed=cols)
    np.testing.assert_array_equal(_core_testing.dequantize(name, 3, cols, raw), oracle(name, raw, 3))


def test_every_half_has_its_value() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    with np.errstate(all="ignore"):
        expected = bits.view(np.float16).astype(np.float32)
    got = _core_testing.dequantize("F16", 1, 65536, bits.view(np.uint8))[0]
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))
    np.testing.assert_array_equal(np.isnan(got), ~numbers)


@pytest.mark.parametrize("name", EXACT)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_packing_loses_nothing_of_types_whose_scale_fp16_holds(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    np.testing.assert_array_equal(_core_testing.pack_roundtrip(name, rows, cols, raw), oracle(name, raw, rows))


def rounding_of_minima(name: str, raw: U8) -> npt.NDArray[np.float64]:
    """How far a value may be from the oracle's if its block's scale and minimum are rounded to fp16 [blocks of 32, 1]."""
    layout, (scale, code, minimum) = LAYOUTS[name], MINIMA[name]
    blocks = raw.reshape(-1, layout.size)
    d, m = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float64) for at in layout.halves)
    largest = np.abs(d) * scale * code + np.abs(m) * minimum
    return np.asarray(np.repeat(largest, layout.values // 32, axis=0) * 2**-11 + (code + 1) * 2**-25)


@pytest.mark.parametrize("name", MINIMA)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_types_with_minima_are_within_the_rounding_of_scale_and_minimum(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    packed = _core_testing.pack_roundtrip(name, rows, cols, raw)
    assert (np.abs(blocks_of(packed) - blocks_of(oracle(name, raw, rows))) <= rounding_of_minima(name, raw)).all()


@pytest.mark.parametrize("name", SCALED)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=10, deadline=None)
def test_integers_are_kept_and_their_scale_is_rounded(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    assert_scaled(oracle(name, raw, rows), _core_testing.pack_roundtrip(name, rows, cols, raw))


@pytest.mark.parametrize(("exponent", "kept"), [(103, False), (104, True), (143, True), (144, False)])
def test_mxfp4_is_exact_where_fp16_has_the_power_of_two(exponent: int, kept: bool) -> None:
    """Else the block is zero (6 * 2^-25 is the largest value lost) or infinite: no file of a model has such a block."""
    raw = np.array([exponent, *[0x21] * 16], np.uint8)
    packed = _core_testing.pack_roundtrip("MXFP4", 1, 32, raw)
    assert np.array_equal(packed, oracle("MXFP4", raw, 1)) is kept
    assert kept or (not packed.any() if exponent < 128 else np.isinf(packed).all())


@pytest.mark.parametrize("name", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_every_entry_of_every_codebook_is_the_librarys(name: str) -> None:
    """38,400 random numbers of at most 2,048 entries leave none out."""
    raw = weights(name, 1200, 256, seed=5)
    np.testing.assert_array_equal(_core_testing.dequantize(name, 1200, 256, raw), oracle(name, raw, 1200))


def test_the_reader_and_the_core_know_the_same_types() -> None:
    assert list(TENSOR_TYPES) == _core_testing.tensor_types() == TYPES


@pytest.mark.parametrize("name", REQUANTISED)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_what_is_quantised_here_is_within_half_a_step_of_the_blocks_scale(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    assert_requantised(oracle(name, raw, rows), _core_testing.pack_roundtrip(name, rows, cols, raw))


@pytest.mark.parametrize("name", TYPES)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=10, deadline=None)
def test_row_order_moves_whole_rows(name: str, shape: tuple[int, int], seed: int) -> None:
    rows, cols = shape[0], columns(name, shape[1])
    raw = weights(name, rows, cols, seed)
    order = np.random.default_rng(seed).permutation(rows)
    moved = _core_testing.pack_roundtrip(name, rows, cols, raw, row_order=order.tolist())
    np.testing.assert_array_equal(moved, _core_testing.pack_roundtrip(name, rows, cols, raw)[order])


@pytest.mark.parametrize("name", TYPES)
@given(shape=rows_and_blocks, seed=seeds)
@settings(max_examples=25, deadline=None)
def test_hostile_bytes_give_what_is_documented(name: str, shape: tuple[int, int], seed: int) -> None:
    """Random bytes: infinite and NaN scales, magnitudes that no fp16 scale holds, subnormals, -128."""
    rows, cols = shape[0], columns(name, shape[1])
    raw = random_bytes(name, rows, cols, seed)
    values = oracle(name, raw, rows)
    np.testing.assert_array_equal(_core_testing.dequantize(name, rows, cols, raw), values)
    packed = _core_testing.pack_roundtrip(name, rows, cols, raw)
    if name in KEPT:
        assert_kept(name, raw, packed)
    elif name in SCALED:
        assert_scaled(values, packed)
    elif name == "Q5_1":
        np.testing.assert_array_equal(packed, values)
    elif name in MINIMA:
        before, after = blocks_of(values), blocks_of(packed)
        with np.errstate(all="ignore"):
            bound = rounding_of_minima(name, raw)
            assert ((np.abs(after - before) <= bound) | ~np.isfinite(after) & ~(bound < LARGEST_SCALE * 2**-11)).all()
        assert not np.isfinite(after[~np.isfinite(before)]).any()
    else:
        assert_requantised(values, packed)


def packed_floats(values: list[float] | F32) -> F32:
    block = np.zeros(32, np.float32)
    block[: len(values)] = values
    return np.asarray(_core_testing.pack_roundtrip("F32", 1, 32, block.view(np.uint8))[0][: len(values)])


def test_ties_go_to_even() -> None:
    assert packed_floats([127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]).tolist() == [127, 0, 2, 2, 0, -2, 126]


def test_values_are_rounded_against_the_scale_that_is_stored() -> None:
    """1000/127 becomes the fp16 7.875. 996.1 is 126.49 steps of that, but 126.51 steps of the unrounded scale."""
    assert packed_floats([1000, 996.1]).tolist() == [127 * 7.875, 126 * 7.875]


def test_a_zero_block_stays_zero() -> None:
    assert not packed_floats(np.zeros(32, np.float32)).any()


@pytest.mark.parametrize("tiny", [1e-45, 2.0**-26, 2.0**-24, 3e-7])
def test_blocks_too_small_for_a_normal_scale_keep_half_a_step(tiny: float) -> None:
    assert abs(packed_floats([tiny])[0] - tiny) <= 2.0**-25


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -8.4e6])
def test_a_value_that_cannot_be_held_makes_its_block_nan_and_no_other(bad: float) -> None:
    values = np.ones((2, 96), np.float32)
    values[1, 40] = bad
    packed = _core_testing.pack_roundtrip("F32", 2, 96, values.reshape(-1).view(np.uint8))
    spoilt = np.zeros((2, 96), bool)
    spoilt[1, 32:64] = True
    np.testing.assert_array_equal(np.isnan(packed), spoilt)
    np.testing.assert_allclose(packed[~spoilt], 1, rtol=1e-3)


def test_the_largest_scale_still_holds_its_block() -> None:
    largest = float(127 * LARGEST_SCALE)
    assert packed_floats([largest, -largest]).tolist() == [largest, -largest]


@pytest.mark.parametrize(
    ("name", "cols", "rule"),
    [
        ("Q8_K", 256, "tensor type must be one of"),
        ("Q4_1", 48, "multiple of 32"),
        ("Q6_K", 128, "multiple of 256"),
        ("F32", 40, "multiple of 32"),
    ],
)
def test_shapes_that_cannot_be_packed_are_refused_by_rule(name: str, cols: int, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        _core_testing.pack_roundtrip(name, 1, cols, np.zeros(cols * 4, np.uint8))


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 3], [-1, 0, 1]])
def test_a_row_order_that_does_not_name_the_rows_is_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match="row"):
        _core_testing.pack_roundtrip("Q8_0", 3, 32, np.zeros(3 * 34, np.uint8), row_order=order)
