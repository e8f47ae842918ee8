// Activations in 8 bits, four blocks of 32 at a time: one division gives the scales of all and what they are multiplied by, and the sums
// across a register, which a block alone takes three of, are sums of four. The same numbers as by kernels_impl.h.
#pragma once
#include "kernels/vec_avx512.h"
#include "kernels/kernels_impl.h"

namespace quintet {
namespace {

// The largest magnitudes of four blocks, whose first 16 values are a and others b: of each in all lanes of a quarter.
inline __m512 magnitudes(const __m512 (&a)[4], const __m512 (&b)[4]) {
  __m512 most[4];
  for (int i = 0; i < 4; i++) most[i] = V::max_bits(V::abs(a[i]), V::abs(b[i]));
  const auto halves = [](__m512 x, __m512 y) { return V::max_bits(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee)); };
  const __m512 first = halves(most[0], most[1]), second = halves(most[2], most[3]);
  const __m512 fours = V::max_bits(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
  const __m512 twos = V::max_bits(fours, _mm512_shuffle_ps(fours, fours, 0x4e));
  const __m512 ones = V::max_bits(twos, _mm512_shuffle_ps(twos, twos, 0xb1));
  return _mm512_shuffle_ps(ones, ones, 0x00);
}

// Two blocks in bytes.
inline __m512i bytes_of(const __m512* a, const __m512* b, const float* inverse) {
  __m512i words[2];
  for (int i = 0; i < 2; i++) {
    const __m512 by = V::set1(inverse[i]);
    words[i] = _mm512_packs_epi32(_mm512_cvtps_epi32(V::mul(a[i], by)), _mm512_cvtps_epi32(V::mul(b[i], by)));
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
}

inline void quantize_four(const float* x, const Blocks& to, int at) {
  __m512 a[4], b[4];
  for (int i = 0; i < 4; i++) a[i] = V::load(x + 32 * i), b[i] = V::load(x + 32 * i + 16);
  const __m512i quarters = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256 amax = _mm512_castps512_ps256(_mm512_permutexvar_ps(quarters, magnitudes(a, b))), most = _mm256_set1_ps(127.0f);
  const __m128 infinity = _mm_set1_ps(std::numeric_limits<float>::infinity());
  if (_mm_movemask_ps(_mm_cmp_ps(_mm256_castps256_ps128(amax), infinity, _CMP_NLT_UQ))) return quantize_blocks(x, 4, to.from(at));
  const __m256 scales = _mm256_div_ps(_mm256_blend_ps(amax, most, 0xf0), _mm256_blend_ps(most, amax, 0xf0));  // amax / 127, 127 / amax
  const __m128 scale = _mm256_castps256_ps128(scales);
  const __m128 large = _mm_cmp_ps(_mm256_castps256_ps128(amax), _mm_set1_ps(kLeastMagnitude), _CMP_GT_OQ);
  float inverse[4];
  _mm_storeu_ps(inverse, _mm_and_ps(_mm256_extractf128_ps(scales, 1), large));
  __m512i sums[2];  // of four bytes each
  for (int i = 0; i < 2; i++) {
    const __m512i q = bytes_of(a + 2 * i, b + 2 * i, inverse + 2 * i);
    _mm512_storeu_si512(reinterpret_cast<void*>(to.q + 32 * (at + 2 * i)), q);
    sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
  }
  __m512i halves = _mm512_add_epi32(_mm512_unpacklo_epi64(sums[0], sums[1]), _mm512_unpackhi_epi64(sums[0], sums[1]));
  const __m512 as_floats = _mm512_castsi512_ps(halves);
  halves = _mm512_add_epi32(halves, _mm512_castps_si512(_mm512_shuffle_ps(as_floats, as_floats, 0xb1)));
  const __m512i order =
      _mm512_setr_epi32(0, 8, 2, 10, 4, 12, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0);  // the blocks' first halves, then the second ones
  const __m256i both = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, halves));
  const __m128i first = _mm256_castsi256_si128(both), all = _mm_add_epi32(first, _mm256_extracti128_si256(both, 1));
  _mm_storeu_ps(to.scale + at, scale);
  _mm_storeu_ps(to.minimum + at, _mm_mul_ps(scale, _mm_cvtepi32_ps(all)));
  const __m128i pairs = _mm_or_si128(_mm_and_si128(all, _mm_set1_epi32(0xffff)), _mm_slli_epi32(first, 16));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to.sum + at), pairs);
}

void quantize_blocks_avx512(const float* x, int n, const Blocks& to) {
  int at = 0;
  for (; at + 4 <= n; at += 4) quantize_four(x + 32 * at, to, at);
  if (at < n) quantize_blocks(x + 32 * at, n - at, to.from(at));
}

}  // namespace
}  // namespace quintet
