// 16 lanes as one 512-bit register. Needs AVX-512 F, BW, VL, DQ.
#pragma once
#include <cstdint>
#include <cstring>
#include "kernels/intrinsics512.h"

namespace quintet {
namespace {

struct V {
  using F = __m512;
  static constexpr int kRegisters = 32;  // values of F that fit into the registers

  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F x, F y) { return _mm512_add_ps(x, y); }
  static F sub(F x, F y) { return _mm512_sub_ps(x, y); }
  static F mul(F x, F y) { return _mm512_mul_ps(x, y); }
  static F div(F x, F y) { return _mm512_div_ps(x, y); }
  static F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
  static F max(F x, F y) { return _mm512_max_ps(x, y); }
  static F abs(F x) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff))); }
  static F max_bits(F x, F y) { return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y))); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F zero_below(F x, F bound, F y) { return _mm512_maskz_mov_ps(_knot_mask16(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ)), y); }
  static F pow2(F n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23)); }
  static F times_pow2(F x, F n) { return _mm512_scalef_ps(x, n); }  // also where 2^n is no normal number; takes none of the multipliers
  // The lanes `apart` from each.
  template <int apart> static F swapped(F x) {
    if constexpr (apart == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
    if constexpr (apart == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (apart == 2) return _mm512_shuffle_ps(x, x, 0x4e);
    return _mm512_shuffle_ps(x, x, 0xb1);
  }
  static F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  // 16 pairs of bfloat16: the first of each, and the second.
  static void load_bf16(const uint16_t* p, F& first, F& second) {
    const __m512i pairs = _mm512_loadu_si512((const void*)p);
    first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
  }
  static void store_half(uint16_t* p, F x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static int32_t store_i8(int8_t* p, F x) {
    const __m512i w = _mm512_cvtps_epi32(x);
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(w));
    return _mm512_reduce_add_epi32(w);  // integers: any order
  }
  static float hsum(F x) {
    const __m256 t8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
  }
  static float hmax(F x) {
    const __m256 t8 = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_max_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
  }
  static float hmax_bits(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m256i t8 = _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
    const __m128i t4 = _mm_max_epi32(_mm256_castsi256_si128(t8), _mm256_extracti128_si256(t8, 1));
    const __m128i t2 = _mm_max_epi32(t4, _mm_shuffle_epi32(t4, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(t2, _mm_shuffle_epi32(t2, 0xb1))));
  }

  // Products of cells with 15-bit numbers, as unsigned times signed bytes: the numbers' upper 8 bits, then their lower 7.
  using I = __m512i;
  using Cells = __m512i;
  using Four = __m512i;
  static constexpr int kParts = 2, kFour = 4;
  static I set1_int(int32_t x) { return _mm512_set1_epi32(x); }
  static I add_int(I x, I y) { return _mm512_add_epi32(x, y); }
  static I start(int32_t total) { return _mm512_set1_epi32(-total); }  // times 128, by next_part
  static I next_part(I sum) { return _mm512_slli_epi32(sum, 7); }
  static Cells load_cells(const uint8_t* p) { return _mm512_loadu_si512((const void*)p); }
  static Four load_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static I dot(I sum, Cells c, Four four) { return _mm512_dpbusd_epi32(sum, c, four); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static int32_t total(I x) { return _mm512_reduce_add_epi32(x); }
  template <int N> static I store_parts(int8_t* to, int n, int i, const F* x) {
    static_assert(N == 1 || N == 4);
    __m512i w[N];
    for (int p = 0; p < N; p++) w[p] = _mm512_cvtps_epi32(x[p]);
    if constexpr (N == 1) {
      _mm_storeu_si128((__m128i*)(to + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(w[0], 7)));
      _mm_storeu_si128((__m128i*)(to + n + i), _mm512_cvtepi32_epi8(_mm512_and_si512(w[0], _mm512_set1_epi32(127))));
      return w[0];
    } else {  // one order for all of it at the end, as packing goes by parts of 128 bits
      const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), lowest = _mm512_set1_epi16(127);
      const __m512i a = _mm512_packs_epi32(w[0], w[1]), b = _mm512_packs_epi32(w[2], w[3]);
      const __m512i upper = _mm512_packs_epi16(_mm512_srai_epi16(a, 7), _mm512_srai_epi16(b, 7));
      const __m512i lower = _mm512_packs_epi16(_mm512_and_si512(a, lowest), _mm512_and_si512(b, lowest));
      _mm512_storeu_si512(to + i, _mm512_permutexvar_epi32(order, upper));
      _mm512_storeu_si512(to + n + i, _mm512_permutexvar_epi32(order, lower));
      return _mm512_add_epi32(_mm512_add_epi32(w[0], w[1]), _mm512_add_epi32(w[2], w[3]));
    }
  }

 private:
  static __mmask16 _knot_mask16(__mmask16 m) { return __mmask16(~m); }
};

}  // namespace
}  // namespace quintet
