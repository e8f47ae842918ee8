// GGML's stored blocks, read in 32s of one row: as floats, and as integers with fp16 scales where a type keeps them in the packed form.
// Byte order is little-endian, no pointer needs an alignment, and nothing is read past the blocks of the row.
// Internal linkage for the reason given in half.h.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include "kernels/codes.h"
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

// Of a block of 32: value = d*q - m.
struct Scales {
  float d, m;
};

// One block of 32 values of one row in one of the formats of codes.h: a code each, and scales and minima for all or for 16 each.
struct Lane {
  uint8_t q[32];
  uint16_t d[2], m[2];
  void set(int part, Scales s) {
    d[part] = float_to_half_bits(s.d);
    m[part] = float_to_half_bits(-s.m);
  }
};

// A block as what it says before anything is rounded: value i = d[i / 16] * q[i], the product exact.
struct Integers {
  int8_t q[32];
  float d[2];
};

// A GGML type: `values` per stored block of `bytes`. A type has decode(), which reads the 32 values of block b of a row as the reference
// implementation does, or read(), which gives integers that stand for the same. If its integers are kept, it names the format they are
// `packed` in, and has lane() if they are not those of read(); or it has load(), and so says q4 or q8. A row's blocks are addressed in 32s.
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

Lane with_codes(const Codes& c) {
  Lane out;
  std::memcpy(out.q, c.q, sizeof out.q);
  return out;
}

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

// Bits 2n and 2n + 1 of 32 bytes.
Codes bit_pairs(const uint8_t* p, int n) {
  Codes c;
  for (int i = 0; i < kBlock; i++) c.q[i] = uint8_t(p[i] >> 2 * n & 3);
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
  static constexpr Format packed = Format::q5;
  static Lane lane(const uint8_t* row, int b) {
    const uint8_t* p = row + size_t(b) * bytes;
    Lane out = with_codes(with_fifth_bits(nibbles(p + 8), p + 4));
    out.d[0] = load16(p);
    out.m[0] = load16(p + 2);
    return out;
  }
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

// Types of two or three values, all with one scale per stored block. Packed with a minimum of -d.
Q4Block around_zero(const Codes& c, uint16_t d) {
  Q4Block out;
  for (int i = 0; i < 16; i++) out.q[i] = uint8_t(c.q[i] | c.q[16 + i] << 4);
  out.d = d;
  out.m = uint16_t(d ^ 0x8000);
  return out;
}

// d*(q - 1), q in 0..2 (a file may hold 3), four to a byte.
struct TQ2_0 {
  static constexpr int values = 256, bytes = 66;
  static Codes codes(const uint8_t* p, int j) { return bit_pairs(p + 32 * (j / 4), j % 4); }
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    out = around_zero(codes(p, b % 8), load16(p + 64));
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    scale_codes(codes(p, b % 8), 1, load_half(p + 64), -0.0f, out);
  }
};

// The same with five to a byte: the byte is a fraction of 256 whose digits to base 3 they are. 32 bytes with the values 32 apart, 16 bytes
// with the values 16 apart, and 4 with four values, 4 apart.
struct TQ1_0 {
  static constexpr int values = 256, bytes = 54;
  static uint8_t digit(uint8_t fraction, int n) {
    constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
    return uint8_t(uint8_t(fraction * powers[n]) * 3 >> 8);
  }
  static Codes codes(const uint8_t* p, int j) {
    Codes c;
    for (int i = 0; i < kBlock; i++) {
      const int at = 16 * (2 * j - 10) + i;  // among those that are 16 apart, if not negative
      if (j < 5) c.q[i] = digit(p[i], j);
      else if (at < 80) c.q[i] = digit(p[32 + at % 16], at / 16);
      else c.q[i] = digit(p[48 + at % 4], (at - 80) / 4);
    }
    return c;
  }
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    out = around_zero(codes(p, b % 8), load16(p + 52));
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 8) * bytes;
    scale_codes(codes(p, b % 8), 1, load_half(p + 52), -0.0f, out);
  }
};

// d or -d: a bit each, here a code of 2 or 0.
struct Q1_0 {
  static constexpr int values = 128, bytes = 18;
  static Codes codes(const uint8_t* p) {
    Codes c;
    for (int i = 0; i < kBlock; i++) c.q[i] = uint8_t((p[i / 8] >> i % 8 & 1) * 2);
    return c;
  }
  static void load(const uint8_t* row, int b, Q4Block& out) {
    const uint8_t* p = row + size_t(b / 4) * bytes;
    out = around_zero(codes(p + 2 + 4 * (b % 4)), load16(p));
  }
  static void decode(const uint8_t* row, int b, float* out) {
    const uint8_t* p = row + size_t(b / 4) * bytes;
    scale_codes(codes(p + 2 + 4 * (b % 4)), 1, load_half(p), -0.0f, out);
  }
};

template <class T> constexpr bool has_integers = requires { T::read(nullptr, 0); };

// The 32 values of block b of a row, as the reference implementation gives them.
template <class T> void decode(const uint8_t* row, int b, float* out) {
  if constexpr (has_integers<T>) {
    const Integers v = T::read(row, b);
    for (int i = 0; i < kBlock; i++) out[i] = v.d[i / 16] * float(v.q[i]);
  } else {
    T::decode(row, b, out);
  }
}

}  // namespace
}  // namespace quintet
