// ARMv8.2-A with dot product: four columns per register, sixteen byte products per instruction and lane group.
#include "kernels/vec_neon.h"
#include "kernels/attend.h"
#include "kernels/codes_neon.h"
#include "kernels/float_product.h"
#include "kernels/kernels_impl.h"
#include "kernels/products_neon.h"

namespace quintet {
namespace {

// Four columns (`part` of 4) of a q4 tile.
template <int R> inline void part_q4(const Packed& w, const uint8_t* tile, int part, const Rows<R>& x, float32x4_t (&f)[R]) {
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + 320 * b;
    int32x4_t acc[R];
    for (int r = 0; r < R; r++) acc[r] = vdupq_n_s32(0);
    for (int g = 0; g < 4; g++) {
      const uint8x16_t v = vld1q_u8(block + 64 * g + 16 * part);
      const int8x16_t lo = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), hi = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
      for (int r = 0; r < R; r++) {
        const uint8_t* q = x[r].q + 32 * b + 4 * g;
        acc[r] = vdotq_s32(vdotq_s32(acc[r], lo, broadcast4(q)), hi, broadcast4(q + 16));
      }
    }
    const uint16_t* s = reinterpret_cast<const uint16_t*>(block + 256) + 4 * part;
    const float32x4_t d = load4_half(s), m = load4_half(s + 16);
    for (int r = 0; r < R; r++) {
      f[r] = vfmaq_f32(f[r], vcvtq_f32_s32(acc[r]), vmulq_f32(d, vdupq_n_f32(x[r].scale[b])));
      f[r] = vfmaq_f32(f[r], m, vdupq_n_f32(x[r].minimum[b]));
    }
  }
}

template <int R> inline void part_q8(const Packed& w, const uint8_t* tile, int part, const Rows<R>& x, float32x4_t (&f)[R]) {
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + size_t(512) * size_t(w.blocks())) + 4 * part;
  for (int b = 0; b < w.blocks(); b++) {
    int32x4_t acc[R];
    for (int r = 0; r < R; r++) acc[r] = vdupq_n_s32(0);
    for (int g = 0; g < 8; g++) {
      const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(tile + size_t(512) * size_t(b) + 64 * g + 16 * part));
      for (int r = 0; r < R; r++) acc[r] = vdotq_s32(acc[r], v, broadcast4(x[r].q + 32 * b + 4 * g));
    }
    const float32x4_t d = load4_half(scales + 16 * b);
    for (int r = 0; r < R; r++) f[r] = vfmaq_f32(f[r], vcvtq_f32_s32(acc[r]), vmulq_f32(d, vdupq_n_f32(x[r].scale[b])));
  }
}

template <int R> void rows(const Packed& w, int tile, const uint8_t* x, size_t x_stride, float* y, size_t y_stride, bool accumulate) {
  const Rows<R> in{x, x_stride, w.cols};
  for (int part = 0; part < 4; part++) {
    float32x4_t f[R];
    for (int r = 0; r < R; r++) f[r] = vdupq_n_f32(0.0f);
    if (w.format == Format::q4) part_q4<R>(w, w.tile(tile), part, in, f);
    else if (w.format == Format::q8) part_q8<R>(w, w.tile(tile), part, in, f);
    else part_of_codes<R>(w, w.tile(tile), part, in, f);
    for (int r = 0; r < R; r++) {
      float* out = y + size_t(r) * y_stride + 4 * part;
      vst1q_f32(out, accumulate ? vaddq_f32(vld1q_f32(out), f[r]) : f[r]);
    }
  }
}

}  // namespace

void gemm_tile_neon(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead*) {
  if (is_float(w.format)) return float_tile<4, 1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  in_passes<4, 1>(
      m, [&]<int R>(int r, bool) { rows<R>(w, tile, x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate); });
}

extern constinit const Kernels kernels_neon = table("neon", gemm_tile_neon);
extern constinit const Kernels kernels_i8mm = table("i8mm", gemm_tile_i8mm);  // all but the product is the same

}  // namespace quintet
