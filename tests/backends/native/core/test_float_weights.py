"""Float weights: their product where they are kept, and how near 4 bits come where they are quantised on load."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet import _core_testing
from quintet.backends.native.core.cpu import Cpu, isas

F32 = npt.NDArray[np.float32]
TYPES = ["F32", "F16", "BF16"]
ULP = 2.0**-24


def raw_of(name: str, values: F32) -> npt.NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(gguf.quants.quantize(values, Type[name])).view(np.uint8).reshape(-1)


def stored(name: str, values: F32) -> F32:
    """The values as the type holds them."""
    return np.asarray(gguf.quants.dequantize(raw_of(name, values).reshape(len(values), -1), Type[name]), np.float32)


def product(name: str, weights: F32, x: F32, isa: str = "") -> F32:
    return np.asarray(_core_testing.product(Cpu(isa, 1), name, len(weights), weights.shape[1], raw_of(name, weights), x))


def random(shape: tuple[int, int], seed: int, spread: float = 1.0) -> F32:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * np.exp(rng.normal(size=shape) * spread)).astype(np.float32)


@pytest.mark.parametrize("name", TYPES)
@given(rows=st.integers(1, 50), blocks=st.integers(1, 9), m=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_product_is_the_exact_one_up_to_the_rounding_of_each_addition(name: str, rows: int, blocks: int, m: int, seed: int) -> None:
    weights, x = random((rows, 32 * blocks), seed), random((m, 32 * blocks), seed + 1)
    exact = stored(name, weights).astype(np.float64)
    bound = np.abs(x.astype(np.float64)) @ np.abs(exact).T * 32 * blocks * ULP
    assert (np.abs(product(name, weights, x) - x.astype(np.float64) @ exact.T) <= bound).all()


@pytest.mark.parametrize("name", TYPES)
def test_each_output_is_one_chain_of_fused_additions_in_order(name: str) -> None:
    """The definition, in doubles: a product of floats is exact there; that a sum is rounded twice changes none of these."""
    weights, x = random((16, 64), 5, 0.2), random((3, 64), 6, 0.2)
    exact, expected = stored(name, weights).astype(np.float64), np.zeros((3, 16), np.float32)
    for k in range(64):
        expected = (expected.astype(np.float64) + x[:, k : k + 1].astype(np.float64) * exact[:, k]).astype(np.float32)
    np.testing.assert_array_equal(product(name, weights, x), expected)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("isa", isas()[:-1])
def test_every_instruction_set_gives_the_same_bits_of_a_product(name: str, isa: str) -> None:
    weights, x = random((45, 160), 1, 3.0), random((29, 160), 2, 3.0)
    weights[3, 7], weights[4] = 1e-41, 0  # a subnormal, and a row of nothing
    left, right = product(name, weights, x, isa), product(name, weights, x, "portable")
    np.testing.assert_array_equal(left.view(np.uint32), right.view(np.uint32))


@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    weights, x = random((32, 96), 3), random((31, 96), 4)
    alone = np.concatenate([product(name, weights, row[None]) for row in x])
    for count in (2, 5, 13, 31):
        np.testing.assert_array_equal(product(name, weights, x[:count]).view(np.uint32), alone[:count].view(np.uint32))


@pytest.mark.parametrize("name", TYPES)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_kept_weights_are_what_the_file_holds_whatever_their_bits(name: str, rows: int, blocks: int, seed: int) -> None:
    size = {"F32": 4, "F16": 2, "BF16": 2}[name]
    raw = np.random.default_rng(seed).integers(0, 256, rows * 32 * blocks * size, dtype=np.uint8)
    packed = _core_testing.pack_roundtrip(name, rows, 32 * blocks, raw, quantize="none")
    with np.errstate(invalid="ignore"):
        expected = np.asarray(gguf.quants.dequantize(raw.reshape(rows, -1), Type[name]), np.float32)
    np.testing.assert_array_equal(packed, expected)


def to_4_bits(values: F32, name: str = "F32") -> F32:
    return np.asarray(_core_testing.pack_roundtrip(name, len(values), values.shape[1], raw_of(name, values), quantize="q4"))


def squares(values: F32) -> float:
    return float(np.square(values.astype(np.float64)).sum())


@pytest.mark.parametrize("kind", ["normal", "laplace", "uniform"])
def test_4_bits_leave_a_sixth_less_error_than_the_line_through_the_ends(kind: str) -> None:
    """Beside Q4_1 as the ``gguf`` package makes it; and no block is worse than there."""
    values = getattr(np.random.default_rng(1), kind)(size=(64, 512)).astype(np.float32)
    plain = np.asarray(gguf.quants.dequantize(gguf.quants.quantize(values, Type.Q4_1), Type.Q4_1))
    ours = to_4_bits(values)
    assert squares(ours - values) < 0.86 * squares(plain - values)
    by_block = [np.square((one - values).astype(np.float64)).reshape(-1, 32).sum(axis=1) for one in (ours, plain)]
    assert (by_block[0] <= by_block[1] * 1.01 + 1e-12).all()


def test_4_bits_hold_what_fits_them_exactly() -> None:
    codes = np.random.default_rng(2).integers(0, 16, (5, 96)).astype(np.float32)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    values = codes * np.float32(0.125) - np.float32(0.75)
    np.testing.assert_array_equal(to_4_bits(values, "BF16"), values)
    constant = np.full((1, 32), 0.375, np.float32)
    np.testing.assert_array_equal(to_4_bits(constant), constant)
    assert not to_4_bits(np.zeros((3, 32), np.float32)).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -7e4])
def test_a_value_that_4_bits_cannot_hold_makes_its_block_nan_and_no_other(bad: float) -> None:
    values = np.random.default_rng(3).normal(size=(2, 96)).astype(np.float32)
    good = to_4_bits(values)
    values[1, 40] = bad
    packed, spoilt = to_4_bits(values), np.zeros((2, 96), bool)
    spoilt[1, 32:64] = True
    np.testing.assert_array_equal(np.isnan(packed), spoilt)
    np.testing.assert_array_equal(packed[~spoilt], good[~spoilt])


@pytest.mark.parametrize("tiny", [1e-45, 1e-30, 2.0**-24, 6e-5])
def test_blocks_near_the_least_fp16_keep_its_precision(tiny: float) -> None:
    values = np.linspace(-tiny, tiny, 32, dtype=np.float32)[None]
    assert np.abs(to_4_bits(values) - values).max() <= max(tiny / 15, 2.0**-21)  # 15 times the rounding of a scale, and that of the minimum


def test_a_quantised_type_is_what_it_is_whatever_becomes_of_floats() -> None:
    raw = np.ascontiguousarray(gguf.quants.quantize(random((20, 64), 9), Type.Q8_0)).view(np.uint8).reshape(-1)
    packed = [_core_testing.pack_roundtrip("Q8_0", 20, 64, raw, quantize=quantize) for quantize in ("q8", "q4", "none")]
    np.testing.assert_array_equal(packed[0], packed[1])
    np.testing.assert_array_equal(packed[0], packed[2])
    with pytest.raises(ValueError, match="quantize must be q8, q4, none or least"):
        _core_testing.pack_roundtrip("Q8_0", 20, 64, raw, quantize="q5")
