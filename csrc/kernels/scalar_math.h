// Scalar functions as fixed sequences of IEEE operations: libm's differ in the last bits from one system to the next.
// Internal linkage for the reason given in half.h.
#pragma once
#include <bit>
#include <cstdint>

namespace quintet {
namespace {

// Natural log of a positive, normal, finite double; within 2 ulp.
// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1)/(m + 1), |s| < 0.172: 11 terms reach double precision.
[[maybe_unused]] inline double log_positive(double x) {
  constexpr double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;  // the high part times any exponent is exact
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcdu, one = 0x3ff0000000000000u, mantissa = 0x000fffffffffffffu;
  const uint64_t shifted = std::bit_cast<uint64_t>(x) - sqrt_half + one;
  const double e = double(int64_t(shifted >> 52) - 1023);
  const double m = std::bit_cast<double>((shifted & mantissa) + sqrt_half);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double tail = 1.0 / 21;
  for (int odd = 19; odd >= 3; odd -= 2) tail = tail * z + 1.0 / odd;
  return e * ln2_high + (e * ln2_low + 2.0 * (s + s * z * tail));
}

}  // namespace
}  // namespace quintet
