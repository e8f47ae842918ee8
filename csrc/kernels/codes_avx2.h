// The other formats of codes with AVX2, as tile_q4 and tile_q8 in kernels_avx2.cpp are. A code below 64 is a byte without a sign: the
// 16-bit sums of its products hold two groups of 4 (2 * 2 * 63 * 127 = 32004), those of a code below 32 all four of 16 values (4 * 2 * 31 *
// 127 = 31496).
#pragma once
#include "kernels/codes.h"
#include "kernels/prefetch.h"
#include "kernels/rows_avx2.h"

namespace quintet {
namespace {

template <Format F> constexpr bool kSigned = coding(F).low == 512 || coding(F).table != nullptr;
template <Format F> constexpr int kGroups = kSigned<F> ? 1 : F == Format::q6 ? 2 : 4;  // whose sums 16 bits hold

// Codes, or what they stand for if that has a sign, of the values 16 * half + 4 * g .. + 3 of 8 lanes.
template <Format F> inline __m256i codes_of(const uint8_t* block, int half, int g, __m256i table) {
  if constexpr (coding(F).low == 512) return load32(block + 256 * half + 64 * g);
  const __m256i nibble = _mm256_set1_epi8(15), v = load32(block + 64 * g);
  const __m256i low = _mm256_and_si256(half ? _mm256_srli_epi16(v, 4) : v, nibble);
  if constexpr (coding(F).table != nullptr) return _mm256_shuffle_epi8(table, low);
  if constexpr (!coding(F).high) return low;
  constexpr int width = F == Format::q5 ? 1 : 2;
  const __m256i bits = load32(block + 256 + (width - 1) * 64 * half), mask = _mm256_set1_epi8(char(((1 << width) - 1) << 4));
  const int at = width * g + (width == 1 ? 4 * half : 0);  // of the lowest of them, which belongs at 4
  const __m256i moved = at < 4 ? _mm256_slli_epi16(bits, 4 - at) : _mm256_srli_epi16(bits, at - 4);
  return _mm256_or_si256(low, _mm256_and_si256(moved, mask));
}

// acc += the products of 16 values of 8 lanes (`columns`: the first byte of theirs in a group) with R rows.
template <Format F, int R> inline void add_half(const uint8_t* columns, int half, const uint8_t* x, size_t stride, __m256i table,
                                                __m256i (&acc)[R]) {
  const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int first = 0; first < 4; first += kGroups<F>) {
    __m256i sum[R];
#pragma GCC unroll 4
    for (int g = first; g < first + kGroups<F>; g++) {
      const __m256i v = codes_of<F>(columns, half, g, table);
      const __m256i a = kSigned<F> ? _mm256_abs_epi8(v) : v, negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v);
      for (int r = 0; r < R; r++) {
        const __m256i q = broadcast4(x + size_t(r) * stride + 16 * half + 4 * g);
        const __m256i product = _mm256_maddubs_epi16(a, kSigned<F> ? with_sign(q, negative) : q);
        sum[r] = g == first ? product : _mm256_add_epi16(sum[r], product);
        pin(sum[r]);
      }
    }
    for (int r = 0; r < R; r++) {
      acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(sum[r], one));
      pin(acc[r]);
    }
  }
}

template <Format F> inline __m256i table_of() {
  if constexpr (coding(F).table != nullptr)
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(coding(F).table)));
  return _mm256_setzero_si256();
}

template <Format F, int R, bool Fetch> inline void tile_codes(const Packed& w, const uint8_t* tile, const Rows<R>& x, __m256 (&f)[R][2]) {
  constexpr Coding c = coding(F);
  const __m256i table = table_of<F>();
  const uint16_t* apart = reinterpret_cast<const uint16_t*>(tile + c.block() * size_t(w.blocks()));
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + c.block() * size_t(b);
    const uint16_t* scales = c.apart ? apart + 16 * b : reinterpret_cast<const uint16_t*>(block + c.scale_at());
    if (Fetch) fetch_next<c.lines()>(w, tile, b);
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++) {
      __m256i acc[R];
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        if (half == 0 || c.scales == 2)
          for (int r = 0; r < R; r++) {
            if (!c.offset) acc[r] = _mm256_setzero_si256();
            else acc[r] = half ? times_sums<-c.offset, c.offset>(x[r].sum[b]) : times_sums<0, -c.offset>(x[r].sum[b]);
          }
        add_half<F, R>(block + 32 * t, half, x.x + 32 * b, x.stride, table, acc);
        if (half == 0 && c.scales == 1) continue;
        const uint16_t* s = scales + 16 * (c.scales == 2 ? half : 0) + 8 * t;
        const __m256 d = load8_half(s);
        for (int r = 0; r < R; r++) {
          const ActivationRow row = x[r];
          f[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r]), _mm256_mul_ps(d, _mm256_set1_ps(row.scale[b])), f[r][t]);
          if (!c.minima) continue;
          const __m256 m = load8_half(s + 16 * c.scales);
          if (c.scales == 1) {
            f[r][t] = _mm256_fmadd_ps(m, _mm256_set1_ps(row.minimum[b]), f[r][t]);
          } else {
            const __m256i sum = half ? times_sums<1, -1>(row.sum[b]) : times_sums<0, 1>(row.sum[b]);
            f[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(m, _mm256_set1_ps(row.scale[b])), f[r][t]);
          }
        }
      }
    }
  }
}

template <int R, bool Fetch> inline void tile_of_codes(const Packed& w, const uint8_t* tile, const Rows<R>& x, __m256 (&f)[R][2]) {
  for_coded(w.format, [&]<Format F>() { tile_codes<F, R, Fetch>(w, tile, x, f); });
}

}  // namespace
}  // namespace quintet
