"""Checksums of packs: the same with the processor's instruction as without, and as their definition says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from quintet import _core_testing
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.packed import checksums, huge_copy

SIZES = (0, 1, 7, 8, 31, 32, 33, 64, 100, 1000)


def crc(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def expected(data: bytes) -> int:
    """What csrc/checksum.h says."""
    padded = data + bytes(-len(data) % 32)
    lanes = [b"".join(padded[at : at + 8] for at in range(8 * lane, len(padded), 32)) for lane in range(4)]
    return crc(b"".join(crc(lane).to_bytes(4, "little") for lane in lanes))


def noise(size: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def test_the_oracle_is_the_crc_of_the_standard() -> None:
    assert crc(b"123456789") == 0xE3069283  # RFC 3720 and the catalogue of CRCs


@pytest.mark.parametrize("size", SIZES)
def test_both_ways_give_what_the_definition_says(size: int) -> None:
    data = noise(size)
    (found,) = checksums(Cpu(), data, [(0, size)])
    assert found == _core_testing.checksum_portable(data) == expected(data.tobytes())


def test_pieces_are_summed_by_themselves_with_any_number_of_threads() -> None:
    data, pieces = noise(3000), [(0, 1000), (500, 33), (3000, 0), (1, 2999)]
    want = [expected(data[start : start + size].tobytes()) for start, size in pieces]
    assert [checksums(Cpu("", threads), data, pieces).tolist() for threads in (1, 3)] == [want, want]
    assert checksums(Cpu(), data, []).tolist() == []


@pytest.mark.parametrize("piece", [(-1, 1), (0, 101), (101, 0), (50, 1 << 62), (1 << 62, 1 << 62), (0, -1)])
def test_a_piece_outside_the_data_is_refused(piece: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside the data"):
        checksums(Cpu(), noise(100), [piece])


def test_a_copy_is_the_same_bytes_in_other_memory() -> None:
    data = noise((3 << 20) + 5)
    copy = huge_copy(Cpu("", 2), data)
    assert copy.ctypes.data != data.ctypes.data
    assert copy.ctypes.data % (2 << 20) == 0
    np.testing.assert_array_equal(copy, data)
