// AVX-VNNI: what AVX-512-VNNI multiplies, half a tile at a time, on CPUs without AVX-512. Bytes without a sign times bytes with one go into
// sums of 32 bits at once: no sums in 16 bits, no signs to move. One body for all formats of codes, q4 and q8 among them.
#include "kernels/codes_avx2.h"
#include "kernels/products256.h"

namespace quintet {
namespace {

// sum += the four products of each lane.
inline __m256i dot(__m256i sum, __m256i codes, __m256i q) {
#ifdef QUINTET_EMULATE_AVX512
  const __m256i mask = _mm256_set1_epi16(255), even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), odd = _mm256_srai_epi16(q, 8);
  const __m256i first = _mm256_madd_epi16(_mm256_and_si256(codes, mask), even),
                second = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd);
  return _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
#else
  return _mm256_dpbusd_avx_epi32(sum, codes, q);
#endif
}

// What has a sign is 128 too large as a byte without.
template <Format F> constexpr int kTooLarge = kSigned<F> ? 128 : coding(F).offset;

template <Format F> inline __m256i unsigned_codes(const uint8_t* columns, int half, int g, __m256i table) {
  const __m256i v = codes_of<F>(columns, half, g, table);
  return kSigned<F> ? _mm256_xor_si256(v, _mm256_set1_epi8(char(0x80))) : v;
}

template <Format F, int R, bool Fetch> inline void tile(const Packed& w, const uint8_t* from, const Rows<R>& x, __m256 (&f)[R][2]) {
  constexpr Coding c = coding(F);
  const __m256i table = table_of<F>();
  const uint8_t* apart = from + c.block() * size_t(w.blocks());
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = from + c.block() * size_t(b);
    if (Fetch) fetch_next<c.lines()>(w, from, b);
    __m256i acc[R][2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      if (half == 0 || c.scales == 2)
        for (int r = 0; r < R; r++) {
          const Sums& sums = x[r].sum[b];
          if (!kTooLarge<F>) acc[r][0] = _mm256_setzero_si256();
          else if (c.scales == 1) acc[r][0] = times_sums<-kTooLarge<F>, 0>(sums);
          else acc[r][0] = half ? times_sums<-kTooLarge<F>, kTooLarge<F>>(sums) : times_sums<0, -kTooLarge<F>>(sums);
          acc[r][1] = acc[r][0];
        }
#pragma GCC unroll 4
      for (int g = 0; g < 4; g++) {
        const __m256i v0 = unsigned_codes<F>(block, half, g, table), v1 = unsigned_codes<F>(block + 32, half, g, table);
        for (int r = 0; r < R; r++) {
          const __m256i q = broadcast4(x[r].q + 32 * b + 16 * half + 4 * g);
          acc[r][0] = dot(acc[r][0], v0, q);
          acc[r][1] = dot(acc[r][1], v1, q);
        }
      }
      if (half == 0 && c.scales == 1) continue;
      const uint16_t* s =
          reinterpret_cast<const uint16_t*>(c.apart ? apart + 32 * b : block + c.scale_at()) + 16 * (c.scales == 2 ? half : 0);
#pragma GCC unroll 2
      for (int t = 0; t < 2; t++) {
        const __m256 d = load8_half(s + 8 * t), m = c.minima ? load8_half(s + 8 * t + 16 * c.scales) : d;
        for (int r = 0; r < R; r++) {
          const __m256 scale = _mm256_set1_ps(x[r].scale[b]);
          f[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r][t]), _mm256_mul_ps(d, scale), f[r][t]);
          if (c.minima && c.scales == 1) f[r][t] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[r].minimum[b]), f[r][t]);
          if (c.minima && c.scales == 2)
            f[r][t] = _mm256_fmadd_ps(_mm256_set1_ps(float(x[r].sum[b].half(half))), _mm256_mul_ps(m, scale), f[r][t]);
        }
      }
    }
  }
}

template <int R, bool Fetch> void rows(const Packed& w, int at, const uint8_t* x, size_t x_stride, float* y, size_t y_stride,
                                       bool accumulate) {
  __m256 f[R][2];
  for (int r = 0; r < R; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
  const Rows<R> in{x, x_stride, w.cols};
  if (w.format == Format::q4) tile<Format::q4, R, Fetch>(w, w.tile(at), in, f);
  else if (w.format == Format::q8) tile<Format::q8, R, Fetch>(w, w.tile(at), in, f);
  else for_coded(w.format, [&]<Format F>() { tile<F, R, Fetch>(w, w.tile(at), in, f); });
  for (int r = 0; r < R; r++) {
    float* out = y + size_t(r) * y_stride;
    const V::F sum = {f[r][0], f[r][1]};
    V::store(out, accumulate ? V::add(V::load(out), sum) : sum);
  }
}

}  // namespace

void gemm_tile_avxvnni(const Packed& w, int at, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                       Ahead*) {
  if (is_float(w.format)) return gemm_tile_avx2(w, at, x, x_stride, m, y, y_stride, accumulate, nullptr);
  in_passes<4, 2, 1>(m, [&]<int R>(int r, bool fetches) {
    const auto pass = fetches && (m > R || !streams(w)) ? rows<R, true> : rows<R, false>;
    pass(w, at, x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate);
  });
}

}  // namespace quintet
