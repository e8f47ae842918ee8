// Matrices of float types (F32, F16, BF16): kept as they are, or quantised to 4 bits. To 8 bits: pack.cpp, as other types.
#pragma once
#include "kernels/pack.h"

namespace quintet {

// Bytes of a tile of `cols` columns in one of the float formats.
size_t float_tile_bytes(Format format, int cols);

// The `count` source rows that are the lanes of this tile, as they are.
void pack_tile_floats(Format format, const uint8_t* const* rows, int count, int cols, uint8_t* tile);

// One row of a packed matrix of a float format.
void unpack_float_row(const Packed& w, int row, float* out);

// Reads the 32 values of block `block` of a source row.
using DecodeBlock = void (*)(const uint8_t* row, int block, float* out);

// The rows as q4: of each block the scale and minimum with the least sum of squared errors that a search finds, each an fp16. A block that
// holds a NaN, an infinity or a magnitude above 65504 gets d = NaN, so all 32 values unpack to NaN.
void pack_tile_to_q4(DecodeBlock decode, const uint8_t* const* rows, int count, int blocks, uint8_t* tile);

}  // namespace quintet
