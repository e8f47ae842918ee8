// The other formats of codes in portable C++: the order of a row's products.
#pragma once
#include <cmath>
#include "kernels/codes.h"
#include "kernels/kernels.h"

namespace quintet {
namespace {

inline void codes_row(const Packed& w, const uint8_t* tile, const ActivationRow& x, float* f) {
  const Coding c = coding(w.format);
  const int8_t* q = reinterpret_cast<const int8_t*>(x.q);
  for (int b = 0; b < w.blocks(); b++) {
    const uint8_t *block = tile + c.block() * size_t(b), *apart = tile + c.block() * size_t(w.blocks()) + 32 * b;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(c.apart ? apart : block + c.scale_at());
    const int each = 32 / c.scales;
    for (int part = 0; part < c.scales; part++)
      for (int lane = 0; lane < 16; lane++) {
        int32_t sum = 0;
        for (int i = part * each; i < (part + 1) * each; i++) sum += value_of(c, block, lane, i) * q[32 * b + i];
        const uint16_t* s = scales + 16 * part + lane;
        f[lane] = std::fma(float(sum), half_to_float(*s) * x.scale[b], f[lane]);
        if (!c.minima) continue;
        const float m = half_to_float(s[16 * c.scales]);
        if (c.scales == 1) f[lane] = std::fma(m, x.minimum[b], f[lane]);
        else f[lane] = std::fma(float(x.sum[b].half(part)), m * x.scale[b], f[lane]);
      }
  }
}

}  // namespace
}  // namespace quintet
