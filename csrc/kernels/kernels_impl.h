// Every kernel except attention and the matrix product, of which only the order of its passes, once, over the 16-lane type V of the including
// file. The sequence of operations per output is fixed here, so all instruction sets give the same bits.
//
//   a sum over n values      lane 0: x0 + x16 + x32 ...    every set has 16 lanes, in one register, two, four or none
//                            ...
//                            lane 15: x15 + x31 ...        then one tree: (l0 + l8), (l1 + l9) ... to one value
//   a product of matrices    16 columns are the 16 lanes: no sum ever crosses them
//   exp, log, sine           our own polynomials: the library's differ between machines
//
// docs/decisions/0002-numbers-that-do-not-depend-on-the-batch.md.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include "kernels/half.h"
#include "kernels/kernels.h"

namespace quintet {
namespace {

using F = V::F;
constexpr int kMaxima = V::kRegisters >= 32 ? 4 : 1;  // of a row, in as many vectors
constexpr int kExps = V::kRegisters >= 32 ? 4 : 2;    // of a row, side by side
constexpr float kLeastMagnitude = 1e-35f;  // what is below need not have a finite quotient of 127, or 16383, by it, and is quantised to 0

// x = exp(x) for x <= 88; below -87 exactly 0; NaN stays NaN, as V::max gives its second operand then. Range reduction to |r| <= ln2/2 and the
// degree-6 polynomial of Cephes' expf (Moshier). N of them side by side: one alone waits for each of its steps.
template <int N> inline void exp_each(F (&x)[N]) {
  const auto each = [](auto step) {
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) step(i);
  };
  const F low = V::set1(-87.0f);
  F n[N], r[N], p[N];
  each([&](int i) { r[i] = V::max(low, x[i]); });
  each([&](int i) { n[i] = V::round(V::mul(r[i], V::set1(1.44269504088896341f))); });
  each([&](int i) { r[i] = V::fma(n[i], V::set1(-0.693359375f), r[i]); });
  each([&](int i) { r[i] = V::fma(n[i], V::set1(2.12194440e-4f), r[i]); });
  each([&](int i) { p[i] = V::fma(V::set1(1.9875691500e-4f), r[i], V::set1(1.3981999507e-3f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(8.3334519073e-3f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(4.1665795894e-2f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(1.6666665459e-1f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(5.0000001201e-1f)); });
  each([&](int i) { p[i] = V::fma(p[i], V::mul(r[i], r[i]), V::add(r[i], V::set1(1.0f))); });
  each([&](int i) { x[i] = V::zero_below(x[i], low, V::times_pow2(p[i], n[i])); });
}

inline F exp16(F x) {
  F alone[] = {x};
  exp_each(alone);
  return alone[0];
}

// A block of 32: 16 + 16 lanes.
void quantize_blocks(const float* x, int n, const Blocks& to) {
  for (int i = 0; i < n; i++, x += 32) {
    const F a = V::load(x), b = V::load(x + 16);
    const float amax = V::hmax(V::max(V::abs(a), V::abs(b)));
    const F inverse = V::set1(amax > kLeastMagnitude ? 127.0f / amax : 0.0f);
    int8_t* q = reinterpret_cast<int8_t*>(to.q) + 32 * i;
    const int32_t first = V::store_i8(q, V::mul(a, inverse)), all = first + V::store_i8(q + 16, V::mul(b, inverse));
    to.scale[i] = amax / 127.0f;
    to.minimum[i] = to.scale[i] * float(all);
    to.sum[i] = {int16_t(all), int16_t(first)};
  }
}

// Sums and differences of what lies n/2 apart, n/4, ... 1: first of whole registers, then of the lanes of one, where each lane is added to the other of
// its pair, or taken from it.
template <int apart> inline F sums_and_differences(F x) {
  float signs[16];
  for (int i = 0; i < 16; i++) signs[i] = i & apart ? -1.0f : 1.0f;
  return V::fma(x, V::load(signs), V::template swapped<apart>(x));
}

void hadamard(float* x, int n) {
  for (int apart = n / 2; apart >= 16; apart /= 2)
    for (int from = 0; from < n; from += 2 * apart)
      for (int i = from; i < from + apart; i += 16) {
        const F a = V::load(x + i), b = V::load(x + i + apart);
        V::store(x + i, V::add(a, b));
        V::store(x + i + apart, V::sub(a, b));
      }
  for (int i = 0; i < n; i += 16) {
    const F eights = sums_and_differences<8>(V::load(x + i)), fours = sums_and_differences<4>(eights),
            twos = sums_and_differences<2>(fours);
    V::store(x + i, sums_and_differences<1>(twos));
  }
}

// The scales of two rows of n values as cells of 8 bits, fp16: of amax / 127 and 15 others up to 6 % larger the one whose cells are closest to the values,
// which takes a fifth off the squared error. None is so small that a cell would go beyond 127: amax / 127 is rounded up, others may round below it and
// drop out. Lanes are the scales here; a row alone would wait for each of its sums.
inline void scales_of_cells(const float* const x[2], int n, const float least[2], uint16_t scales[2]) {
  float steps[16];
  for (int i = 0; i < 16; i++) steps[i] = 1.0f + 0.004f * float(i);
  uint16_t halves[2][16];
  F step[2], inverse[2], minus[2], error[2];
  for (int r = 0; r < 2; r++) {
    V::store_half(halves[r], V::mul(V::load(steps), V::set1(least[r])));
    halves[r][0] = float_to_half_bits(least[r]);
    if (half_bits_to_float(halves[r][0]) < least[r]) halves[r][0]++;
    step[r] = V::load_half(halves[r]), inverse[r] = V::div(V::set1(1.0f), step[r]), minus[r] = V::sub(V::set1(0.0f), step[r]);
    error[r] = V::set1(0.0f);
  }
  for (int i = 0; i < n; i++)
    for (int r = 0; r < 2; r++) {
      const F v = V::set1(x[r][i]), off = V::fma(V::round(V::mul(v, inverse[r])), minus[r], v);
      error[r] = V::fma(off, off, error[r]);
    }
  for (int r = 0; r < 2; r++) {
    float of[16], errors[16];
    V::store(of, step[r]);
    V::store(errors, error[r]);
    int best = 0;
    for (int i = 1; i < 16; i++)
      if (of[i] >= least[r] && errors[i] < errors[best]) best = i;
    scales[r] = halves[r][best];
  }
}

// Of n values, a multiple of 16; NaN if one is not finite.
inline float largest_magnitude(const float* x, int n) {
  F most = V::set1(0.0f), poison = most;
  for (int i = 0; i < n; i += 16) {
    const F v = V::load(x + i);
    most = V::max(V::abs(v), most);
    poison = V::fma(v, V::set1(0.0f), poison);
  }
  return V::hsum(poison) == 0.0f ? V::hmax(most) : std::numeric_limits<float>::quiet_NaN();
}

// What is not finite has no cells, and NaN as its scale.
void quantize_cells(const float* const x[2], int n, int8_t* const out[2], uint16_t scales[2]) {
  const float most[] = {largest_magnitude(x[0], n), largest_magnitude(x[1], n)};
  const float least[] = {std::isnan(most[0]) ? 0.0f : most[0] / 127.0f, std::isnan(most[1]) ? 0.0f : most[1] / 127.0f};
  scales_of_cells(x, n, least, scales);
  for (int r = 0; r < 2; r++) {
    if (std::isnan(most[r])) {
      std::memset(out[r], 0, size_t(n));
      scales[r] = 0x7e00;
      continue;
    }
    const F inverse = V::set1(scales[r] ? 1.0f / half_bits_to_float(scales[r]) : 0.0f);
    for (int i = 0; i < n; i += 16) V::store_i8(out[r] + i, V::mul(V::load(x[r] + i), inverse));
  }
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  F sum = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const F v = V::load(x + i);
    sum = V::fma(v, v, sum);
  }
  const float scale = 1.0f / std::sqrt(V::hsum(sum) / float(n) + eps);
  const F s = V::set1(scale);
  for (int i = 0; i < n; i += 16) V::store(out + i, V::mul(V::mul(V::load(x + i), s), V::load(weight + i)));
}

void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
  F sum = V::set1(0.0f), squares = sum;
  for (int i = 0; i < n; i += 16) sum = V::add(sum, V::load(x + i));
  const F mean = V::set1(V::hsum(sum) / float(n));
  for (int i = 0; i < n; i += 16) {
    const F d = V::sub(V::load(x + i), mean);
    squares = V::fma(d, d, squares);
  }
  const F s = V::set1(1.0f / std::sqrt(V::hsum(squares) / float(n) + eps));
  for (int i = 0; i < n; i += 16)
    V::store(out + i, V::fma(V::mul(V::sub(V::load(x + i), mean), s), V::load(weight + i), V::load(bias + i)));
}

void silu_mul(const float* gate, const float* up, int n, float* out) {
  const F one = V::set1(1.0f), zero = V::set1(0.0f), low = V::set1(-80.0f);
  for (int i = 0; i < n; i += 16) {
    const F g = V::load(gate + i);
    const F e = exp16(V::sub(zero, V::max(g, low)));  // kept finite: at -80 the quotient is already below 1e-33
    V::store(out + i, V::mul(V::div(g, V::add(one, e)), V::load(up + i)));
  }
}

// gelu(g) = g / 2 * (1 + tanh(u)) = g / (1 + exp(-2 u)), u = sqrt(2 / pi) * (g + 0.044715 g^3)
void gelu_mul(const float* gate, const float* up, int n, float* out) {
  const F one = V::set1(1.0f), low = V::set1(-80.0f), zero = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const F g = V::load(gate + i);
    const F twice = V::mul(g, V::fma(V::mul(g, g), V::set1(2 * 0.7978845608f * 0.044715f), V::set1(2 * 0.7978845608f)));
    // Kept within 80, where all is finite: beyond, the gate is 0 or itself to float's precision.
    const F e = exp16(V::max(V::sub(zero, V::max(twice, low)), low));
    V::store(out + i, V::mul(V::div(g, V::add(one, e)), V::load(up + i)));
  }
}

// gpt-oss's: min(g, 7) * sigmoid(1.702 * min(g, 7)) * (u + 1), u from -7 to 7. As in ggml, what goes beyond is cut off.
void swiglu_oai_mul(const float* gate, const float* up, int n, float* out) {
  const F one = V::set1(1.0f), zero = V::set1(0.0f), low = V::set1(-80.0f), least = V::set1(-7.0f);
  for (int i = 0; i < n; i += 16) {
    const F minus = V::max(least, V::sub(zero, V::load(gate + i)));  // -min(g, 7); NaN as a second operand stays, here and below
    const F e = exp16(V::sub(zero, V::max(V::mul(minus, V::set1(-1.702f)), low)));
    const F u = V::sub(zero, V::max(least, V::sub(zero, V::max(least, V::load(up + i)))));
    V::store(out + i, V::mul(V::div(V::sub(zero, minus), V::add(one, e)), V::add(u, one)));
  }
}

// tanh(y) = (1 - e) / (1 + e), e = exp(-2 y); of NaN it is NaN, which V::max leaves as its second operand
inline F capped(F x, F cap) {
  const F one = V::set1(1.0f), low = V::set1(-80.0f);
  const F y = V::max(V::set1(-40.0f), V::div(x, cap));
  const F e = exp16(V::max(low, V::mul(y, V::set1(-2.0f))));
  return V::mul(cap, V::div(V::sub(one, e), V::add(one, e)));
}

void soft_cap(float* x, float cap, int n) {
  for (int i = 0; i < n; i += 16) V::store(x + i, capped(V::load(x + i), V::set1(cap)));
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += 16) V::store(x + i, V::add(V::load(x + i), V::load(y + i)));
}

void add_scaled(float* x, const float* y, float s, int n) {
  for (int i = 0; i < n; i += 16) V::store(x + i, V::fma(V::set1(s), V::load(y + i), V::load(x + i)));
}

// Rows of activations that go side by side.
template <int R> struct Rows {
  const uint8_t* x;
  size_t stride;
  int k;
  ActivationRow operator[](int r) const { return ActivationRow(x + size_t(r) * stride, k); }
};

// The rows of a product, a few at a time: pass<R>(first row, whether it fetches the next tile) for the Sizes R in order, the last of which is 1.
// The last of the longest passes fetches: a shorter one would wait for memory longer than it computes (docs/decisions/0066-larger-models.md).
template <int... Sizes, class Pass> inline void in_passes(int m, Pass pass) {
  int r = 0;
  auto all_of = [&]<int R>() {
    const int fetched = r ? 0 : m / R * R;  // where the last pass of this size ends, if it is the longest
    for (; r + R <= m; r += R) pass.template operator()<R>(r, r + R == fetched);
  };
  (all_of.template operator()<Sizes>(), ...);
}

// Four rows at a time: one alone waits for each of its sums.
void dots(const float* matrix, int rows, const float* x, int n, float* out) {
  in_passes<4, 1>(rows, [&]<int R>(int row, bool) {
    const float* from = matrix + size_t(row) * size_t(n);
    F sum[R];
    for (int r = 0; r < R; r++) sum[r] = V::set1(0.0f);
    for (int i = 0; i < n; i += 16) {
      const F v = V::load(x + i);
      for (int r = 0; r < R; r++) sum[r] = V::fma(V::load(from + size_t(r) * size_t(n) + i), v, sum[r]);
    }
    for (int r = 0; r < R; r++) out[row + r] = V::hsum(sum[r]);
  });
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

float row_sum_exp(const float* x, int n, float max, float scale) {
  const F m = V::set1(max), s = V::set1(scale);
  F sum = V::set1(0.0f);
  int i = 0;
  for (; i + 16 * kExps <= n; i += 16 * kExps) {
    F e[kExps];
    for (int j = 0; j < kExps; j++) e[j] = V::mul(V::sub(V::load(x + i + 16 * j), m), s);
    exp_each(e);
    for (const F& each : e) sum = V::add(sum, each);
  }
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

void attend(const AttendOver<uint16_t>& a);  // attend.h
void attend8(const AttendOver<uint8_t>& a);  // attend_bytes.h

constexpr Kernels table(const char* name, decltype(Kernels::gemm_tile) gemm_tile) {
  return {name,           gemm_tile, quantize_blocks, rms_norm,       layer_norm,      attend,      attend8,           hadamard,
          quantize_cells, silu_mul,  gelu_mul,        swiglu_oai_mul, soft_cap,        add,         add_scaled,        dots,
          scale_row,      rope,      to_half,         row_max,        row_max_checked, row_sum_exp, row_sum_exp_times, row_moments,
          row_exp};
}

}  // namespace
}  // namespace quintet
