// What all products with NEON read: rows of activations, and scales of four columns.
#pragma once
#include "kernels/vec_neon.h"
#include "kernels/kernels_impl.h"

namespace quintet {
namespace {

inline int8x16_t broadcast4(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(v));
}
inline float32x4_t load4_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

}  // namespace
}  // namespace quintet
