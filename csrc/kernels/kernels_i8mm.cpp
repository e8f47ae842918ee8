// ARM's matrix products of bytes (i8mm): two rows times two columns, eight features deep, in one instruction: twice the products of one
// with dot product. Two groups of a tile, zipped, are pairs of columns. One body for all formats of codes, q4 and q8 among them; a row
// without a second one is NEON's.
#include "kernels/codes_neon.h"
#include "kernels/products_neon.h"

namespace quintet {
namespace {

// Eight features of two rows.
inline int8x16_t two_rows(const uint8_t* first, const uint8_t* second) {
  return vreinterpretq_s8_u8(vcombine_u8(vld1_u8(first), vld1_u8(second)));
}

// Four columns (`part` of 4) of P pairs of rows.
template <Format F, int P> inline void part_of_pairs(const Packed& w, const uint8_t* tile, int part, const Rows<2 * P>& x,
                                                     float32x4_t (&f)[2 * P]) {
  constexpr Coding c = coding(F);
  const uint8_t* apart = tile + c.block() * size_t(w.blocks());
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + c.block() * size_t(b);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(c.apart ? apart + 32 * b : block + c.scale_at());
    int32x4_t acc[P][2];  // of a pair: both rows with the first two columns, and with the others
    for (int half = 0; half < 2; half++) {
      if (half == 0 || c.scales == 2)
        for (int p = 0; p < P; p++) acc[p][0] = acc[p][1] = vdupq_n_s32(0);
      for (int g = 0; g < 4; g += 2) {
        const int32x4_t v0 = vreinterpretq_s32_s8(codes_of<F>(block + 16 * part, half, g));
        const int32x4_t v1 = vreinterpretq_s32_s8(codes_of<F>(block + 16 * part, half, g + 1));
        const int8x16_t columns[2] = {vreinterpretq_s8_s32(vzip1q_s32(v0, v1)), vreinterpretq_s8_s32(vzip2q_s32(v0, v1))};
        const int at = 32 * b + 16 * half + 4 * g;
        for (int p = 0; p < P; p++) {
          const int8x16_t q = two_rows(x[2 * p].q + at, x[2 * p + 1].q + at);
          for (int i = 0; i < 2; i++) acc[p][i] = vmmlaq_s32(acc[p][i], q, columns[i]);
        }
      }
      if (half == 0 && c.scales == 1) continue;
      const uint16_t* s = scales + 16 * (c.scales == 2 ? half : 0) + 4 * part;
      const float32x4_t d = load4_half(s), m = c.minima ? load4_half(s + 16 * c.scales) : d;
      for (int r = 0; r < 2 * P; r++) {
        const int64x2_t left = vreinterpretq_s64_s32(acc[r / 2][0]), right = vreinterpretq_s64_s32(acc[r / 2][1]);
        const int32x4_t sum = vreinterpretq_s32_s64(r % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
        const float32x4_t scale = vdupq_n_f32(x[r].scale[b]);
        f[r] = vfmaq_f32(f[r], vcvtq_f32_s32(sum), vmulq_f32(d, scale));
        if (c.minima && c.scales == 1) f[r] = vfmaq_f32(f[r], m, vdupq_n_f32(x[r].minimum[b]));
        if (c.minima && c.scales == 2) f[r] = vfmaq_f32(f[r], vdupq_n_f32(float(x[r].sum[b].half(half))), vmulq_f32(m, scale));
      }
    }
  }
}

template <int P> void pairs(const Packed& w, int tile, const uint8_t* x, size_t x_stride, float* y, size_t y_stride, bool accumulate) {
  const Rows<2 * P> in{x, x_stride, w.cols};
  for (int part = 0; part < 4; part++) {
    float32x4_t f[2 * P];
    for (int r = 0; r < 2 * P; r++) f[r] = vdupq_n_f32(0.0f);
    if (w.format == Format::q4) part_of_pairs<Format::q4, P>(w, w.tile(tile), part, in, f);
    else if (w.format == Format::q8) part_of_pairs<Format::q8, P>(w, w.tile(tile), part, in, f);
    else for_coded(w.format, [&]<Format F>() { part_of_pairs<F, P>(w, w.tile(tile), part, in, f); });
    for (int r = 0; r < 2 * P; r++) {
      float* out = y + size_t(r) * y_stride + 4 * part;
      vst1q_f32(out, accumulate ? vaddq_f32(vld1q_f32(out), f[r]) : f[r]);
    }
  }
}

}  // namespace

void gemm_tile_i8mm(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead*) {
  if (is_float(w.format)) return gemm_tile_neon(w, tile, x, x_stride, m, y, y_stride, accumulate, nullptr);
  in_passes<4, 2, 1>(m / 2, [&]<int P>(int p, bool) {
    pairs<P>(w, tile, x + size_t(2 * p) * x_stride, x_stride, y + size_t(2 * p) * y_stride, y_stride, accumulate);
  });
  const size_t last = size_t(m) - 1;
  if (m % 2) gemm_tile_neon(w, tile, x + last * x_stride, x_stride, 1, y + last * y_stride, y_stride, accumulate, nullptr);
}

}  // namespace quintet
