// The other formats of codes with NEON, as part_q4 and part_q8 in kernels_neon.cpp are: all as signed bytes.
#pragma once
#include "kernels/codes.h"
#include "kernels/rows_neon.h"

namespace quintet {
namespace {

// What the codes of the values 16 * half + 4 * g .. + 3 of four lanes stand for; `columns`: the first byte of theirs in a group.
template <Format F> inline int8x16_t codes_of(const uint8_t* columns, int half, int g) {
  if constexpr (coding(F).low == 512) return vreinterpretq_s8_u8(vld1q_u8(columns + 256 * half + 64 * g));
  const uint8x16_t v = vld1q_u8(columns + 64 * g), low = half ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15));
  if constexpr (coding(F).table != nullptr) return vqtbl1q_s8(vld1q_s8(coding(F).table), low);
  if constexpr (!coding(F).high) return vreinterpretq_s8_u8(low);
  constexpr int width = F == Format::q5 ? 1 : 2;
  const uint8x16_t bits = vld1q_u8(columns + 256 + (width - 1) * 64 * half);
  const int at = width * g + (width == 1 ? 4 * half : 0);  // of the lowest of them, which belongs at 4
  const uint8x16_t moved = vshlq_u8(bits, vdupq_n_s8(int8_t(4 - at)));
  const uint8x16_t code = vorrq_u8(low, vandq_u8(moved, vdupq_n_u8(((1 << width) - 1) << 4)));
  return vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(int8_t(coding(F).offset)));
}

template <Format F, int R> inline void part_codes(const Packed& w, const uint8_t* tile, int part, const Rows<R>& x, float32x4_t (&f)[R]) {
  constexpr Coding c = coding(F);
  const uint16_t* apart = reinterpret_cast<const uint16_t*>(tile + c.block() * size_t(w.blocks()));
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t* block = tile + c.block() * size_t(b);
    const uint16_t* scales = c.apart ? apart + 16 * b : reinterpret_cast<const uint16_t*>(block + c.scale_at());
    int32x4_t acc[R];
    for (int half = 0; half < 2; half++) {
      if (half == 0 || c.scales == 2)
        for (int r = 0; r < R; r++) acc[r] = vdupq_n_s32(0);
      for (int g = 0; g < 4; g++) {
        const int8x16_t v = codes_of<F>(block + 16 * part, half, g);
        for (int r = 0; r < R; r++) acc[r] = vdotq_s32(acc[r], v, broadcast4(x[r].q + 32 * b + 16 * half + 4 * g));
      }
      if (half == 0 && c.scales == 1) continue;
      const uint16_t* s = scales + 16 * (c.scales == 2 ? half : 0) + 4 * part;
      const float32x4_t d = load4_half(s);
      for (int r = 0; r < R; r++) {
        f[r] = vfmaq_f32(f[r], vcvtq_f32_s32(acc[r]), vmulq_f32(d, vdupq_n_f32(x[r].scale[b])));
        if (!c.minima) continue;
        const float32x4_t m = load4_half(s + 16 * c.scales);
        if (c.scales == 1) f[r] = vfmaq_f32(f[r], m, vdupq_n_f32(x[r].minimum[b]));
        else f[r] = vfmaq_f32(f[r], vdupq_n_f32(float(x[r].sum[b].half(half))), vmulq_f32(m, vdupq_n_f32(x[r].scale[b])));
      }
    }
  }
}

template <int R> inline void part_of_codes(const Packed& w, const uint8_t* tile, int part, const Rows<R>& x, float32x4_t (&f)[R]) {
  for_coded(w.format, [&]<Format F>() { part_codes<F, R>(w, tile, part, x, f); });
}

}  // namespace
}  // namespace quintet
