// What all products with AVX-512 read: rows of activations, and 64 bytes of a tile.
#pragma once
#include "kernels/vec_avx512.h"
#include "kernels/kernels_impl.h"

namespace quintet {
namespace {

inline __m512i broadcast4(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

inline __m512i load64(const uint8_t* p) { return _mm512_loadu_si512(reinterpret_cast<const void*>(p)); }

// `all` times the sum of a block's activations plus `first` times that of its first 16, in every lane: one instruction.
template <int all, int first> inline __m512i times_sums(const Sums& sums) {
  int32_t pair;
  std::memcpy(&pair, &sums, 4);
  const __m512i factors = _mm512_set1_epi32(int32_t(uint32_t(uint16_t(first)) << 16 | uint16_t(all)));
  return _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, _mm512_set1_epi32(pair));
}

}  // namespace
}  // namespace quintet
