// Kernels over a row of logits, or a chunk of one, with the 16-lane type V of the including file: maxima, masses, moments. row_passes.h
// calls them.
#pragma once
#include <cstring>
#include <limits>
#include "kernels/exp.h"

namespace quintet {
namespace {

constexpr int kMaxima = V::kRegisters >= 32 ? 4 : 1;  // in as many vectors
constexpr int kExps = V::kRegisters >= 32 ? 8 : 2;    // side by side

float row_max(const float* x, int n) {
  F m = V::set1(-std::numeric_limits<float>::infinity()), others[3] = {m, m, m};  // a maximum is the same in any order
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    m = V::max(V::load(x + i), m);
    for (int j = 0; j < 3; j++) others[j] = V::max(V::load(x + i + 16 * (j + 1)), others[j]);
  }
  for (const F& other : others) m = V::max(other, m);
  for (; i + 16 <= n; i += 16) m = V::max(V::load(x + i), m);
  float best = V::hmax(m);
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// 0 times a value that is NaN or +infinity is NaN; -infinity, a masked token, is first raised to the lowest finite value. Maxima and zeros
// are the same in any order, so several of each are kept where there are registers: one alone waits for its addition at each value.
float row_max_checked(const float* x, int n) {
  const float inf = std::numeric_limits<float>::infinity();
  const F zero = V::set1(0.0f), lowest = V::set1(std::numeric_limits<float>::lowest());
  F m[kMaxima], poison[kMaxima];
  for (int j = 0; j < kMaxima; j++) m[j] = V::set1(-inf), poison[j] = zero;
  const auto see = [&](int j, F v) {
    m[j] = V::max(v, m[j]);
    poison[j] = V::fma(V::max(lowest, v), zero, poison[j]);
  };
  int i = 0;
  for (; i + 16 * kMaxima <= n; i += 16 * kMaxima)
    for (int j = 0; j < kMaxima; j++) see(j, V::load(x + i + 16 * j));
  for (; i + 16 <= n; i += 16) see(0, V::load(x + i));
  for (int j = 1; j < kMaxima; j++) {
    m[0] = V::max(m[j], m[0]);
    poison[0] = V::add(poison[0], poison[j]);
  }
  float best = V::hmax(m[0]);
  bool sound = V::hsum(poison[0]) == 0.0f;
  for (; i < n; i++) {
    best = x[i] > best ? x[i] : best;
    sound = sound && x[i] < inf;
  }
  return sound ? best : std::numeric_limits<float>::quiet_NaN();
}

// The tail is padded with lanes far below any maximum: their exp is exactly 0.
inline F load_tail(const float* x, int n) {
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? x[i] : -std::numeric_limits<float>::infinity();
  return V::load(t);
}

template <bool scaled> inline F below(F x, F max, F scale) {
  const F d = V::sub(x, max);
  return scaled ? V::mul(d, scale) : d;
}

template <bool scaled> float sum_exp(const float* x, int n, float max, float scale) {
  const F m = V::set1(max), s = V::set1(scale);
  F sum = V::set1(0.0f);
  int i = 0;
  for (; i + 16 * kExps <= n; i += 16 * kExps) {
    F e[kExps];
    for (int j = 0; j < kExps; j++) e[j] = below<scaled>(V::load(x + i + 16 * j), m, s);
    exp_each(e);
    for (const F& each : e) sum = V::add(sum, each);
  }
  for (; i + 16 <= n; i += 16) sum = V::add(sum, exp16(below<scaled>(V::load(x + i), m, s)));
  if (i < n) sum = V::add(sum, exp16(below<scaled>(load_tail(x + i, n - i), m, s)));
  return V::hsum(sum);
}

// Multiplications are what it takes most of, and a scale of 1 changes nothing.
float row_sum_exp(const float* x, int n, float max, float scale) {
  return scale == 1.0f ? sum_exp<false>(x, n, max, scale) : sum_exp<true>(x, n, max, scale);
}

// y is kept finite, as 0 times -infinity is no number.
float row_sum_exp_times(const float* x, int n, float max, float scale) {
  const F m = V::set1(max), s = V::set1(scale), low = V::set1(-88.0f);
  F sum = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const F y = V::max(below<true>(i + 16 <= n ? V::load(x + i) : load_tail(x + i, n - i), m, s), low);
    sum = V::fma(exp16(y), y, sum);
  }
  return V::hsum(sum);
}

void row_moments(const float* x, int n, float max, float* out) {
  const F m = V::set1(max), lowest = V::set1(std::numeric_limits<float>::lowest()), one = V::set1(1.0f);
  F sum = V::set1(0.0f), squares = sum, count = sum;
  for (int i = 0; i < n; i += 16) {
    const F v = i + 16 <= n ? V::load(x + i) : load_tail(x + i, n - i);
    const F d = V::zero_below(v, lowest, V::sub(v, m));
    sum = V::add(sum, d);
    squares = V::fma(d, d, squares);
    count = V::add(count, V::zero_below(v, lowest, one));
  }
  out[0] = V::hsum(sum), out[1] = V::hsum(squares), out[2] = V::hsum(count);
}

void row_exp(const float* x, int n, float max, float scale, float* out) {
  const F m = V::set1(max), s = V::set1(scale);
  int i = 0;
  for (; i + 16 <= n; i += 16) V::store(out + i, exp16(below<true>(V::load(x + i), m, s)));
  if (i < n) {
    float t[16];
    V::store(t, exp16(below<true>(load_tail(x + i, n - i), m, s)));
    std::memcpy(out + i, t, size_t(n - i) * 4);
  }
}

}  // namespace
}  // namespace quintet
