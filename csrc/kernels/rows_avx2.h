// What all products with AVX2 read: rows of activations, and half a tile's 8 columns; and how they keep their sums.
#pragma once
#include "kernels/vec_avx2.h"
#include "kernels/kernels_impl.h"

namespace quintet {
namespace {

inline __m256i broadcast4(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}
inline __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256 load8_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

// Keeps a running sum in its register: left alone, g++ turns the sums into trees whose leaves it spills (2.2 times slower).
inline void pin(__m256i& v) { asm("" : "+x"(v)); }

// -q where `negative` is all ones. vpsignb would do, but it shares the multipliers' ports.
inline __m256i with_sign(__m256i q, __m256i negative) { return _mm256_sub_epi8(_mm256_xor_si256(q, negative), negative); }

// `all` times the sum of a block's activations plus `first` times that of its first 16, in every lane.
template <int all, int first> inline __m256i times_sums(const Sums& sums) {
  int32_t pair;
  std::memcpy(&pair, &sums, 4);
  return _mm256_madd_epi16(_mm256_set1_epi32(pair), _mm256_set1_epi32(int32_t(uint32_t(uint16_t(first)) << 16 | uint16_t(all))));
}

}  // namespace
}  // namespace quintet
