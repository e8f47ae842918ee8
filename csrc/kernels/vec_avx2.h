// 16 lanes as two 256-bit registers. Needs AVX2, FMA, F16C.
#pragma once
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace quintet {
namespace {

struct V {
  struct F {
    __m256 a, b;
  };
  static constexpr int kRegisters = 8;  // values of F that fit into the registers

  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F abs(F x) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
  }
  static __m256 max_bits_half(__m256 x, __m256 y) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
  }
  static F max_bits(F x, F y) { return {max_bits_half(x.a, y.a), max_bits_half(x.b, y.b)}; }
  static F round(F x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
  }
  static F zero_below(F x, F bound, F y) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.a, bound.a, _CMP_LT_OQ), y.a), _mm256_andnot_ps(_mm256_cmp_ps(x.b, bound.b, _CMP_LT_OQ), y.b)};
  }
  static __m256 pow2_half(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static F pow2(F n) { return {pow2_half(n.a), pow2_half(n.b)}; }
  static F times_pow2(F x, F n) { return mul(x, pow2(n)); }
  // The lanes `apart` from each.
  template <int apart> static F swapped(F x) {
    if constexpr (apart == 8) return {x.b, x.a};
    const auto half = [](__m256 v) {
      if constexpr (apart == 4) return _mm256_permute2f128_ps(v, v, 1);
      return _mm256_permute_ps(v, apart == 2 ? 0x4e : 0xb1);
    };
    return {half(x.a), half(x.b)};
  }
  static F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
  }
  // 16 pairs of bfloat16: the first of each, and the second.
  static void load_bf16(const uint16_t* p, F& first, F& second) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 16));
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    second = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
  }
  static void store_half(uint16_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static int32_t store_i8(int8_t* p, F x) {
    __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));  // a0-3 b0-3 a4-7 b4-7
    w = _mm256_permute4x64_epi64(w, 0xd8);
    const __m128i lo = _mm256_castsi256_si128(w), hi = _mm256_extracti128_si256(w, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(lo, hi));
    __m128i s = _mm_madd_epi16(_mm_add_epi16(lo, hi), _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
  }
  static float hsum(F x) {
    const __m256 t8 = _mm256_add_ps(x.a, x.b);
    const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
  }
  static float hmax(F x) {
    const __m256 t8 = _mm256_max_ps(x.a, x.b);
    const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_max_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
  }
  static float hmax_bits(F x) {
    const __m256i t8 = _mm256_castps_si256(max_bits_half(x.a, x.b));
    const __m128i t4 = _mm_max_epi32(_mm256_castsi256_si128(t8), _mm256_extracti128_si256(t8, 1));
    const __m128i t2 = _mm_max_epi32(t4, _mm_shuffle_epi32(t4, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(t2, _mm_shuffle_epi32(t2, 0xb1))));
  }

  // Products of cells with 15-bit numbers, as words, in one part: vpmaddubsw would need three. Of four cells and numbers the first and
  // third are one pair, the second and fourth the other.
  struct I {
    __m256i a, b;
  };
  struct Cells {
    __m256i even[2], odd[2];
  };
  struct Four {
    __m256i even, odd;
  };
  static constexpr int kParts = 1, kFour = 8;
  static I set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I add_int(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I start(int32_t total) { return set1_int(-128 * total); }
  static I next_part(I sum) { return sum; }
  static Cells load_cells(const uint8_t* p) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 32));
    const __m256i low = _mm256_set1_epi16(255);
    return {{_mm256_and_si256(a, low), _mm256_and_si256(b, low)}, {_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)}};
  }
  static __m256i load_pair(const int8_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
  }
  static Four load_four(const int8_t* p) { return {load_pair(p), load_pair(p + 4)}; }
  static __m256i dot_half(__m256i sum, __m256i even, __m256i odd, Four four) {
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(even, four.even), _mm256_madd_epi16(odd, four.odd)));
  }
  static I dot(I sum, const Cells& c, Four four) {
    return {dot_half(sum.a, c.even[0], c.odd[0], four), dot_half(sum.b, c.even[1], c.odd[1], four)};
  }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static int32_t total(I x) {
    const __m256i t8 = _mm256_add_epi32(x.a, x.b);
    __m128i t4 = _mm_add_epi32(_mm256_castsi256_si128(t8), _mm256_extracti128_si256(t8, 1));
    t4 = _mm_add_epi32(t4, _mm_shuffle_epi32(t4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t4, _mm_shuffle_epi32(t4, 0xb1)));
  }
  template <int N> static I store_parts(int8_t* to, int, int i, const F* x) {
    I total = set1_int(0);
    for (int p = 0; p < N; p++) {
      const I w = {_mm256_cvtps_epi32(x[p].a), _mm256_cvtps_epi32(x[p].b)};
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(w.a, w.b), 0xd8);
      _mm256_storeu_si256((__m256i*)(to + 2 * i) + p, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
      total = add_int(total, w);
    }
    return total;
  }
};

}  // namespace
}  // namespace quintet
