// AVX-512 with VNNI: one register is the 16 columns of a tile, one instruction multiplies 64 pairs of bytes.
#include "kernels/vec_avx512.h"
#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include "kernels/attend.h"
#include "kernels/codes_avx512.h"
#include "kernels/fetch_ahead.h"
#include "kernels/float_product.h"
#include "kernels/kernels_impl.h"
#include "kernels/products512.h"
#include "kernels/quantize512.h"

namespace quintet {
namespace {

template <int R, class Fetching> inline void tile_q4(const Packed& w, const uint8_t* tile, const Rows<R>& x, Fetching fetching,
                                                     __m512 (&f)[R]) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + 320 * b;
    fetching.template with<5>(w, tile, b);
    __m512i acc[R];
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      const __m512i v = load64(block + 64 * g);
      const __m512i lo = _mm512_and_si512(v, low), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
      for (int r = 0; r < R; r++) {
        const uint8_t* q = x[r].q + 32 * b + 4 * g;
        acc[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc[r], lo, broadcast4(q)), hi, broadcast4(q + 16));
      }
    }
    const uint16_t* s = reinterpret_cast<const uint16_t*>(block + 256);
    const __m512 d = V::load_half(s), m = V::load_half(s + 16);
    for (int r = 0; r < R; r++) {
      f[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[r]);
      f[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r].minimum[b]), f[r]);
    }
  }
}

// The weights are offset to unsigned bytes by flipping the sign bit; the offset's share, 128 * sum(x), starts the accumulator.
template <int R, class Fetching> inline void tile_q8(const Packed& w, const uint8_t* tile, const Rows<R>& x, Fetching fetching,
                                                     __m512 (&f)[R]) {
  const __m512i flip = _mm512_set1_epi8(char(0x80));
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + size_t(512) * size_t(w.blocks()));
  TimesSums<R, -128, 0> starts;
  for (int b = 0; b < w.blocks(); b++) {
    fetching.template with<9>(w, tile, b);
    starts.reach(x, b, w.blocks());
    __m512i acc[R];
    for (int r = 0; r < R; r++) acc[r] = starts.of(r, b);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const __m512i v = _mm512_xor_si512(load64(tile + size_t(512) * size_t(b) + 64 * g), flip);
      for (int r = 0; r < R; r++) acc[r] = _mm512_dpbusd_epi32(acc[r], v, broadcast4(x[r].q + 32 * b + 4 * g));
    }
    const __m512 d = V::load_half(scales + 16 * b);
    for (int r = 0; r < R; r++) f[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[r]);
  }
}

// Rows that go side by side at most: as many sums and results, and five values that they share, are 29 of 32 registers.
constexpr int kMostRows = 12;
// Fewer wait for their weights: beside them there is no time for what is ahead, nor for the next tile if longer passes are there for it.
constexpr int kLeastAhead = 8;

template <Format Is, int R, class Fetching> void rows(const Packed& w, const uint8_t* tile, const uint8_t* x, size_t x_stride, float* y,
                                                      size_t y_stride, bool accumulate, bool next, Ahead* ahead) {
  __m512 f[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) f[r] = _mm512_setzero_ps();  // as loops, this and the last one keep results in memory from the start
  const Rows<R> in{x, x_stride, w.cols};
  const Fetching fetching(next, ahead, R, w.blocks());
  fetch_results<R>(y, y_stride);
  if constexpr (Is == Format::q4) tile_q4<R>(w, tile, in, fetching, f);
  else if constexpr (Is == Format::q8) tile_q8<R>(w, tile, in, fetching, f);
  else tile_codes<Is, R>(w, tile, in, fetching, f);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) {
    float* out = y + size_t(r) * y_stride;
    V::store(out, accumulate ? V::add(V::load(out), f[r]) : f[r]);
  }
}

using Pass = void (*)(const Packed&, const uint8_t*, const uint8_t*, size_t, float*, size_t, bool, bool, Ahead*);
struct Passes {
  Pass early;                // of kMostRows, if another one fetches the next tile and nothing is ahead
  Pass fetching[kMostRows];  // of 1 row and more; one of them fetches the next tile (docs/decisions/0066-larger-models.md)
};
template <Format Is> constexpr Passes passes_of() {
  return []<int... r>(std::integer_sequence<int, r...>) {
    return Passes{rows<Is, kMostRows, FetchNothing>,
                  {rows<Is, r + 1, std::conditional_t<(r + 1 < kLeastAhead), FetchNext, FetchAhead>>...}};
  }(std::make_integer_sequence<int, kMostRows>());
}
// By format: all that are not floats.
constexpr auto kPasses = []<int... f>(std::integer_sequence<int, f...>) {
  return std::array{passes_of<Format(f)>()...};
}(std::make_integer_sequence<int, int(Format::f32)>());

}  // namespace

// Found in a table, as a step of few rows has many calls: a chain of comparisons took a tenth of those of four.
void gemm_tile_avx512(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                      Ahead* ahead) {
  if (is_float(w.format)) return float_tile<8, 7, 6, 5, 4, 3, 2, 1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  const Passes& passes = kPasses[size_t(w.format)];
  const int few = m % kMostRows;
  const int fetched = m > kMostRows && few < kLeastAhead ? m - few : m;  // where the pass that fetches the next tile ends
  for (int r = 0, n; r < m; r += n) {
    n = std::min(m - r, kMostRows);
    const bool next = r + n == fetched;
    const Pass pass = next || n < kMostRows || FetchAhead::any(ahead) ? passes.fetching[n - 1] : passes.early;
    pass(w, w.tile(tile), x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate, next, ahead);
  }
}

namespace {

constexpr Kernels table512(const char* name) {
  Kernels k = table(name, gemm_tile_avx512);
  k.quantize_blocks = quantize_blocks_avx512;
  k.least_ahead = kLeastAhead;
  return k;
}

}  // namespace

extern constinit const Kernels kernels_avx512 = table512("avx512");
extern constinit const Kernels kernels_amx = [] {  // all but products of many rows is the same
  Kernels amx = table512("amx");
  amx.attend8 = attend8_amx;
  amx.gemm_panels = gemm_panels_amx;
  amx.least_of_panel = kLeastOfPanel;
  amx.leave = release_tiles;
  return amx;
}();

}  // namespace quintet
