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

// Of R rows and 16 blocks: `all` times the sum of a block's activations plus `first` times that of its first 16. Made for 16 blocks by one
// instruction a row, as it would take a product's place if it were made where it is needed.
template <int R, int all, int first> class TimesSums {
 public:
  // To be called for each block in order.
  void reach(const Rows<R>& x, int block, int blocks) {
    if (block % 16 != 0) return;
    const __mmask16 there = __mmask16(blocks - block < 16 ? (1 << (blocks - block)) - 1 : 0xffff);
    const __m512i factors = _mm512_set1_epi32(int32_t(uint32_t(uint16_t(first)) << 16 | uint16_t(all)));
    for (int r = 0; r < R; r++) {
      const __m512i sums = _mm512_maskz_loadu_epi32(there, x[r].sum + block);
      _mm512_store_si512(at_[r], _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, sums));
    }
  }
  __m512i of(int r, int block) const { return _mm512_set1_epi32(at_[r][block % 16]); }

 private:
  alignas(64) int32_t at_[R][16];
};

}  // namespace
}  // namespace quintet
