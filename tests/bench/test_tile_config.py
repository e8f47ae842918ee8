"""What llama.cpp is built with for a CPU that has AMX."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest

from bench.common.install import BEFORE_ALL

SOURCE = """
#include <cstdint>
#include <immintrin.h>
struct alignas(64) Config { uint8_t palette, first, nothing[14]; uint16_t bytes[16]; uint8_t rows[16]; };
void begin() { Config config = {}; config.palette = 1; config.rows[7] = 90; _tile_loadconfig(&config); }
"""


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="needs g++ for x86-64")
def test_all_of_a_configuration_of_tiles_is_stored_before_it_is_loaded() -> None:
    """By itself g++ 12 leaves all of it out but the first bytes, and the first product of tiles is an illegal instruction."""
    options = ["-O2", "-std=c++20", "-mamx-tile", "-include", str(BEFORE_ALL), "-x", "c++", "-S", "-o", "-", "-"]
    assembly = subprocess.run(["g++", *options], input=SOURCE, text=True, capture_output=True, check=True).stdout
    stored = assembly.index("$90")
    assert assembly.index("ldtilecfg") > stored
