// The matrix products of the two tables that kernels_neon.cpp has, each in its own file: see Kernels::gemm_tile.
#pragma once
#include "kernels/pack.h"

namespace quintet {

void gemm_tile_neon(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead* ahead);
void gemm_tile_i8mm(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead* ahead);

}  // namespace quintet
