// The product of float weights, kept as they are in the file, and float activations, once, over the 16-lane type V of the including file.
// An output is one chain of FMAs in the order of the features, so its bits do not depend on how many rows go side by side.
#pragma once
#include "kernels/kernels_impl.h"
#include "kernels/prefetch.h"

namespace quintet {
namespace {

// The weights of features k and k + 1, which is even, of the 16 columns.
template <Format f> inline void load_pair(const uint8_t* tile, int k, F& first, F& second) {
  if constexpr (f == Format::f32) {
    const float* at = reinterpret_cast<const float*>(tile) + 16 * size_t(k);
    first = V::load(at), second = V::load(at + 16);
  } else {
    const uint16_t* at = reinterpret_cast<const uint16_t*>(tile) + 16 * size_t(k);
    if constexpr (f == Format::bf16) V::load_bf16(at, first, second);
    else first = V::load_half(at), second = V::load_half(at + 16);
  }
}

template <int R, Format f, bool Fetch> void float_rows(const Packed& w, int tile, const uint8_t* x, size_t x_stride, float* y,
                                                       size_t y_stride, bool accumulate) {
  const uint8_t* weights = w.tile(tile);
  const float* in[R];
  F sum[R];
  for (int r = 0; r < R; r++) in[r] = reinterpret_cast<const float*>(x + size_t(r) * x_stride), sum[r] = V::set1(0.0f);
  for (int k = 0; k < w.cols; k += 2) {
    if (Fetch) fetch_next<f == Format::f32 ? 2 : 1>(w, weights, k / 2);
    F first, second;
    load_pair<f>(weights, k, first, second);
    for (int r = 0; r < R; r++) sum[r] = V::fma(V::set1(in[r][k]), first, sum[r]);
    for (int r = 0; r < R; r++) sum[r] = V::fma(V::set1(in[r][k + 1]), second, sum[r]);
  }
  for (int r = 0; r < R; r++) {
    float* out = y + size_t(r) * y_stride;
    V::store(out, accumulate ? V::add(V::load(out), sum[r]) : sum[r]);
  }
}

// The 16 columns of a tile for M rows of K floats each, Sizes rows at a time; see Kernels::gemm_tile.
template <int... Sizes> inline void float_tile(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y,
                                               size_t y_stride, bool accumulate) {
  auto all = [&]<Format f>() {
    in_passes<Sizes...>(m, [&]<int R>(int r, bool fetches) {
      const auto pass = fetches ? float_rows<R, f, true> : float_rows<R, f, false>;
      pass(w, tile, x + size_t(r) * x_stride, x_stride, y + size_t(r) * y_stride, y_stride, accumulate);
    });
  };
  switch (w.format) {
    case Format::f32: return all.template operator()<Format::f32>();
    case Format::f16: return all.template operator()<Format::f16>();
    default: return all.template operator()<Format::bf16>();
  }
}

}  // namespace
}  // namespace quintet
