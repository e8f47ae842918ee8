// Every kernel except the matrix product, of which only the order of its passes, once, over the 16-lane type V of the including file. The sequence of operations per output
// is fixed here, so all instruction sets give the same bits.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include "kernels.h"

namespace quintet {
namespace {

using F = V::F;

// exp(x) for x <= 88; below -87 exactly 0. Range reduction to |r| <= ln2/2 and the degree-6 polynomial of Cephes' expf (Moshier).
inline F exp16(F x) {
  const F low = V::set1(-87.0f);
  const F c = V::max(x, low);
  const F n = V::round(V::mul(c, V::set1(1.44269504088896341f)));
  F r = V::fma(n, V::set1(-0.693359375f), c);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(p, V::mul(r, r), V::add(r, V::set1(1.0f)));
  return V::zero_below(x, low, V::mul(p, V::pow2(n)));
}

// One block of 32: 16 + 16 lanes.
void quantize_block(const float* x, int k, int block, uint8_t* row) {
  const F a = V::load(x), b = V::load(x + 16);
  const float amax = V::hmax(V::max(V::abs(a), V::abs(b)));
  const float scale = amax / 127.0f;
  // A block too small for 127/amax to be finite is zero to the precision that int8 activations have.
  const float inverse = amax > 1e-35f ? 127.0f / amax : 0.0f;
  const F id = V::set1(inverse);
  int8_t* q = reinterpret_cast<int8_t*>(row) + 32 * block;
  const int32_t sum = V::store_i8(q, V::mul(a, id)) + V::store_i8(q + 16, V::mul(b, id));
  const int blocks = k / 32;
  float* scales = reinterpret_cast<float*>(row + k);
  scales[block] = scale;
  scales[blocks + block] = scale * float(sum);
  std::memcpy(scales + 2 * blocks + block, &sum, 4);
}

void quantize_row(const float* x, int k, uint8_t* row) {
  for (int b = 0; b < k / 32; b++) quantize_block(x + 32 * b, k, b, row);
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  F sum = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) { const F v = V::load(x + i); sum = V::fma(v, v, sum); }
  const float scale = 1.0f / std::sqrt(V::hsum(sum) / float(n) + eps);
  const F s = V::set1(scale);
  for (int i = 0; i < n; i += 16) V::store(out + i, V::mul(V::mul(V::load(x + i), s), V::load(weight + i)));
}

void silu_mul(const float* gate, const float* up, int n, float* out) {
  const F one = V::set1(1.0f), zero = V::set1(0.0f), low = V::set1(-80.0f);
  for (int i = 0; i < n; i += 16) {
    const F g = V::load(gate + i);
    const F e = exp16(V::sub(zero, V::max(g, low)));   // kept finite: at -80 the quotient is already below 1e-33
    V::store(out + i, V::mul(V::div(g, V::add(one, e)), V::load(up + i)));
  }
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += 16) V::store(x + i, V::add(V::load(x + i), V::load(y + i)));
}

void scale_row(float* x, float s, int n) {
  for (int i = 0; i < n; i += 16) V::store(x + i, V::mul(V::load(x + i), V::set1(s)));
}

// (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin), pairs (i, i + dim/2)
void rope(float* x, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F a = V::load(x + i), b = V::load(x + half + i), c = V::load(cos + i), s = V::load(sin + i);
    V::store(x + i, V::sub(V::mul(a, c), V::mul(b, s)));
    V::store(x + half + i, V::add(V::mul(b, c), V::mul(a, s)));
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    const float ac = a * cos[i], bs = b * sin[i], bc = b * cos[i], as = a * sin[i];
    x[i] = ac - bs;
    x[half + i] = bc + as;
  }
}

void to_half(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; i += 16) V::store_half(out + i, V::load(x + i));
}

float row_max(const float* x, int n) {
  F m = V::set1(-std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + 16 <= n; i += 16) m = V::max(V::load(x + i), m);
  float best = V::hmax(m);
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

// 0 times a value that is NaN or +infinity is NaN; -infinity, a masked token, is first raised to the lowest finite value.
float row_max_checked(const float* x, int n) {
  const float inf = std::numeric_limits<float>::infinity(), lowest = std::numeric_limits<float>::lowest();
  F m = V::set1(-inf), poison = V::set1(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F v = V::load(x + i);
    m = V::max(v, m);
    poison = V::fma(V::max(V::set1(lowest), v), V::set1(0.0f), poison);
  }
  float best = V::hmax(m);
  bool sound = V::hsum(poison) == 0.0f;
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

float row_sum_exp(const float* x, int n, float max, float scale) {
  const F m = V::set1(max), s = V::set1(scale);
  F sum = V::set1(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = V::add(sum, exp16(V::mul(V::sub(V::load(x + i), m), s)));
  if (i < n) sum = V::add(sum, exp16(V::mul(V::sub(load_tail(x + i, n - i), m), s)));
  return V::hsum(sum);
}

// y is kept finite, as 0 times -infinity is no number.
float row_sum_exp_times(const float* x, int n, float max, float scale) {
  const F m = V::set1(max), s = V::set1(scale), low = V::set1(-88.0f);
  F sum = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const F y = V::max(V::mul(V::sub(i + 16 <= n ? V::load(x + i) : load_tail(x + i, n - i), m), s), low);
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
  for (; i + 16 <= n; i += 16) V::store(out + i, exp16(V::mul(V::sub(V::load(x + i), m), s)));
  if (i < n) {
    float t[16];
    V::store(t, exp16(V::mul(V::sub(load_tail(x + i, n - i), m), s)));
    std::memcpy(out + i, t, size_t(n - i) * 4);
  }
}

// Scores of R query rows against the 16 tokens of one page: a chain of head_dim FMAs per lane.
template <int R> inline void page_scores(const AttendArgs& a, const uint16_t* k, int page, size_t stride) {
  F acc[R];
  for (int r = 0; r < R; r++) acc[r] = V::set1(0.0f);
  for (int d = 0; d < a.head_dim; d++) {
    const F kv = V::load_half(k + 16 * d);
    for (int r = 0; r < R; r++) acc[r] = V::fma(V::set1(a.q[r][d]), kv, acc[r]);
  }
  for (int r = 0; r < R; r++) V::store(a.scores + r * stride + 16 * page, acc[r]);
}

// Softmax numerators in place of the scores; returns 1 / sum. Pages in order, lanes past the position are exactly 0.
inline float softmax(float* s, int position) {
  const int padded = (position + 16) / 16 * 16;
  for (int t = position + 1; t < padded; t++) s[t] = -std::numeric_limits<float>::infinity();
  const F m = V::set1(row_max(s, padded));
  F sum = V::set1(0.0f);
  for (int t = 0; t < padded; t += 16) {
    const F e = exp16(V::sub(V::load(s + t), m));
    V::store(s + t, e);
    sum = V::add(sum, e);
  }
  return 1.0f / V::hsum(sum);
}

// 16 dimensions of R rows, tokens [from, to) in order.
template <int R> inline void weighted_values(const AttendArgs& a, F (&acc)[R], int r0, int d, int from, int to, size_t stride) {
  for (int t = from; t < to; t++) {
    const F v = V::load_half(a.v[t / 16] + (t % 16) * a.head_dim + d);
    for (int r = 0; r < R; r++) acc[r] = V::fma(V::set1(a.scores[(r0 + r) * stride + t]), v, acc[r]);
  }
}

// Rows of a group may end at different positions: the common tokens together, then each row its own rest, in the same order.
template <int R> void attend_rows(const AttendArgs& a) {
  int last = 0, common = a.position[0] + 1;
  for (int r = 0; r < R; r++) {
    last = a.position[r] > last ? a.position[r] : last;
    common = a.position[r] + 1 < common ? a.position[r] + 1 : common;
  }
  const size_t stride = size_t(last + 16) / 16 * 16;
  for (int page = 0; page <= last / 16; page++) page_scores<R>(a, a.k[page], page, stride);
  float inverse[R];
  for (int r = 0; r < R; r++) inverse[r] = softmax(a.scores + r * stride, a.position[r]);
  for (int d = 0; d < a.head_dim; d += 16) {
    F acc[R];
    for (int r = 0; r < R; r++) acc[r] = V::set1(0.0f);
    weighted_values<R>(a, acc, 0, d, 0, common, stride);
    for (int r = 0; r < R; r++) {
      F rest[1] = {acc[r]};
      weighted_values<1>(a, rest, r, d, common, a.position[r] + 1, stride);
      V::store(a.out[r] + d, V::mul(rest[0], V::set1(inverse[r])));
    }
  }
}

void attend(const AttendArgs& a) {
  switch (a.rows) {
    case 1: return attend_rows<1>(a);
    case 2: return attend_rows<2>(a);
    case 3: return attend_rows<3>(a);
    default: return attend_rows<4>(a);
  }
}

// The rows of a product, a few at a time: pass<R>(first row, whether these are the last) for the Sizes R in order, the last of which is 1.
template <int... Sizes, class Pass> inline void in_passes(int m, Pass pass) {
  int r = 0;
  auto all_of = [&]<int R>() { for (; r + R <= m; r += R) pass.template operator()<R>(r, r + R == m); };
  (all_of.template operator()<Sizes>(), ...);
}

constexpr Kernels table(const char* name, decltype(Kernels::gemm_tile) gemm_tile) {
  return {name, gemm_tile, quantize_block, quantize_row, rms_norm, attend, silu_mul, add, scale_row, rope, to_half, row_max, row_max_checked, row_sum_exp,
          row_sum_exp_times, row_moments, row_exp};
}

}  // namespace
}  // namespace quintet
