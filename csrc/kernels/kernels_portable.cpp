// Portable C++: the definition of the numbers, and the fallback on any CPU.
#include "kernels/vec_portable.h"
#include "kernels/attend.h"
#include "kernels/codes_portable.h"
#include "kernels/float_product.h"
#include "kernels/kernels_impl.h"

namespace quintet {
namespace {

// Weight of lane `lane`, feature `i` of block `b`, as an integer.
inline int weight_q4(const uint8_t* block, int lane, int i) {
  const uint8_t v = block[(i % 16) / 4 * 64 + lane * 4 + i % 4];
  return i < 16 ? v & 15 : v >> 4;
}

inline int weight_q8(const uint8_t* block, int lane, int i) { return int8_t(block[i / 4 * 64 + lane * 4 + i % 4]); }

void dot_block_q4(const uint8_t* block, const int8_t* x, int32_t* sum) {
  for (int lane = 0; lane < 16; lane++) {
    sum[lane] = 0;
    for (int i = 0; i < 32; i++) sum[lane] += weight_q4(block, lane, i) * x[i];
  }
}

void dot_block_q8(const uint8_t* block, const int8_t* x, int32_t* sum) {
  for (int lane = 0; lane < 16; lane++) {
    sum[lane] = 0;
    for (int i = 0; i < 32; i++) sum[lane] += weight_q8(block, lane, i) * x[i];
  }
}

void gemm_row(const Packed& w, const uint8_t* tile, const uint8_t* x, float* f) {
  const int blocks = w.blocks();
  const float* scale = reinterpret_cast<const float*>(x + w.cols);
  for (int b = 0; b < blocks; b++) {
    int32_t sum[16];
    const int8_t* q = reinterpret_cast<const int8_t*>(x) + 32 * b;
    const uint16_t *d, *m = nullptr;
    if (w.format == Format::q4) {
      dot_block_q4(tile + 320 * b, q, sum);
      d = reinterpret_cast<const uint16_t*>(tile + 320 * b + 256);
      m = d + 16;
    } else {
      dot_block_q8(tile + 512 * b, q, sum);
      d = reinterpret_cast<const uint16_t*>(tile + size_t(512) * size_t(blocks)) + 16 * b;
    }
    for (int lane = 0; lane < 16; lane++) {
      f[lane] = std::fma(float(sum[lane]), half_to_float(d[lane]) * scale[b], f[lane]);
      if (m) f[lane] = std::fma(half_to_float(m[lane]), scale[blocks + b], f[lane]);
    }
  }
}

void gemm_tile(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate, Ahead*) {
  if (is_float(w.format)) return float_tile<1>(w, tile, x, x_stride, m, y, y_stride, accumulate);
  for (int r = 0; r < m; r++) {
    float f[16] = {};
    const uint8_t* row = x + size_t(r) * x_stride;
    if (is_coded(w.format)) codes_row(w, w.tile(tile), ActivationRow(row, w.cols), f);
    else gemm_row(w, w.tile(tile), row, f);
    float* out = y + size_t(r) * y_stride;
    for (int lane = 0; lane < 16; lane++) out[lane] = accumulate ? out[lane] + f[lane] : f[lane];
  }
}

}  // namespace

extern constinit const Kernels kernels_portable = table("portable", gemm_tile);

}  // namespace quintet
