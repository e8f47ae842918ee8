// The formats of codes (pack.h): where a block keeps what, for the packer and the kernels. All are products of unsigned or signed bytes, so
// that what is written here is all in which they differ.
#pragma once
#include "kernels/pack.h"

namespace quintet {
namespace {

struct Coding {
  int low, high;        // bytes of nibbles, or of whole codes; and of the bits above the nibble, before the scales
  int scales;           // of a lane's 32 values: one, or one for each 16
  bool minima;          // as many
  bool apart;           // scales are not in the block but after all blocks of the tile
  int offset;           // a code stands for code - offset,
  const int8_t* table;  // or for what is here
  constexpr size_t scale_at() const { return size_t(low + high); }
  constexpr size_t minimum_at() const { return scale_at() + size_t(32 * scales); }
  constexpr size_t block() const { return scale_at() + (apart ? 0 : size_t(32 * scales * (minima ? 2 : 1))); }
  constexpr size_t tile(size_t blocks) const { return (blocks * (block() + (apart ? 32 : 0)) + 63) / 64 * 64; }
  constexpr int lines() const { return int(tile(1) / 64); }  // of the cache, that a block has with its scales
};

constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};  // IQ4's
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // FP4's, twice what they stand for

inline bool is_coded(Format f) { return f != Format::q4 && f != Format::q8 && !is_float(f); }

constexpr Coding coding(Format f) {
  switch (f) {
    case Format::q4: return {256, 0, 1, true, false, 0, nullptr};
    case Format::q8: return {512, 0, 1, false, true, 0, nullptr};
    case Format::q4h: return {256, 0, 2, true, false, 0, nullptr};
    case Format::q5: return {256, 64, 1, true, false, 0, nullptr};
    case Format::q6: return {256, 128, 2, false, false, 32, nullptr};
    case Format::q8h: return {512, 0, 2, false, false, 0, nullptr};
    case Format::q4u: return {256, 0, 1, false, true, 0, kUneven};
    default: return {256, 0, 1, false, true, 0, kE2m1};
  }
}

// op<F>() for the format, which is one of these: so that it is known while compiling.
template <class Op> inline void for_coded(Format f, Op op) {
  switch (f) {
    case Format::q4h: return op.template operator()<Format::q4h>();
    case Format::q5: return op.template operator()<Format::q5>();
    case Format::q6: return op.template operator()<Format::q6>();
    case Format::q8h: return op.template operator()<Format::q8h>();
    case Format::q4u: return op.template operator()<Format::q4u>();
    default: return op.template operator()<Format::q4e>();
  }
}

// Value i of a lane's 32, before the scale.
inline int value_of(const Coding& c, const uint8_t* block, int lane, int i) {
  const int at = 4 * lane + i % 4, group = i % 16 / 4, half = i / 16;
  if (c.low == 512) return int8_t(block[64 * (i / 4) + at]);
  int code = block[64 * group + at] >> 4 * half & 15;
  if (c.high == 64) code |= (block[c.low + at] >> i / 4 & 1) << 4;
  if (c.high == 128) code |= (block[c.low + 64 * half + at] >> 2 * group & 3) << 4;
  return c.table ? c.table[code] : code - c.offset;
}

}  // namespace
}  // namespace quintet
