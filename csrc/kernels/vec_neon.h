// 16 lanes as four 128-bit registers. Needs ARMv8.2-A with fp16 conversions and dot product.
#pragma once
#include <arm_neon.h>
#include <cstdint>
#include <cstring>

namespace quintet {
namespace {

struct V {
  struct F {
    float32x4_t v[4];
  };
  static constexpr int kRegisters = 8;  // values of F that fit into the registers
  template <class Op> static F map(Op op) { return {{op(0), op(1), op(2), op(3)}}; }

  static F set1(float x) {
    return map([&](int) { return vdupq_n_f32(x); });
  }
  static F load(const float* p) {
    return map([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static void store(float* p, F x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
  }
  static F add(F x, F y) {
    return map([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
  }
  static F sub(F x, F y) {
    return map([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
  }
  static F mul(F x, F y) {
    return map([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
  }
  static F div(F x, F y) {
    return map([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
  }
  static F fma(F x, F y, F z) {
    return map([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
  }
  // As x86: the second operand when either is NaN.
  static float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
  static F max(F x, F y) {
    return map([&](int i) { return max4(x.v[i], y.v[i]); });
  }
  static F abs(F x) {
    return map([&](int i) { return vabsq_f32(x.v[i]); });
  }
  static int32x4_t max_bits4(float32x4_t x, float32x4_t y) { return vmaxq_s32(vreinterpretq_s32_f32(x), vreinterpretq_s32_f32(y)); }
  static F max_bits(F x, F y) {
    return map([&](int i) { return vreinterpretq_f32_s32(max_bits4(x.v[i], y.v[i])); });
  }
  static F round(F x) {
    return map([&](int i) { return vrndnq_f32(x.v[i]); });
  }
  static F zero_below(F x, F bound, F y) {
    return map([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], bound.v[i]), vdupq_n_f32(0.0f), y.v[i]); });
  }
  static F pow2(F n) {
    return map([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23)); });
  }
  static F times_pow2(F x, F n) { return mul(x, pow2(n)); }
  // The lanes `apart` from each.
  template <int apart> static F swapped(F x) {
    return map([&](int i) {
      const float32x4_t v = x.v[i ^ apart / 4];
      return apart == 2 ? vextq_f32(v, v, 2) : apart == 1 ? vrev64q_f32(v) : v;
    });
  }
  static F load_half(const uint16_t* p) {
    return map([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }
  // 16 pairs of bfloat16: the first of each, and the second.
  static void load_bf16(const uint16_t* p, F& first, F& second) {
    for (int i = 0; i < 4; i++) {
      const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
      first.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
      second.v[i] = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
    }
  }
  static void store_half(uint16_t* p, F x) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
  }
  static int32_t store_i8(int8_t* p, F x) {
    int32x4_t w[4];
    for (int i = 0; i < 4; i++) w[i] = vcvtnq_s32_f32(x.v[i]);
    vst1q_s8(p, narrow(w));
    return vaddvq_s32(vaddq_s32(vaddq_s32(w[0], w[1]), vaddq_s32(w[2], w[3])));
  }
  static float hsum(F x) {
    const float32x4_t t4 = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t t2 = vadd_f32(vget_low_f32(t4), vget_high_f32(t4));
    return vget_lane_f32(t2, 0) + vget_lane_f32(t2, 1);
  }
  static float hmax(F x) {
    const float32x4_t t4 = max4(max4(x.v[0], x.v[2]), max4(x.v[1], x.v[3]));
    float t[4];
    vst1q_f32(t, t4);
    const float a = t[0] > t[2] ? t[0] : t[2], b = t[1] > t[3] ? t[1] : t[3];
    return a > b ? a : b;
  }
  static float hmax_bits(F x) {
    const int32_t most = vmaxvq_s32(vmaxq_s32(max_bits4(x.v[0], x.v[1]), max_bits4(x.v[2], x.v[3])));
    float value;
    std::memcpy(&value, &most, 4);
    return value;
  }

  // Products of cells with 15-bit numbers, as signed bytes: the numbers' upper 8 bits, then their lower 7.
  struct I {
    int32x4_t v[4];
  };
  struct Cells {
    int8x16_t v[4];
  };
  using Four = int8x16_t;
  static constexpr int kParts = 2, kFour = 4;
  static I set1_int(int32_t x) { return {{vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)}}; }
  static I add_int(I x, I y) {
    for (int i = 0; i < 4; i++) x.v[i] = vaddq_s32(x.v[i], y.v[i]);
    return x;
  }
  static I start(int32_t) { return set1_int(0); }  // the offset goes before the product
  static I next_part(I sum) {
    for (int i = 0; i < 4; i++) sum.v[i] = vshlq_n_s32(sum.v[i], 7);
    return sum;
  }
  static Cells load_cells(const uint8_t* p) {
    Cells c;
    for (int i = 0; i < 4; i++) c.v[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(128)));
    return c;
  }
  static Four load_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static I dot(I sum, const Cells& c, Four four) {
    for (int i = 0; i < 4; i++) sum.v[i] = vdotq_s32(sum.v[i], c.v[i], four);
    return sum;
  }
  static F to_float(I x) {
    return map([&](int i) { return vcvtq_f32_s32(x.v[i]); });
  }
  static int32_t total(I x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3]))); }
  static int8x16_t narrow(const int32x4_t (&w)[4]) {
    const int16x8_t lo = vcombine_s16(vmovn_s32(w[0]), vmovn_s32(w[1])), hi = vcombine_s16(vmovn_s32(w[2]), vmovn_s32(w[3]));
    return vcombine_s8(vmovn_s16(lo), vmovn_s16(hi));
  }
  template <int N> static I store_parts(int8_t* to, int n, int i, const F* x) {
    I total = set1_int(0);
    for (int p = 0; p < N; p++, i += 16) {
      I w, part;
      for (int j = 0; j < 4; j++) w.v[j] = vcvtnq_s32_f32(x[p].v[j]), part.v[j] = vshrq_n_s32(w.v[j], 7);
      vst1q_s8(to + i, narrow(part.v));
      for (int j = 0; j < 4; j++) part.v[j] = vandq_s32(w.v[j], vdupq_n_s32(127));
      vst1q_s8(to + n + i, narrow(part.v));
      total = add_int(total, w);
    }
    return total;
  }
};

}  // namespace
}  // namespace quintet
