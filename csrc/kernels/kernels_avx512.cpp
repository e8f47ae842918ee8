// AVX-512 with VNNI: one register is the 16 columns of a tile, one instruction multiplies 64 pairs of bytes.
#include "kernels/vec_avx512.h"
#include "kernels/attend.h"
#include "kernels/codes_avx512.h"
#include "kernels/float_product.h"
#include "kernels/kernels_impl.h"
#include "kernels/prefetch.h"
#include "kernels/products512.h"

namespace quintet {
namespace {

template <int R, bool Fetch> inline void tile_q4(const Packed& w, const uint8_t* tile, const Rows<R>& x, __m512 (&f)[R]) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + 320 * b;
    if (Fetch) fetch_next<5>(w, tile, b);
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
template <int R, bool Fetch> inline void tile_q8(const Packed& w, const uint8_t* tile, const Rows<R>& x, __m512 (&f)[R]) {
  const __m512i flip = _mm512_set1_epi8(char(0x80));
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + size_t(512) * size_t(w.blocks()));
  for (int b = 0; b < w.blocks(); b++) {
    if (Fetch) fetch_next<9>(w, tile, b);
    __m512i acc[R];
    for (int r = 0; r < R; r++) acc[r] = times_sums<-128, 0>(x[r].sum[b]);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const __m512i v = _mm512_xor_si512(load64(tile + size_t(512) * size_t(b) + 64 * g), flip);
      for (int r = 0; r < R; r++) acc[r] = _mm512_dpbusd_epi32(acc[r], v, broadcast4(x[r].q + 32 * b + 4 * g));
    }
    const __m512 d = V::load_half(scales + 16 * b);
    for (int r = 0; r < R; r++) f[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[r]);
  }
}

template <int R, bool Fetch> void rows(const Packed& w, int tile, const uint8_t* x, size_t x_stride, float* y, size_t y_stride,
                                       bool accumulate) {
  __m512 f[R];
  for (int r = 0; r < R; r++) f[r] = _mm512_setzero_ps();
  const Rows<R> in{x, x_stride, w.cols};
  if (w.format == Format::q4) tile_q4<R, Fetch>(w, w.tile(tile), in, f);
  else if (w.format == Format::q8) tile_q8<R, Fetch>(w, w.tile(tile), in, f);
  else tile_of_codes<R, Fetch>(w, w.tile(tile), in, f);
  for (int r = 0; r < R; r++) {
    float* out = y + size_t(r) * y_stride;
    V::store(out, accumulate ? V::add(V::load(out), f[r]) : f[r]);
  }
}

}  // namespace

void gemm_tile_avx512(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate) {
  if (is_float(w.format)) return float_tile<8, 7, 6, 5, 4, 3, 2, 1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  // One pass for up to 8 rows, whatever their number: a step's rows of one expert are few. The last one fetches the next tile, also of 4 bits and
  // after a single pass: these CPUs do not see such tiles coming (docs/decisions/0026-experts.md).
  in_passes<8, 7, 6, 5, 4, 3, 2, 1>(m, [&]<int R>(int r, bool last) {
    const auto pass = last ? rows<R, true> : rows<R, false>;
    pass(w, tile, x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate);
  });
}

extern constinit const Kernels kernels_avx512 = table("avx512", gemm_tile_avx512);
extern constinit const Kernels kernels_amx = [] {  // all but the product is the same
  Kernels amx = table("amx", gemm_tile_amx);
  amx.leave = release_tiles;
  return amx;
}();

}  // namespace quintet
