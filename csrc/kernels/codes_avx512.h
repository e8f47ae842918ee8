// The other formats of codes with AVX-512-VNNI, as tile_q4 and tile_q8 in kernels_avx512.cpp are: all codes as unsigned bytes, and what
// they are too large by taken off by way of the sum of the activations, from which an accumulator starts.
#pragma once
#include "kernels/codes.h"
#include "kernels/rows_avx512.h"

namespace quintet {
namespace {

constexpr bool is_wide(Format f) { return coding(f).lines() > coding(Format::q4).lines(); }  // its blocks
template <Format F> constexpr int kTooLarge = coding(F).offset + (F == Format::q8h || coding(F).table ? 128 : 0);

// Codes of the values 16 * half + 4 * g .. + 3 of each lane.
template <Format F> inline __m512i codes_of(const uint8_t* block, int half, int g, __m512i table) {
  if constexpr (F == Format::q8h) return _mm512_xor_si512(load64(block + 256 * half + 64 * g), _mm512_set1_epi8(char(0x80)));
  const __m512i nibble = _mm512_set1_epi8(15), v = load64(block + 64 * g);
  const __m512i low = _mm512_and_si512(half ? _mm512_srli_epi16(v, 4) : v, nibble);
  if constexpr (coding(F).table != nullptr) return _mm512_shuffle_epi8(table, low);
  if constexpr (!coding(F).high) return low;
  constexpr int width = F == Format::q5 ? 1 : 2;
  const __m512i bits = load64(block + 256 + (width - 1) * 64 * half), mask = _mm512_set1_epi8(char(((1 << width) - 1) << 4));
  const int at = width * g + (width == 1 ? 4 * half : 0);  // of the lowest of them, which belongs at 4
  const __m512i moved = at < 4 ? _mm512_slli_epi16(bits, unsigned(4 - at)) : _mm512_srli_epi16(bits, unsigned(at - 4));
  return _mm512_ternarylogic_epi32(low, moved, mask, 0xf8);  // low | (moved & mask)
}

// The table's values as bytes that are 128 too large, in each quarter of a register.
template <Format F> inline __m512i table_of() {
  if constexpr (coding(F).table != nullptr) {
    const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(coding(F).table));
    return _mm512_broadcast_i32x4(_mm_xor_si128(t, _mm_set1_epi8(char(0x80))));
  }
  return _mm512_setzero_si512();
}

template <Format F, int R, int T, class Fetching>
inline void tile_codes(const Packed& w, const uint8_t* tile, const Rows<R>& x, Fetching fetching, __m512 (&f)[T][R]) {
  constexpr Coding c = coding(F);
  const __m512i table = table_of<F>();
  // Of a block's first half and its second, or of all of it: what accumulators start from, and what minima are multiplied by.
  constexpr bool halves = c.scales == 2, minima = c.minima && halves;
  constexpr int off = -kTooLarge<F>;
  TimesSums<R, halves ? 0 : off, halves ? off : 0> first;
  TimesSums<R, off, -off> second;
  TimesSums<R, 0, 1> first_sum;
  TimesSums<R, 1, -1> second_sum;
  for (int b = 0; b < w.blocks(); b++) {
    fetching.template with<c.lines(), T>(w, tile, b);
    if (off) first.reach(x, b, w.blocks());
    if (off && halves) second.reach(x, b, w.blocks());
    if (minima) first_sum.reach(x, b, w.blocks()), second_sum.reach(x, b, w.blocks());
    __m512i acc[T][R];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      if (half == 0 || c.scales == 2)
        for (int r = 0; r < R; r++)
          for (int t = 0; t < T; t++) acc[t][r] = !off ? _mm512_setzero_si512() : half ? second.of(r, b) : first.of(r, b);
#pragma GCC unroll 4
      for (int g = 0; g < 4; g++) {
        __m512i v[T];
        for (int t = 0; t < T; t++) v[t] = codes_of<F>(tile + w.tile_bytes * size_t(t) + c.block() * size_t(b), half, g, table);
        for (int r = 0; r < R; r++) {
          const __m512i q = broadcast4(x[r].q + 32 * b + 16 * half + 4 * g);
          for (int t = 0; t < T; t++) acc[t][r] = _mm512_dpbusd_epi32(acc[t][r], v[t], q);
        }
      }
      if (half == 0 && c.scales == 1) continue;
      for (int t = 0; t < T; t++) {
        const uint8_t* at = tile + w.tile_bytes * size_t(t);
        at += c.apart ? c.block() * size_t(w.blocks()) + 32 * size_t(b) : c.block() * size_t(b) + c.scale_at();
        const uint16_t* s = reinterpret_cast<const uint16_t*>(at) + 16 * (c.scales == 2 ? half : 0);
        const __m512 d = V::load_half(s);
        for (int r = 0; r < R; r++) {
          f[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t][r]), _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale[b])), f[t][r]);
          if (!c.minima) continue;
          const __m512 m = V::load_half(s + 16 * c.scales);
          if (c.scales == 1) {
            f[t][r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r].minimum[b]), f[t][r]);
          } else {
            const __m512i sum = half ? second_sum.of(r, b) : first_sum.of(r, b);
            f[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(m, _mm512_set1_ps(x[r].scale[b])), f[t][r]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quintet
