// AVX2: half a tile (8 columns) per register. Products of bytes go through vpmaddubsw, whose 16-bit sums cannot overflow here:
// eight products of a 4-bit and an 8-bit number in q4 (8 * 2 * 15 * 127 = 30480), two of 7-bit magnitudes in q8 (2 * 127 * 127 = 32258).
#include "kernels/vec_avx2.h"
#include "kernels/attend.h"
#include "kernels/codes_avx2.h"
#include "kernels/float_product.h"
#include "kernels/kernels_impl.h"
#include "kernels/prefetch.h"
#include "kernels/products256.h"

namespace quintet {
namespace {

// Blocks whose sums are there before any of them is scaled. Either of the two loops has use for all registers, and in one loop the sums and
// the results would go through memory at every block. A single row has registers to spare and waits for its weights: it goes block by
// block.
template <int R> constexpr int kBlocksAtOnce = R > 1 ? 24 : 1;

// f += sums of `count` blocks from `first` on times their scales, in the order of the blocks; with Minima, plus the blocks' minima.
// `scales`: of the first of them; those of the next are `step` bytes further on.
template <int R, bool Minima> inline void scale_sums(const __m256i (*sums)[R][2], int first, int count, const uint8_t* scales, size_t step,
                                                     const Rows<R>& x, __m256 (&f)[R][2]) {
  __m256 own[R][2];  // f may be in memory, which stores to it would make the loop wait for
  for (int r = 0; r < R; r++) own[r][0] = f[r][0], own[r][1] = f[r][1];
  const float *scale = x[0].scale + first, *minimum = x[0].minimum + first;
  const size_t stride = x.stride / sizeof(float);
  for (int i = 0; i < count; i++, scales += step, scale++, minimum++) {
    const uint16_t* s = reinterpret_cast<const uint16_t*>(scales);
    const __m256 d[2] = {load8_half(s), load8_half(s + 8)};
    __m256 m[2];
    if (Minima) m[0] = load8_half(s + 16), m[1] = load8_half(s + 24);
    for (size_t r = 0; r < R; r++) {
      const __m256 by = _mm256_set1_ps(scale[r * stride]);
      for (int h = 0; h < 2; h++) {
        own[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i][r][h]), _mm256_mul_ps(d[h], by), own[r][h]);
        if (Minima) own[r][h] = _mm256_fmadd_ps(m[h], _mm256_set1_ps(minimum[r * stride]), own[r][h]);
      }
    }
  }
  for (int r = 0; r < R; r++) f[r][0] = own[r][0], f[r][1] = own[r][1];
}

// sums_of(block, sums): of the products of R rows with the block's two halves.
template <int R, bool Minima, class SumsOf>
[[gnu::always_inline]] inline void scaled_blocks(const Packed& w, const uint8_t* scales, size_t step, const Rows<R>& x, __m256 (&f)[R][2],
                                                 SumsOf sums_of) {
  __m256i sums[kBlocksAtOnce<R>][R][2];
  for (int first = 0; first < w.blocks(); first += kBlocksAtOnce<R>) {
    const int count = std::min(kBlocksAtOnce<R>, w.blocks() - first);
    for (int i = 0; i < count; i++) sums_of(first + i, sums[i]);
    scale_sums<R, Minima>(sums, first, count, scales + step * size_t(first), step, x, f);
  }
}

// Both kernels multiply R rows by the tile's two halves at a time: each activation broadcast serves two products and each weight load R, so
// that the two loads a cycle do not become the limit; the 16-bit or 32-bit sums of one block live in 2R registers.
template <int R, bool Fetch> inline void tile_q4(const Packed& w, const uint8_t* tile, const Rows<R>& x, __m256 (&f)[R][2]) {
  const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
  scaled_blocks<R, true>(w, tile + 256, 320, x, f, [&](int b, __m256i(&sums)[R][2]) {
    const uint8_t* block = tile + 320 * b;
    if (Fetch) fetch_next<coding(Format::q4).lines()>(w, tile, b);
    __m256i acc[R][2];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      const __m256i v0 = load32(block + 64 * g), v1 = load32(block + 64 * g + 32);
      const __m256i l0 = _mm256_and_si256(v0, low), l1 = _mm256_and_si256(v1, low);
      const __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(v0, 4), low), h1 = _mm256_and_si256(_mm256_srli_epi16(v1, 4), low);
      for (int r = 0; r < R; r++) {
        const uint8_t* q = x.x + size_t(r) * x.stride + 32 * b + 4 * g;
        const __m256i xl = broadcast4(q), xh = broadcast4(q + 16);
        const __m256i p0 = _mm256_add_epi16(_mm256_maddubs_epi16(l0, xl), _mm256_maddubs_epi16(h0, xh));
        const __m256i p1 = _mm256_add_epi16(_mm256_maddubs_epi16(l1, xl), _mm256_maddubs_epi16(h1, xh));
        acc[r][0] = g ? _mm256_add_epi16(acc[r][0], p0) : p0;
        acc[r][1] = g ? _mm256_add_epi16(acc[r][1], p1) : p1;
        pin(acc[r][0]);
        pin(acc[r][1]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int h = 0; h < 2; h++) sums[r][h] = _mm256_madd_epi16(acc[r][h], one);
  });
}

// Less than this many rows, and what a tile's sums are short by costs more than it saves.
constexpr int kLeastShort = 12;

// Of a block, the sum of the negative weights' magnitudes in each column.
struct Shortfall {
  __m256i half[2];
};

// Per block, for tile_q8<Short>.
const Shortfall* shortfall(const Packed& w, const uint8_t* tile) {
  thread_local std::vector<Shortfall> of_tile;
  of_tile.resize(std::max(of_tile.size(), size_t(w.blocks())));
  const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi8(1), minus = _mm256_set1_epi16(-1);
  for (int b = 0; b < w.blocks(); b++)
    for (int h = 0; h < 2; h++) {
      __m256i sum = zero;  // from -8 * 2 * 127 up
#pragma GCC unroll 8
      for (int g = 0; g < 8; g++) {
        const __m256i v = load32(tile + size_t(512) * size_t(b) + 64 * g + 32 * h);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(one, _mm256_min_epi8(v, zero)));
      }
      of_tile[size_t(b)].half[h] = _mm256_madd_epi16(sum, minus);
    }
  return of_tile.data();
}

// The sign of a weight goes to the activation. Short: as -q - 1, which is one operation less than -q (and with 2 * 127 * 128 = 32512 still
// fits 16 bits); what the sums are then short by is the same for all rows, and they begin with it.
template <int R, bool Fetch, bool Short> inline void tile_q8(const Packed& w, const uint8_t* tile, const Rows<R>& x,
                                                             const Shortfall* shorts, __m256 (&f)[R][2]) {
  const __m256i one = _mm256_set1_epi16(1);
  scaled_blocks<R, false>(w, tile + size_t(512) * size_t(w.blocks()), 32, x, f, [&](int b, __m256i(&acc)[R][2]) {
    const uint8_t* block = tile + size_t(512) * size_t(b);
    if (Fetch) fetch_next<coding(Format::q8).lines()>(w, tile, b);
    __m256i sums[R][2];
    for (int r = 0; r < R; r++)
      for (int i = 0; i < 2; i++) sums[r][i] = Short ? shorts[b].half[i] : _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const __m256i v0 = load32(block + 64 * g), v1 = load32(block + 64 * g + 32);
      const __m256i a0 = _mm256_abs_epi8(v0), a1 = _mm256_abs_epi8(v1);
      const __m256i n0 = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v0), n1 = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v1);
      for (int r = 0; r < R; r++) {
        const __m256i q = broadcast4(x.x + size_t(r) * x.stride + 32 * b + 4 * g);
        const __m256i q0 = Short ? _mm256_xor_si256(q, n0) : with_sign(q, n0), q1 = Short ? _mm256_xor_si256(q, n1) : with_sign(q, n1);
        sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(_mm256_maddubs_epi16(a0, q0), one));
        sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(_mm256_maddubs_epi16(a1, q1), one));
        pin(sums[r][0]);
        pin(sums[r][1]);
      }
    }
    for (int r = 0; r < R; r++) acc[r][0] = sums[r][0], acc[r][1] = sums[r][1];
  });
}

template <int R, bool Fetch> void rows(const Packed& w, int tile, const uint8_t* x, size_t x_stride, const Shortfall* shorts, float* y,
                                       size_t y_stride, bool accumulate) {
  __m256 f[R][2];
  for (int r = 0; r < R; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
  const Rows<R> in{x, x_stride, w.cols};
  fetch_results<R>(y, y_stride);
  if (w.format == Format::q4) tile_q4<R, Fetch>(w, w.tile(tile), in, f);
  else if (w.format == Format::q8 && shorts) tile_q8<R, Fetch, true>(w, w.tile(tile), in, shorts, f);
  else if (w.format == Format::q8) tile_q8<R, Fetch, false>(w, w.tile(tile), in, nullptr, f);
  else tile_of_codes<R, Fetch>(w, w.tile(tile), in, f);
  for (int r = 0; r < R; r++) {
    float* out = y + size_t(r) * y_stride;
    const V::F sum = {f[r][0], f[r][1]};
    V::store(out, accumulate ? V::add(V::load(out), sum) : sum);
  }
}

}  // namespace

void gemm_tile_avx2(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead*) {
  if (is_float(w.format)) return float_tile<4, 2, 1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  const Shortfall* shorts = w.format == Format::q8 && m >= kLeastShort ? shortfall(w, w.tile(tile)) : nullptr;
  in_passes<4, 2, 1>(m, [&]<int R>(int r, bool fetches) {
    const auto pass = fetches && (m > 1 || !streams(w)) ? rows<R, true> : rows<R, false>;
    pass(w, tile, x + size_t(r) * x_stride, x_stride, shorts, y + size_t(r) * y_stride, y_stride, accumulate);
  });
}

extern constinit const Kernels kernels_avx2 = table("avx2", gemm_tile_avx2);
extern constinit const Kernels kernels_avxvnni = table("avxvnni", gemm_tile_avxvnni);  // all but the product is the same

}  // namespace quintet
