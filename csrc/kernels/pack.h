// Weights: GGUF tensor types -> the internal formats that the kernels read.
//
// A packed matrix of N output features x K input features (K a multiple of 32) is a sequence of tiles of 16 output columns; a
// tile is a sequence of K/32 blocks. The 16 columns are the 16 lanes of a register, so no kernel ever sums across lanes.
//
// q4, 320 bytes per block:  q[4][64]  group g, byte 4*lane+i: low nibble = w[lane][4g+i], high nibble = w[lane][16+4g+i]
//                           d[16]     fp16 scale per lane        value = d*q + m, q in 0..15
//                           m[16]     fp16 minimum per lane
// q8, 512 bytes per block:  q[8][64]  group g, byte 4*lane+i = w[lane][4g+i], signed, never -128
//     and after the K/32 blocks of a tile: d[K/32][16] fp16 scales, value = d*q; the tile is padded to a multiple of 64 bytes.
// f32, f16, 16 or 8 lines of 64 bytes per 16 columns: w[k][lane]
// bf16, likewise 8: w[k/2][lane][k%2], so that a register of pairs is two of floats after a shift and a mask
//
// The others (codes.h) put the nibbles of q4, or the bytes of q8, together with other bits and scales:
// q4h, 384 bytes per block: q[4][64], d[2][16] and m[2][16]: scale and minimum for each 16 values
// q5,  384 bytes per block: q[4][64], h[64] byte 4*lane+i: bit g = fifth bit of w[lane][4g+i], d[16], m[16]
// q6,  448 bytes per block: q[4][64], h[2][64] half, byte 4*lane+i: bits 2g, 2g+1 = fifth and sixth bit of w[lane][16*half+4g+i], d[2][16];
//                           value = d*(q - 32)
// q8h, 576 bytes per block: q[8][64], d[2][16]
// q4u, q4e, 256 bytes per block: q[4][64], scales after the blocks as in q8; value = d*table[q]: IQ4's uneven steps, FP4's numbers
//
// Rows past N in the last tile are zero (q=0, d=0, m=0).
//
// Files keep these tiles (packs, docs/decisions/0025). So whoever changes a layout above, or which format a type gets, raises kLayout.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "memory.h"

namespace quintet {

constexpr int kLayout = 2;

enum class Format { q4, q8, q4h, q5, q6, q8h, q4u, q4e, f32, f16, bf16 };

// Kept exactly: their products take float activations (float_product.h).
inline bool is_float(Format f) { return f == Format::f32 || f == Format::f16 || f == Format::bf16; }

// What becomes of matrices of float types; `least`: they and all others that would take more become q4.
enum class Floats { q8, q4, kept, least };

struct Packed {
  Format format;
  int rows, cols;     // N, K as given
  size_t tile_bytes;  // stride between tiles of 16 columns
  uint8_t* data;      // the arena's, or given
  int tiles() const { return (rows + 15) / 16; }
  int blocks() const { return cols / 32; }
  size_t bytes() const { return tile_bytes * size_t(tiles()); }
  const uint8_t* tile(int t) const { return data + tile_bytes * size_t(t); }
};

// The GGML types that can be read, by name.
std::vector<std::string> tensor_types();

// Bytes that `rows` x `cols` of GGML type `type` occupy in a file; throws std::invalid_argument for an unknown type or a
// cols that its block size does not divide.
size_t raw_bytes(const std::string& type, int rows, int cols);

// Pack a matrix. `row_order` (empty = identity) maps the packed row n to the source row, so that a loader can permute heads.
// The integers of nearly every type are kept in a format that fits them: then all is exact but what rounding to fp16 changes in the
// scale and minimum (of types that compute them: K, IQ but IQ4_NL). The rest (floats and Q6_K) is quantised to 8 bits per block of 32 by
// the block's largest magnitude, unless `floats` says otherwise. Tiles [tile0, tile1) only, so that callers can split the work.
Packed packed_shape(const std::string& type, int rows, int cols, Floats floats);  // without its data
Packed pack_empty(const std::string& type, int rows, int cols, Floats floats, Arena& arena);
void pack_tiles(Packed& out, const std::string& type, const uint8_t* raw, const std::vector<int>& row_order, int tile0, int tile1);

// Dequantise one row of the raw tensor to float (the reference used by packing and by vectors such as norms and biases).
void dequantize_row(const std::string& type, const uint8_t* raw, int row, int cols, float* out);

// One row of a packed matrix back to float (embedding look-up).
void unpack_row(const Packed& w, int row, float* out);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f);  // round to nearest even

}  // namespace quintet
