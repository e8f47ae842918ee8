// exp over the 16-lane type V of the including file. The library's differs between machines.
#pragma once

namespace quintet {
namespace {

using F = V::F;

// x = exp(x) for x <= 88; below -87 exactly 0; NaN stays NaN, as V::max gives its second operand then. Range reduction to |r| <= ln2/2 and
// the degree-6 polynomial of Cephes' expf (Moshier). N of them side by side: one alone waits for each of its steps. Inlined by force:
// whether g++ does by itself depends on all else in the file, and through a call they would go through memory.
template <int N> [[gnu::always_inline]] inline void exp_each(F (&x)[N]) {
  const auto each = [](auto step) {
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) step(i);
  };
  const F low = V::set1(-87.0f);
  F n[N], r[N], p[N];
  each([&](int i) { r[i] = V::max(low, x[i]); });
  each([&](int i) { n[i] = V::round(V::mul(r[i], V::set1(1.44269504088896341f))); });
  each([&](int i) { r[i] = V::fma(n[i], V::set1(-0.693359375f), r[i]); });
  each([&](int i) { r[i] = V::fma(n[i], V::set1(2.12194440e-4f), r[i]); });
  each([&](int i) { p[i] = V::fma(V::set1(1.9875691500e-4f), r[i], V::set1(1.3981999507e-3f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(8.3334519073e-3f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(4.1665795894e-2f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(1.6666665459e-1f)); });
  each([&](int i) { p[i] = V::fma(p[i], r[i], V::set1(5.0000001201e-1f)); });
  each([&](int i) { p[i] = V::fma(p[i], V::mul(r[i], r[i]), V::add(r[i], V::set1(1.0f))); });
  each([&](int i) { x[i] = V::zero_below(x[i], low, V::times_pow2(p[i], n[i])); });
}

[[gnu::always_inline]] inline F exp16(F x) {
  F alone[] = {x};
  exp_each(alone);
  return alone[0];
}

}  // namespace
}  // namespace quintet
