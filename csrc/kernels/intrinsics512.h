// AVX-512 intrinsics: the compiler's, or SIMDe's emulation of them, so that the AVX-512 kernels can be tested bit for bit on a CPU
// that lacks the instructions (`make test-emulated`).
#pragma once
#ifndef QUINTET_EMULATE_AVX512
#include <immintrin.h>
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <cmath>
#include <cstring>

// What SIMDe 0.7.4 lacks, as two AVX2 halves.
namespace quintet::emulated {

struct Halves {
  __m256 lo, hi;
  explicit Halves(simde__m512 v) {
    alignas(64) float t[16];
    simde_mm512_storeu_ps(t, v);
    lo = _mm256_load_ps(t);
    hi = _mm256_load_ps(t + 8);
  }
};
inline simde__m512 join(__m256 lo, __m256 hi) {
  alignas(64) float t[16];
  _mm256_store_ps(t, lo);
  _mm256_store_ps(t + 8, hi);
  return simde_mm512_loadu_ps(t);
}
inline simde__m512i as_int(simde__m512 v) { return simde_mm512_castps_si512(v); }
inline simde__m512 as_float(simde__m512i v) { return simde_mm512_castsi512_ps(v); }

inline simde__m512i cvtps_epi32(simde__m512 v) {
  const Halves h(v);
  return as_int(join(_mm256_castsi256_ps(_mm256_cvtps_epi32(h.lo)), _mm256_castsi256_ps(_mm256_cvtps_epi32(h.hi))));
}
inline simde__m512 cvtepi32_ps(simde__m512i v) {
  const Halves h(as_float(v));
  return join(_mm256_cvtepi32_ps(_mm256_castps_si256(h.lo)), _mm256_cvtepi32_ps(_mm256_castps_si256(h.hi)));
}
inline simde__m512i cvtepi8_epi32(__m128i v) {
  const __m256i lo = _mm256_cvtepi8_epi32(v), hi = _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8));
  return as_int(join(_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)));
}
inline simde__m512 cvtph_ps(__m256i v) {
  return join(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
inline simde__m512 scalef_ps(simde__m512 x, simde__m512 n) {
  alignas(64) float t[16], by[16];
  simde_mm512_storeu_ps(t, x);
  simde_mm512_storeu_ps(by, n);
  for (int i = 0; i < 16; i++) t[i] = std::ldexp(t[i], int(by[i]));
  return simde_mm512_loadu_ps(t);
}
inline __m256i cvtps_ph(simde__m512 v, int) {
  const Halves h(v);
  return _mm256_set_m128i(_mm256_cvtps_ph(h.hi, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(h.lo, _MM_FROUND_TO_NEAREST_INT));
}
inline simde__m512i maskz_loadu_epi32(simde__mmask16 mask, const void* from) {
  alignas(64) int32_t t[16] = {};
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) std::memcpy(t + i, static_cast<const char*>(from) + 4 * i, 4);
  return simde_mm512_loadu_si512(t);
}
inline __m128i cvtepi32_epi8(simde__m512i v) {
  alignas(64) int32_t t[16];
  alignas(16) int8_t b[16];
  simde_mm512_storeu_si512(t, v);
  for (int i = 0; i < 16; i++) b[i] = int8_t(t[i]);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(b));
}
inline int reduce_add_epi32(simde__m512i v) {
  alignas(64) int32_t t[16];
  simde_mm512_storeu_si512(t, v);
  int sum = 0;
  for (int i = 0; i < 16; i++) sum += t[i];
  return sum;
}
inline simde__m512 shuffle_f32x4(simde__m512 a, simde__m512 b, int quarters) {
  alignas(64) float from[32], to[16];
  simde_mm512_storeu_ps(from, a);
  simde_mm512_storeu_ps(from + 16, b);
  for (int i = 0; i < 4; i++) std::memcpy(to + 4 * i, from + 16 * (i / 2) + 4 * (quarters >> 2 * i & 3), 16);
  return simde_mm512_loadu_ps(to);
}
inline __m256 extractf32x8_ps(simde__m512 v, int half) {
  const Halves h(v);
  return half ? h.hi : h.lo;
}

}  // namespace quintet::emulated

#define _mm512_cvtps_epi32 quintet::emulated::cvtps_epi32
#define _mm512_cvtepi32_ps quintet::emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 quintet::emulated::cvtepi8_epi32
#define _mm512_cvtph_ps quintet::emulated::cvtph_ps
#define _mm512_scalef_ps quintet::emulated::scalef_ps
#define _mm512_cvtps_ph quintet::emulated::cvtps_ph
#define _mm512_maskz_loadu_epi32 quintet::emulated::maskz_loadu_epi32
#define _mm512_cvtepi32_epi8 quintet::emulated::cvtepi32_epi8
#define _mm512_reduce_add_epi32 quintet::emulated::reduce_add_epi32
#define _mm512_shuffle_f32x4 quintet::emulated::shuffle_f32x4
#define _mm512_extractf32x8_ps quintet::emulated::extractf32x8_ps
#endif
