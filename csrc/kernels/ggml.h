// GGML's stored blocks, read in 32s of one row: as floats, and as integers with fp16 scales where a type keeps them in the packed form.
// Byte order is little-endian, no pointer needs an alignment, and nothing is read past the blocks of the row.
// Internal linkage for the reason given in half.h.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include "kernels/half.h"

namespace quintet {
namespace {

constexpr int kBlock = 32;

uint16_t load16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
uint32_t load32(const uint8_t* p) { return uint32_t(load16(p)) | uint32_t(load16(p + 2)) << 16; }
float load_half(const uint8_t* p) { return half_bits_to_float(load16(p)); }

// One block of 32 values of one row, ready to be written to its lane.
struct Q4Block {
  uint8_t q[16];  // byte i: low nibble = value i, high nibble = value 16 + i
  uint16_t d, m;
};
struct Q8Block {
  int8_t q[32];
  uint16_t d;
};

// A GGML type: `values` per stored block of `bytes`. Every type has decode(), which reads the 32 values of block b of a row as the
// reference implementation does; a type whose integers are kept has load() as well. A row's blocks are addressed in 32s.
struct F32 {
  static constexpr int values = 1, bytes = 4;
  static void decode(const uint8_t* row, int b, float* out) {
    for (int i = 0; i < kBlock; i++) out[i] = std::bit_cast<float>(load32(row + size_t(b) * 128 + 4 * i));
  }
};

struct F16 {
  static constexpr int values = 1, bytes = 2;
  static void decode(const uint8_t* row, int b, float* out) {
    for (int i = 0; i < kBlock; i++) out[i] = load_half(row + size_t(b) * 64 + 2 * i);
  }
};

struct BF16 {
  static constexpr int values = 1, bytes = 2;
  static void decode(const uint8_t* row, int b, float* out) {
    for (int i = 0; i < kBlock; i++) out[i] = std::bit_cast<float>(uint32_t(load16(row + size_t(b) * 64 + 2 * i)) << 16);
  }
};

// The 32 integers of a block as they are stored, before an offset or a minimum. In GGML's order of nibbles byte i holds values i (low)
// and 16 + i (high).
struct Codes {
  uint8_t q[32];
};

Codes nibbles(const uint8_t* p) {
  Codes c;
  for (int i = 0; i < 16; i++) c.q[i] = p[i] & 15;
  for (int i = 0; i < 16; i++) c.q[16 + i] = p[i] >> 4;
  return c;
}

// Fifth bits 0..31 in four bytes: each byte is spread over eight, bit i of it into bit 4 of the i-th.
Codes with_fifth_bits(Codes c, const uint8_t* high) {
  for (int g = 0; g < 4; g++) {
    const uint64_t bits = (high[g] * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t spread = ((bits + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
    uint64_t low;
    std::memcpy(&low, c.q + 8 * g, 8);
    low |= spread;
    std::memcpy(c.q + 8 * g, &low, 8);
  }
  return c;
}

// The low or high nibbles of 32 bytes.
Codes half_bytes(const uint8_t* p, bool high) {
  Codes c;
  if (high)
    for (int i = 0; i < kBlock; i++) c.q[i] = p[i] >> 4;
  else
    for (int i = 0; i < kBlock; i++) c.q[i] = p[i] & 15;
  return c;
}

// `value` where the byte has the bit: a comparison vectorises on bytes, a shift by a variable does not.
Codes where_bit(const uint8_t* p, int bit, int value) {
  const uint8_t mask = uint8_t(1 << bit), set = uint8_t(value);
  Codes c;
  for (int i = 0; i < kBlock; i++) c.q[i] = (p[i] & mask) == mask ? set : uint8_t(0);
  return c;
}

Codes operator|(const Codes& a, const Codes& b) {
  Codes c;
  for (int i = 0; i < kBlock; i++) c.q[i] = a.q[i] | b.q[i];
  return c;
}

// d*(q - offset) + m, the product exact; a minimum of -0 leaves the sign of a zero as it is.
void scale_codes(const Codes& c, int offset, float d, float m, float* out) {
  for (int i = 0; i < kBlock; i++) out[i] = d * float(int(c.q[i]) - offset) + m;
}

struct Q4_0 {
  static constexpr int values = 32, bytes = 18;
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b) * bytes;
    std::memcpy(out.q, p + 2, 16);
    out.d = load16(p);
    out.m = float_to_half_bits(-8.0f * half_bits_to_float(out.d));  // exact unless |d| > 8188
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b) * bytes;
    scale_codes(nibbles(p + 2), 8, load_half(p), -0.0f, out);
  }
};

struct Q4_1 {
  static constexpr int values = 32, bytes = 20;
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b) * bytes;
    std::memcpy(out.q, p + 4, 16);
    out.d = load16(p);
    out.m = load16(p + 2);
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b) * bytes;
    scale_codes(nibbles(p + 4), 0, load_half(p), load_half(p + 2), out);
  }
};

struct Q5_0 {
  static constexpr int values = 32, bytes = 22;
  static void load(const uint8_t* row, int b, Q8Block& out) {
    const uint8_t* p = row + size_t(b) * bytes;
    const Codes c = with_fifth_bits(nibbles(p + 6), p + 2);
    for (int i = 0; i < kBlock; i++) out.q[i] = int8_t(c.q[i] - 16);
    out.d = load16(p);
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b) * bytes;
    scale_codes(with_fifth_bits(nibbles(p + 6), p + 2), 16, load_half(p), -0.0f, out);
  }
};

struct Q5_1 {
  static constexpr int values = 32, bytes = 24;
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b) * bytes;
    scale_codes(with_fifth_bits(nibbles(p + 8), p + 4), 0, load_half(p), load_half(p + 2), out);
  }
};

struct Q8_0 {
  static constexpr int values = 32, bytes = 34;
  static void load(const uint8_t* row, int b, Q8Block& out) {
    const uint8_t* p = row + size_t(b) * bytes;
    for (int i = 0; i < kBlock; i++) out.q[i] = std::max(int8_t(p[2 + i]), int8_t(-127));
    out.d = load16(p);
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b) * bytes;
    const float d = load_half(p);
    for (int i = 0; i < kBlock; i++) out[i] = d * float(int8_t(p[2 + i]));
  }
};

// Q4_K and Q5_K: 256 values in 8 blocks of 32, each with a 6-bit scale and a 6-bit minimum, packed into 12 bytes.
struct Scales {
  float d, m;  // value = d*q - m
};
Scales k_scales(const uint8_t* p, int j) {
  const uint8_t* s = p + 4;
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
  const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
  return {load_half(p) * float(scale), load_half(p + 2) * float(minimum)};
}

struct Q4_K {
  static constexpr int values = 256, bytes = 144;
  // 32 bytes hold two blocks: the even one in the low nibbles, the odd one in the high nibbles.
  static Codes codes(const uint8_t* p, int j) { return half_bytes(p + 16 + 32 * (j / 2), j % 2); }
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const Codes c = codes(p, b % 8);
    for (int i = 0; i < 16; i++) out.q[i] = uint8_t(c.q[i] | c.q[16 + i] << 4);
    const Scales s = k_scales(p, b % 8);
    out.d = float_to_half_bits(s.d);
    out.m = float_to_half_bits(-s.m);
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const Scales s = k_scales(p, b % 8);
    scale_codes(codes(p, b % 8), 0, s.d, -s.m, out);
  }
};

struct Q5_K {
  static constexpr int values = 256, bytes = 176;
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8;
    const Scales s = k_scales(p, j);
    scale_codes(half_bytes(p + 48 + 32 * (j / 2), j % 2) | where_bit(p + 16, j, 16), 0, s.d, -s.m, out);
  }
};

struct Q6_K {
  static constexpr int values = 256, bytes = 210;  // 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int half = b % 8 / 4, j = b % 4;
    const uint8_t* high = p + 128 + 32 * half;
    const Codes c = half_bytes(p + 64 * half + 32 * (j % 2), j / 2) | where_bit(high, 2 * j, 16) | where_bit(high, 2 * j + 1, 32);
    const uint8_t* scales = p + 192 + 8 * half + 2 * j;
    const float d = load_half(p + 208), first = d * float(int8_t(scales[0])), second = d * float(int8_t(scales[1]));
    for (int i = 0; i < 16; i++) out[i] = first * float(int(c.q[i]) - 32);
    for (int i = 16; i < 32; i++) out[i] = second * float(int(c.q[i]) - 32);
  }
};

}  // namespace
}  // namespace quintet
