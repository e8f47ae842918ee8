// Every kernel except attention, those over rows of logits (logits.h), and the matrix product, of which only the order of its passes, once,
// over the 16-lane type V of the including file. The sequence of operations per output is fixed here, so all instruction sets give the same
// bits.
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
#include "kernels/exp.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/logits.h"

namespace quintet {
namespace {

constexpr float kLeastMagnitude = 1e-35f;  // what is below need not have a finite quotient of 127 by it, and is quantised to 0

// A block of 32: 16 + 16 lanes. One that has a value that is not finite is NaN in all it is multiplied with.
void quantize_blocks(const float* x, int n, const Blocks& to) {
  for (int i = 0; i < n; i++, x += 32) {
    const F a = V::load(x), b = V::load(x + 16);
    const float amax = V::hmax_bits(V::max_bits(V::abs(a), V::abs(b)));
    if (!(amax < std::numeric_limits<float>::infinity())) {
      std::memset(to.q + 32 * i, 0, 32);
      to.scale[i] = to.minimum[i] = std::numeric_limits<float>::quiet_NaN();
      to.sum[i] = {0, 0};
      continue;
    }
    const F inverse = V::set1(amax > kLeastMagnitude ? 127.0f / amax : 0.0f);
    int8_t* q = reinterpret_cast<int8_t*>(to.q) + 32 * i;
    const int32_t first = V::store_i8(q, V::mul(a, inverse)), all = first + V::store_i8(q + 16, V::mul(b, inverse));
    to.scale[i] = amax / 127.0f;
    to.minimum[i] = to.scale[i] * float(all);
    to.sum[i] = {int16_t(all), int16_t(first)};
  }
}

// Sums and differences of what lies n/2 apart, n/4, ... 1: first of whole registers, then of the lanes of one, where each lane is added to
// the other of its pair, or taken from it.
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

// The scales of two rows of n values as cells of 8 bits, fp16: of amax / 127 and 15 others up to 6 % larger the one whose cells are closest
// to the values, which takes a fifth off the squared error. None is so small that a cell would go beyond 127: amax / 127 is rounded up,
// others may round below it and drop out. Lanes are the scales here; a row alone would wait for each of its sums.
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
  F most = V::set1(0.0f);
  for (int i = 0; i < n; i += 16) most = V::max_bits(V::abs(V::load(x + i)), most);
  const float magnitude = V::hmax_bits(most);
  return magnitude < std::numeric_limits<float>::infinity() ? magnitude : std::numeric_limits<float>::quiet_NaN();
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

constexpr int kGates = 4;  // vectors side by side, by measurement, with 16 registers as with 32

// gate / (1 + exp(exponent(gate))) * up
template <int N, class Exponent> inline void gate_each(const float* gate, const float* up, float* out, Exponent exponent) {
  const F one = V::set1(1.0f);
  F e[N];
  for (int j = 0; j < N; j++) e[j] = exponent(V::load(gate + 16 * j));
  exp_each(e);
  for (int j = 0; j < N; j++) V::store(out + 16 * j, V::mul(V::div(V::load(gate + 16 * j), V::add(one, e[j])), V::load(up + 16 * j)));
}

template <class Exponent> inline void gated(const float* gate, const float* up, int n, float* out, Exponent exponent) {
  int i = 0;
  for (; i + 16 * kGates <= n; i += 16 * kGates) gate_each<kGates>(gate + i, up + i, out + i, exponent);
  for (; i < n; i += 16) gate_each<1>(gate + i, up + i, out + i, exponent);
}

// Kept finite: at -80 the quotient is already below 1e-33.
void silu_mul(const float* gate, const float* up, int n, float* out) {
  gated(gate, up, n, out, [](F g) { return V::sub(V::set1(0.0f), V::max(g, V::set1(-80.0f))); });
}

// gelu(g) = g / 2 * (1 + tanh(u)) = g / (1 + exp(-2 u)), u = sqrt(2 / pi) * (g + 0.044715 g^3)
// Kept within 80, where all is finite: beyond, the gate is 0 or itself to float's precision.
void gelu_mul(const float* gate, const float* up, int n, float* out) {
  gated(gate, up, n, out, [](F g) {
    const F low = V::set1(-80.0f);
    const F twice = V::mul(g, V::fma(V::mul(g, g), V::set1(2 * 0.7978845608f * 0.044715f), V::set1(2 * 0.7978845608f)));
    return V::max(V::sub(V::set1(0.0f), V::max(twice, low)), low);
  });
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

// cap * tanh(x / cap), tanh(y) = (1 - e) / (1 + e), e = exp(-2 y); of NaN it is NaN, which V::max leaves as its second operand
template <int N> inline void cap_each(float* x, F cap) {
  const F one = V::set1(1.0f);
  F e[N];
  for (int j = 0; j < N; j++) {
    const F y = V::max(V::set1(-40.0f), V::div(V::load(x + 16 * j), cap));
    e[j] = V::max(V::set1(-80.0f), V::mul(y, V::set1(-2.0f)));
  }
  exp_each(e);
  for (int j = 0; j < N; j++) V::store(x + 16 * j, V::mul(cap, V::div(V::sub(one, e[j]), V::add(one, e[j]))));
}

void soft_cap(float* x, float cap, int n) {
  int i = 0;
  for (; i + 16 * kGates <= n; i += 16 * kGates) cap_each<kGates>(x + i, V::set1(cap));
  for (; i < n; i += 16) cap_each<1>(x + i, V::set1(cap));
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

// The rows of a product, a few at a time: pass<R>(first row, whether it fetches the next tile) for the Sizes R in order, the last of which
// is 1. The last of the longest passes fetches: a shorter one would wait for memory longer than it computes
// (docs/decisions/0066-larger-models.md).
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
