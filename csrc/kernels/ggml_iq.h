// GGML's types whose codes stand for the values of a small table: points of a lattice (IQ1 to IQ3), or one of 16 (IQ4, MXFP4, NVFP4). All
// are integers that fit 8 bits with a scale for 32 or 16 of them.
#pragma once
#include "kernels/ggml.h"
#include "kernels/ggml_grids.h"

namespace quintet {
namespace {

// The 8 values of an entry of a grid of 2 bits, from `next` on.
void grid_of_8(uint16_t entry, const int8_t* values, int8_t* next) {
  for (int i = 0; i < 8; i++) next[i] = values[entry >> 2 * i & 3];
}
void grid_of_4(uint16_t entry, const int8_t* values, int8_t* next) {
  for (int i = 0; i < 4; i++) next[i] = values[entry >> 3 * i & 7];
}
constexpr int8_t kTwoBits[] = {8, 25, 43, 0}, kThreeBits[] = {4, 12, 20, 28, 36, 44, 52, 62}, kOdd[] = {1, 3, 5, 7, 9, 11, 13, 15};

// Bit i: value i is negative.
void negate(uint8_t signs, int8_t* q) {
  for (int i = 0; i < 8; i++) q[i] = int8_t(signs >> i & 1 ? -q[i] : q[i]);
}
// Of 8 signs 7 are stored: an even number is negative.
uint8_t eighth_sign(uint32_t seven) {
  const uint32_t low = seven & 127;
  return uint8_t(low | uint32_t(std::popcount(low) & 1) << 7);
}

Integers with_scale(float d) { return {{}, {d, d}}; }

// Per block of 32: 4 numbers of a grid of 256, then 4 x 7 signs and a scale in a word.
struct IQ2_XXS {
  static constexpr int values = 256, bytes = 66, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t *p = row + size_t(b / 8) * bytes, *block = p + 2 + 8 * (b % 8);
    const uint32_t word = load32(block + 4);
    Integers out = with_scale(load_half(p) * float(2 * (word >> 28) + 1) * 0.125f);
    for (int k = 0; k < 4; k++) {
      grid_of_8(kGrid2xxs[block[k]], kTwoBits, out.q + 8 * k);
      negate(eighth_sign(word >> 7 * k), out.q + 8 * k);
    }
    return out;
  }
};

// Per block of 32: 4 words of 9 bits of grid and 7 signs; at the end of all a byte with the scales of both its halves.
struct IQ2_XS {
  static constexpr int values = 256, bytes = 74;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8, scales = p[66 + j];
    const float d = load_half(p) * 0.125f;
    Integers out{{}, {d * float(2 * (scales & 15) + 1), d * float(2 * (scales >> 4) + 1)}};
    for (int k = 0; k < 4; k++) {
      const uint16_t word = load16(p + 2 + 8 * j + 2 * k);
      grid_of_8(kGrid2xs[word & 511], kTwoBits, out.q + 8 * k);
      negate(eighth_sign(word >> 9), out.q + 8 * k);
    }
    return out;
  }
};

// 32 bytes of low bits of the grid, 32 of signs, then for each block of 32 a byte of high bits and one of scales.
struct IQ2_S {
  static constexpr int values = 256, bytes = 82;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8, scales = p[74 + j];
    const float d = load_half(p) * 0.125f;
    Integers out{{}, {d * float(2 * (scales & 15) + 1), d * float(2 * (scales >> 4) + 1)}};
    for (int k = 0; k < 4; k++) {
      grid_of_8(kGrid2s[p[2 + 4 * j + k] | (p[66 + j] >> 2 * k & 3) << 8], kTwoBits, out.q + 8 * k);
      negate(p[34 + 4 * j + k], out.q + 8 * k);
    }
    return out;
  }
};

// 64 numbers of a grid of 256, then for each block of 32 a word of 4 x 7 signs and a scale.
struct IQ3_XXS {
  static constexpr int values = 256, bytes = 98, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8;
    const uint32_t word = load32(p + 66 + 4 * j);
    Integers out = with_scale(load_half(p) * float(2 * (word >> 28) + 1) * 0.25f);
    for (int k = 0; k < 8; k++) grid_of_4(kGrid3xxs[p[2 + 8 * j + k]], kThreeBits, out.q + 4 * k);
    for (int k = 0; k < 4; k++) negate(eighth_sign(word >> 7 * k), out.q + 8 * k);
    return out;
  }
};

// 64 bytes of low bits of the grid, 8 of ninth bits, 32 of signs, 4 of scales.
struct IQ3_S {
  static constexpr int values = 256, bytes = 110, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8, scale = p[106 + j / 2] >> 4 * (j % 2) & 15;
    Integers out = with_scale(load_half(p) * float(2 * scale + 1));
    for (int k = 0; k < 8; k++) grid_of_4(kGrid3s[p[2 + 8 * j + k] | (p[66 + j] >> k & 1) << 8], kOdd, out.q + 4 * k);
    for (int k = 0; k < 4; k++) negate(p[74 + 4 * j + k], out.q + 8 * k);
    return out;
  }
};

// -1, 0 or 1, and an eighth more or less for all of a group: in eighths.
constexpr int8_t kMore[] = {-7, 1, 9, 0}, kLess[] = {-9, -1, 7, 0};

// 32 bytes of low bits of the grid; for each block of 32 a word of 4 x 3 high bits, a scale, and the eighth's sign.
struct IQ1_S {
  static constexpr int values = 256, bytes = 50, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8, word = load16(p + 34 + 2 * j);
    Integers out = with_scale(load_half(p) * float(2 * (word >> 12 & 7) + 1) * 0.125f);
    for (int k = 0; k < 4; k++)
      grid_of_8(kGrid1[p[2 + 4 * j + k] | (word >> 3 * k & 7) << 8], word & 0x8000 ? kLess : kMore, out.q + 8 * k);
    return out;
  }
};

// 32 bytes of low bits of the grid; a nibble of 3 high bits and the eighth's sign for each; 4 words of 4 x 3 bits of scale, whose highest
// nibbles are d.
struct IQ1_M {
  static constexpr int values = 256, bytes = 56;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8;
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= uint32_t(load16(p + 48 + 2 * i) >> 12) << 4 * i;
    const float d = half_bits_to_float(uint16_t(bits)) * 0.125f;
    Integers out;
    for (int h = 0; h < 2; h++) out.d[h] = d * float(2 * (load16(p + 48 + j / 2 * 2) >> 3 * (j % 2 * 2 + h) & 7) + 1);
    for (int k = 0; k < 4; k++) {
      const int high = p[32 + 2 * j + k / 2] >> 4 * (k % 2);
      grid_of_8(kGrid1[p[4 * j + k] | (high & 7) << 8], high & 8 ? kLess : kMore, out.q + 8 * k);
    }
    return out;
  }
};

constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice what they stand for

// `count` bytes: the low nibbles are the first values.
void look_up(const uint8_t* nibbles, int count, const int8_t* table, int8_t* q) {
  for (int i = 0; i < count; i++) {
    q[i] = table[nibbles[i] & 15];
    q[count + i] = table[nibbles[i] >> 4];
  }
}

struct IQ4_NL {
  static constexpr int values = 32, bytes = 18, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b) * bytes;
    Integers out = with_scale(load_half(p));
    look_up(p + 2, 16, kUneven, out.q);
    return out;
  }
};

// A word of the high bits of 8 scales, 4 bytes of the low ones, then 16 bytes for each block of 32.
struct IQ4_XS {
  static constexpr int values = 256, bytes = 136, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    const int j = b % 8, scale = (p[4 + j / 2] >> 4 * (j % 2) & 15) | (load16(p + 2) >> 2 * j & 3) << 4;
    Integers out = with_scale(load_half(p) * float(scale - 32));
    look_up(p + 8 + 16 * j, 16, kUneven, out.q);
    return out;
  }
};

// The scale is a power of two, of which fp16 has those from 2^-24 to 2^15: a block whose values are below 2^-20 may become zero, and one
// whose values go beyond 2^19 infinite.
struct MXFP4 {
  static constexpr int values = 32, bytes = 17, scales = 1;
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b) * bytes;
    const uint32_t half_power = p[0] < 2 ? 0x00200000u << p[0] : uint32_t(p[0] - 1) << 23;  // 2^(e - 128)
    Integers out = with_scale(std::bit_cast<float>(half_power));
    look_up(p + 1, 16, kE2m1, out.q);
    return out;
  }
};

// Per 16 values a scale of 4 bits of exponent and 3 of mantissa, all four before the nibbles; half of it, as the codes are twice theirs.
struct NVFP4 {
  static constexpr int values = 64, bytes = 36;
  static float scale(uint8_t e4m3) {
    if (e4m3 == 0x7f) return 0.0f;
    const int exponent = e4m3 >> 3 & 15, mantissa = e4m3 & 7;
    const float half_unit = std::bit_cast<float>(uint32_t(127 - 11 + std::max(exponent, 1)) << 23);  // of the mantissa's last bit
    return float(exponent ? 8 + mantissa : mantissa) * half_unit;
  }
  static Integers read(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b / 2) * bytes;
    const int first = 2 * (b % 2);
    Integers out{{}, {scale(p[first]), scale(p[first + 1])}};
    for (int h = 0; h < 2; h++) look_up(p + 4 + 8 * (first + h), 8, kE2m1, out.q + 16 * h);
    return out;
  }
};

}  // namespace
}  // namespace quintet
