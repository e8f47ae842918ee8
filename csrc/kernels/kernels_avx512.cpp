// AVX-512 with VNNI: one register is the 16 columns of a tile, one instruction multiplies 64 pairs of bytes. A pass is some rows and one
// tile, or two side by side: then each four bytes of a row are read once for both, as a CPU that multiplies twice a cycle reads no more
// than twice.
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

template <int R, int T, class Fetching> inline void tile_q4(const Packed& w, const uint8_t* tile, const Rows<R>& x, Fetching fetching,
                                                            __m512 (&f)[T][R]) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + 320 * b;
    fetching.template with<coding(Format::q4).lines(), T>(w, tile, b);
    __m512i acc[T][R];
    for (int r = 0; r < R; r++)
      for (int t = 0; t < T; t++) acc[t][r] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      __m512i lo[T], hi[T];
      for (int t = 0; t < T; t++) {
        const __m512i v = load64(block + w.tile_bytes * size_t(t) + 64 * g);
        lo[t] = _mm512_and_si512(v, low), hi[t] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
      }
      for (int r = 0; r < R; r++) {
        const uint8_t* q = x[r].q + 32 * b + 4 * g;
        const __m512i first = broadcast4(q), second = broadcast4(q + 16);
        for (int t = 0; t < T; t++) acc[t][r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc[t][r], lo[t], first), hi[t], second);
      }
    }
    for (int t = 0; t < T; t++) {
      const uint16_t* s = reinterpret_cast<const uint16_t*>(block + w.tile_bytes * size_t(t) + 256);
      const __m512 d = V::load_half(s), m = V::load_half(s + 16);
      for (int r = 0; r < R; r++) {
        f[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t][r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[t][r]);
        f[t][r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r].minimum[b]), f[t][r]);
      }
    }
  }
}

// The weights are offset to unsigned bytes by flipping the sign bit; the offset's share, 128 * sum(x), starts the accumulator.
template <int R, int T, class Fetching> inline void tile_q8(const Packed& w, const uint8_t* tile, const Rows<R>& x, Fetching fetching,
                                                            __m512 (&f)[T][R]) {
  const __m512i flip = _mm512_set1_epi8(char(0x80));
  const uint8_t* scales = tile + size_t(512) * size_t(w.blocks());
  TimesSums<R, -128, 0> starts;
  for (int b = 0; b < w.blocks(); b++) {
    fetching.template with<coding(Format::q8).lines(), T>(w, tile, b);
    starts.reach(x, b, w.blocks());
    __m512i acc[T][R];
    for (int r = 0; r < R; r++)
      for (int t = 0; t < T; t++) acc[t][r] = starts.of(r, b);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      __m512i v[T];
      for (int t = 0; t < T; t++) v[t] = _mm512_xor_si512(load64(tile + w.tile_bytes * size_t(t) + size_t(512) * size_t(b) + 64 * g), flip);
      for (int r = 0; r < R; r++) {
        const __m512i q = broadcast4(x[r].q + 32 * b + 4 * g);
        for (int t = 0; t < T; t++) acc[t][r] = _mm512_dpbusd_epi32(acc[t][r], v[t], q);
      }
    }
    for (int t = 0; t < T; t++) {
      const __m512 d = V::load_half(reinterpret_cast<const uint16_t*>(scales + w.tile_bytes * size_t(t)) + 16 * b);
      for (int r = 0; r < R; r++)
        f[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t][r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[t][r]);
    }
  }
}

// Rows times tiles that go side by side at most: as many sums and results, and five values that they share, are 29 of 32 registers.
constexpr int kMost = 12;
// Fewer wait for their weights: beside them there is no time for what is ahead.
constexpr int kLeastAhead = 8;
constexpr int kLeastOfPair = 8;
constexpr int kMostNear = 24;  // rows that are multiplied in so little time that it matters where their weights are waited for

template <Format Is, int R, int T, class Fetching> void rows(const Packed& w, const uint8_t* tile, const uint8_t* x, size_t x_stride,
                                                             float* y, size_t y_stride, bool accumulate, int part, Ahead* ahead) {
  __m512 f[T][R];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) f[t][r] = _mm512_setzero_ps();  // as loops, this and the last one keep results in memory from the start
  const Rows<R> in{x, x_stride, w.cols};
  const Fetching fetching(part, ahead, R * T, w.blocks());
  for (int t = 0; t < T; t++) fetch_results<R>(y + 16 * t, y_stride);
  if constexpr (Is == Format::q4) tile_q4<R, T>(w, tile, in, fetching, f);
  else if constexpr (Is == Format::q8) tile_q8<R, T>(w, tile, in, fetching, f);
  else tile_codes<Is, R, T>(w, tile, in, fetching, f);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int t = 0; t < T; t++) {
      float* out = y + size_t(r) * y_stride + 16 * t;
      V::store(out, accumulate ? V::add(V::load(out), f[t][r]) : f[t][r]);
    }
}

using Pass = void (*)(const Packed&, const uint8_t*, const uint8_t*, size_t, float*, size_t, bool, int, Ahead*);
// The last passes over T tiles fetch the next T, one part each. By too few, wide blocks would be more than memory gives in their time, and
// it would be idle in the others'. Of narrow ones two passes fetch just as many lines as there are.
template <int T> constexpr int parts_of(bool wide, int passes) { return T == 1 ? 1 : passes == 2 || !wide ? 2 : passes < 5 ? 3 : 4; }
constexpr int kMostParts = 4;

template <int T> struct Passes {
  static constexpr int kMostRows = kMost / T;
  bool wide;
  Pass early;                            // of kMostRows, if others fetch the next tiles and nothing is ahead
  Pass fetching[kMostParts][kMostRows];  // one of 1 part and more, of 1 row and more; null where there is none
};
// Passes are about as long, so those of a pair have at least half of its least rows.
template <Format F, int T, int parts, int R> constexpr bool there_is() {
  return T == 1 ? parts == 1 : 2 * R >= kLeastOfPair && (parts == 2 || (is_wide(F) && parts > 2));
}
template <Format F, int T, bool near, int parts, int R> constexpr Pass fetching_pass() {
  if constexpr (!there_is<F, T, parts, R>()) return nullptr;
  else if constexpr (R * T < kLeastAhead) return rows<F, R, T, FetchNext<near, parts>>;
  else return rows<F, R, T, FetchAhead<near, parts>>;
}
template <Format F, int T, bool near> constexpr Passes<T> passes_of() {
  Passes<T> passes{is_wide(F), rows<F, kMost / T, T, FetchNothing>, {}};
  [&]<int... i>(std::integer_sequence<int, i...>) {
    constexpr int n = kMost / T;
    ((passes.fetching[i / n][i % n] = fetching_pass<F, T, near, i / n + 1, i % n + 1>()), ...);
  }(std::make_integer_sequence<int, kMostParts*(kMost / T)>());
  return passes;
}
// By format: all that are not floats. Found in a table, as a step of few rows has many calls: a chain of comparisons took a tenth of those
// of four.
template <int T, bool near> constexpr auto kPasses = []<int... f>(std::integer_sequence<int, f...>) {
  return std::array{passes_of<Format(f), T, near>()...};
}(std::make_integer_sequence<int, int(Format::f32)>());

// T tiles from `tile` on, in passes of about as many rows. The last passes fetch the next tiles, a part each.
template <int T> inline void all_rows(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride,
                                      bool accumulate, Ahead* ahead) {
  const Passes<T>& passes = (kFetchesNear && m <= kMostNear ? kPasses<T, true> : kPasses<T, false>)[size_t(w.format)];
  constexpr int most = Passes<T>::kMostRows;
  const int count = m <= most ? 1 : (m + most - 1) / most, parts = parts_of<T>(passes.wide, count);
  for (int r = 0, n, left = count; left > 0; r += n, left--) {
    n = left == 1 ? m - r : (m - r + left - 1) / left;
    const bool fetches = left <= parts;
    const Pass pass = fetches || n < most || any_ahead(ahead) ? passes.fetching[parts - 1][n - 1] : passes.early;
    pass(w, w.tile(tile), x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate,
         fetches ? parts - left : kNoPart, ahead);
  }
}

}  // namespace

void gemm_tile_avx512(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                      Ahead* ahead) {
  if (is_float(w.format)) return float_tile<8, 7, 6, 5, 4, 3, 2, 1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  all_rows<1>(w, tile, x, x_stride, m, y, y_stride, accumulate, ahead);
}

namespace {

void gemm_pair(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
               Ahead* ahead) {
  all_rows<2>(w, tile, x, x_stride, m, y, y_stride, accumulate, ahead);
}

// Two tiles in a pass are read with less for each product, which CPUs that multiply twice a cycle would wait for. Few rows of wide blocks
// wait for memory instead, and that gives more to one tile after the other.
bool pairs(Format format, int rows) { return rows >= (!kFetchesNear ? 12 : is_wide(format) ? 10 : kLeastOfPair); }

constexpr Kernels table512(const char* name) {
  Kernels k = table(name, gemm_tile_avx512);
  k.quantize_blocks = quantize_blocks_avx512;
  k.gemm_pair = gemm_pair;
  k.pairs = pairs;
  k.attend_pairs = 96;
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
