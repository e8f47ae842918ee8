// fp16 <-> fp32 in integer arithmetic: the same bits on every machine, and no dependence on the processor's denormal mode.
// Internal linkage on purpose: these are included by files built for different instruction sets, and a shared inline copy could
// end up being the one that the running CPU cannot execute.
#pragma once
#include <bit>
#include <cstdint>

namespace quintet {
namespace {

[[maybe_unused]] inline float half_bits_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const int32_t rest = h & 0x7fff;
  // Selected by masks, so that loops over it vectorise: subnormals are counts of 2^-24, infinities and NaNs keep their payload.
  const uint32_t is_tiny = 0u - uint32_t(rest < 0x400), is_special = 0u - uint32_t(rest >= 0x7c00);
  const uint32_t tiny = std::bit_cast<uint32_t>(float(rest) * 0x1p-24f);
  const uint32_t normal = (uint32_t(rest) << 13) + (uint32_t(127 - 15) << 23) + (is_special & uint32_t(127 - 15) << 23);
  return std::bit_cast<float>(sign | (tiny & is_tiny) | (normal & ~is_tiny));
}

// Round to nearest even; overflow gives infinity; a NaN stays a NaN (quiet, upper payload bits kept), as F16C and NEON do.
[[maybe_unused]] inline uint16_t float_to_half_bits(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
  if (rest >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above
  if (rest >= 0x38800000u) {                                 // 2^-14 and above: normal
    const uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (rest < 0x33000000u) return uint16_t(sign);  // below half of the smallest subnormal
  const uint32_t shift = 126u - (rest >> 23);     // 14..24
  const uint32_t mantissa = (rest & 0x7fffffu) | 0x800000u;
  const uint32_t kept = mantissa >> shift;
  const uint32_t lost = mantissa & ((1u << shift) - 1u);
  const uint32_t middle = 1u << (shift - 1u);
  return uint16_t(sign | (kept + (lost > middle || (lost == middle && (kept & 1u)) ? 1u : 0u)));
}

}  // namespace
}  // namespace quintet
