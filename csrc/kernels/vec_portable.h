// 16 lanes in plain C++: the definition that the other instruction sets must equal bit for bit.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include "kernels/pack.h"

namespace quintet {
namespace {

struct V {
  struct F {
    float v[16];
  };
  static constexpr int kRegisters = 8;  // values of F that fit into the registers
  template <class Op> static F map(Op op) {
    F r;
    for (int i = 0; i < 16; i++) r.v[i] = op(i);
    return r;
  }

  static F set1(float x) {
    return map([&](int) { return x; });
  }
  static F load(const float* p) {
    F r;
    std::memcpy(r.v, p, 64);
    return r;
  }
  static void store(float* p, const F& a) { std::memcpy(p, a.v, 64); }
  static F add(const F& a, const F& b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(const F& a, const F& b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(const F& a, const F& b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(const F& a, const F& b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(const F& a, const F& b, const F& c) {
    return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static F max(const F& a, const F& b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F abs(const F& a) {
    return map([&](int i) { return std::fabs(a.v[i]); });
  }
  // Of what is not negative: NaN is above infinity, so that none is lost.
  static float larger_bits(float x, float y) { return std::bit_cast<int32_t>(x) > std::bit_cast<int32_t>(y) ? x : y; }
  static F max_bits(const F& a, const F& b) {
    return map([&](int i) { return larger_bits(a.v[i], b.v[i]); });
  }
  static F round(const F& a) {
    return map([&](int i) { return std::nearbyint(a.v[i]); });
  }
  // x < bound ? 0 : y, per lane
  static F zero_below(const F& x, const F& bound, const F& y) {
    return map([&](int i) { return x.v[i] < bound.v[i] ? 0.0f : y.v[i]; });
  }
  // 2^n for integral n in [-126, 127]; of NaN any number
  static F pow2(const F& n) {
    return map([&](int i) {
      uint32_t b = uint32_t(int32_t(std::isnan(n.v[i]) ? 0.0f : n.v[i]) + 127) << 23;
      float f;
      std::memcpy(&f, &b, 4);
      return f;
    });
  }
  static F times_pow2(F x, F n) { return mul(x, pow2(n)); }
  // The lanes `apart` from each.
  template <int apart> static F swapped(const F& x) {
    return map([&](int i) { return x.v[i ^ apart]; });
  }
  static F load_half(const uint16_t* p) {
    return map([&](int i) { return half_to_float(p[i]); });
  }
  // 16 pairs of bfloat16: the first of each, and the second.
  static void load_bf16(const uint16_t* p, F& first, F& second) {
    first = map([&](int i) { return std::bit_cast<float>(uint32_t(p[2 * i]) << 16); });
    second = map([&](int i) { return std::bit_cast<float>(uint32_t(p[2 * i + 1]) << 16); });
  }
  static void store_half(uint16_t* p, const F& a) {
    for (int i = 0; i < 16; i++) p[i] = float_to_half(a.v[i]);
  }
  // round to nearest even and narrow; the caller keeps |a| <= 127. Returns the sum of the 16 integers.
  static int32_t store_i8(int8_t* p, const F& a) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
      p[i] = int8_t(std::nearbyint(a.v[i]));
      sum += p[i];
    }
    return sum;
  }
  // The fixed trees: lanes i and i+8, then i and i+4, i+2, i+1.
  static float hsum(const F& a) {
    float t[8];
    for (int i = 0; i < 8; i++) t[i] = a.v[i] + a.v[i + 8];
    for (int w = 4; w > 0; w /= 2)
      for (int i = 0; i < w; i++) t[i] = t[i] + t[i + w];
    return t[0];
  }
  static float hmax(const F& a) {
    float t[8];
    for (int i = 0; i < 8; i++) t[i] = a.v[i] > a.v[i + 8] ? a.v[i] : a.v[i + 8];
    for (int w = 4; w > 0; w /= 2)
      for (int i = 0; i < w; i++) t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
    return t[0];
  }
  static float hmax_bits(const F& a) {
    float most = 0.0f;
    for (float x : a.v) most = larger_bits(x, most);
    return most;
  }

  // Products of cells with 15-bit numbers: sum += the four products of each lane. A number is one part here, of two bytes.
  struct I {
    int32_t v[16];
  };
  using Cells = const uint8_t*;
  struct Four {
    int16_t v[4];
  };
  static constexpr int kParts = 1, kFour = 8;
  static I set1_int(int32_t x) {
    I r;
    for (int32_t& v : r.v) v = x;
    return r;
  }
  static I add_int(I x, const I& y) {
    for (int i = 0; i < 16; i++) x.v[i] += y.v[i];
    return x;
  }
  static I start(int32_t) { return set1_int(0); }  // what the cells' offset would add, negative; here it is taken off before the product
  static I next_part(const I& sum) { return sum; }
  static Cells load_cells(const uint8_t* p) { return p; }
  static Four load_four(const int8_t* p) {
    Four four;
    std::memcpy(four.v, p, 8);
    return four;
  }
  static I dot(I sum, Cells c, const Four& four) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 4; j++) sum.v[i] += (int32_t(c[4 * i + j]) - 128) * four.v[j];
    return sum;
  }
  static F to_float(const I& x) {
    return map([&](int i) { return float(x.v[i]); });
  }
  static int32_t total(const I& x) {
    int32_t sum = 0;
    for (int32_t v : x.v) sum += v;
    return sum;
  }
  // Numbers i to i + 16 * N - 1 of n, rounded to the nearest even; returns what adds up to their sum. N is 1 or 4; the caller keeps
  // |x| <= 16383.
  template <int N> static I store_parts(int8_t* to, int, int i, const F* x) {
    I total = set1_int(0);
    int16_t words[16 * N];
    for (int j = 0; j < 16 * N; j++) {
      words[j] = int16_t(std::nearbyint(x[j / 16].v[j % 16]));
      total.v[j % 16] += words[j];
    }
    std::memcpy(to + 2 * i, words, sizeof words);
    return total;
  }
};

}  // namespace
}  // namespace quintet
