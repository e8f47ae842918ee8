// GGML's K types: 256 values in 8 blocks of 32, whose scales (and minima) are themselves integers with a scale.
#pragma once
#include "kernels/ggml.h"

namespace quintet {
namespace {

// 16 bytes of 4-bit scales and minima, one for each 16 values; 64 of bit pairs; d, m.
struct Q2_K {
  static constexpr int values = 256, bytes = 84;
  static constexpr Format packed = Format::q4h;
  static Codes codes(const uint8_t* p, int j) { return bit_pairs(p + 16 + 32 * (j / 4), j % 4); }
  static Scales scales(const uint8_t* p, int n) { return {load_half(p + 80) * float(p[n] & 15), load_half(p + 82) * float(p[n] >> 4)}; }
  static Lane lane(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    Lane out = with_codes(codes(p, b % 8));
    for (int h = 0; h < 2; h++) out.set(h, scales(p, b % 8 * 2 + h));
    return out;
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const Codes c = codes(p, b % 8);
    for (int i = 0; i < kBlock; i++) {
      const Scales s = scales(p, b % 8 * 2 + i / 16);
      out[i] = s.d * float(c.q[i]) - s.m;
    }
  }
};

// 32 bytes of high bits, which are 0 where 4 is to be taken off; 64 of bit pairs; 16 scales of 6 bits in 12 bytes; d.
struct Q3_K {
  static constexpr int values = 256, bytes = 110;
  static constexpr Format packed = Format::q6;
  static int scale(const uint8_t* s, int n) { return ((n < 8 ? s[n] & 15 : s[n - 8] >> 4) | (s[8 + n % 4] >> 2 * (n / 4) & 3) << 4) - 32; }
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8;
    const Codes c = bit_pairs(p + 32 + 32 * (j / 4), j % 4) | where_bit(p, j, 4);
    Integers out;
    for (int i = 0; i < kBlock; i++) out.q[i] = int8_t(c.q[i] - 4);
    for (int h = 0; h < 2; h++) out.d[h] = load_half(p + 108) * float(scale(p + 96, 2 * j + h));
    return out;
  }
};

// Q4_K and Q5_K: each block of 32 has a 6-bit scale and a 6-bit minimum, packed into 12 bytes.
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
  static constexpr Format packed = Format::q5;
  static Codes codes(const uint8_t* p, int j) { return half_bytes(p + 48 + 32 * (j / 2), j % 2) | where_bit(p + 16, j, 16); }
  static Lane lane(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    Lane out = with_codes(codes(p, b % 8));
    out.set(0, k_scales(p, b % 8));
    return out;
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const Scales s = k_scales(p, b % 8);
    scale_codes(codes(p, b % 8), 0, s.d, -s.m, out);
  }
};

// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d. It would fit q6, and is quantised to 8 bits for the speed of many
// rows: docs/decisions/0022-tensor-types.md.
struct Q6_K {
  static constexpr int values = 256, bytes = 210;
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int half = b % 8 / 4, j = b % 4;
    const uint8_t* high = p + 128 + 32 * half;
    const Codes c = half_bytes(p + 64 * half + 32 * (j % 2), j / 2) | where_bit(high, 2 * j, 16) | where_bit(high, 2 * j + 1, 32);
    for (int h = 0; h < 2; h++) {
      const float d = load_half(p + 208) * float(int8_t(p[192 + 8 * half + 2 * j + h]));
      for (int i = 16 * h; i < 16 * h + 16; i++) out[i] = d * float(int(c.q[i]) - 32);
    }
  }
};

}  // namespace
}  // namespace quintet
