// Packing and unpacking of the formats in codes.h.
#pragma once
#include <cstring>
#include "kernels/codes.h"
#include "kernels/ggml.h"

namespace quintet {
namespace {

uint32_t four(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
void put_four(uint8_t* p, uint32_t word) { std::memcpy(p, &word, 4); }

// Four codes at a time, byte by byte in a word.
void write_codes(const Coding& c, uint8_t* block, const uint8_t* q) {
  if (c.low == 512) {
    for (int g = 0; g < 8; g++) std::memcpy(block + 64 * g, q + 4 * g, 4);
    return;
  }
  uint32_t bits[2] = {0, 0};
  for (int g = 0; g < 4; g++) {
    const uint32_t first = four(q + 4 * g), second = four(q + 16 + 4 * g);
    put_four(block + 64 * g, (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4);
    const int at = c.high == 64 ? g : 2 * g;
    bits[0] |= (first >> 4 & 0x03030303) << at;
    bits[1] |= (second >> 4 & 0x03030303) << at;
  }
  if (c.high == 64) put_four(block + c.low, bits[0] | bits[1] << 4);
  if (c.high == 128) put_four(block + c.low, bits[0]), put_four(block + c.low + 64, bits[1]);
}

void write_lane(const Coding& c, uint8_t* tile, int blocks, int b, int lane, const Lane& from) {
  uint8_t* block = tile + c.block() * size_t(b);
  write_codes(c, block + 4 * lane, from.q);
  uint8_t* scales = (c.apart ? tile + c.block() * size_t(blocks) + 32 * size_t(b) : block + c.scale_at()) + 2 * lane;
  for (int i = 0; i < c.scales; i++) {
    std::memcpy(scales + 32 * i, &from.d[i], 2);
    if (c.minima) std::memcpy(scales + 32 * (c.scales + i), &from.m[i], 2);
  }
}

// A type's block as a lane of its format: as it says itself, or from its integers.
template <class T> Lane lane_of(const uint8_t* row, int b) {
  if constexpr (requires { T::lane(row, b); }) {
    return T::lane(row, b);
  } else {
    const Integers v = T::read(row, b);
    Lane out;
    for (int i = 0; i < kBlock; i++) out.q[i] = uint8_t(v.q[i] + coding(T::packed).offset);
    for (int i = 0; i < 2; i++) out.d[i] = float_to_half_bits(v.d[i]);
    return out;
  }
}

template <class T> void pack_tile_codes(const uint8_t* const* rows, int count, int blocks, uint8_t* tile) {
  constexpr Coding c = coding(T::packed);
  for (int b = 0; b < blocks; b++)
    for (int lane = 0; lane < count; lane++) write_lane(c, tile, blocks, b, lane, lane_of<T>(rows[lane], b));
}

void unpack_codes(const Packed& w, const uint8_t* tile, int lane, float* out) {
  const Coding c = coding(w.format);
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t *block = tile + c.block() * size_t(b), *apart = tile + c.block() * size_t(w.blocks()) + 32 * size_t(b);
    const uint8_t* scales = (c.apart ? apart : block + c.scale_at()) + 2 * lane;
    for (int i = 0; i < kBlock; i++) {
      const uint8_t* d = scales + 32 * (c.scales == 2 ? i / 16 : 0);
      const float m = c.minima ? load_half(d + 32 * c.scales) : -0.0f;
      *out++ = load_half(d) * float(value_of(c, block, lane, i)) + m;
    }
  }
}

}  // namespace
}  // namespace quintet
