// The matrix products of the two tables that kernels_avx512.cpp has, each in its own file: see Kernels.
#pragma once
#include "kernels/kernels.h"

namespace quintet {

void gemm_tile_avx512(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                      Ahead* ahead);
void gemm_panels_amx(const Packed& w, int tile, const uint8_t* panels, int m, float* y, size_t y_stride, bool accumulate);
constexpr int kLeastOfPanel = 6;  // beside whole ones: docs/decisions/0051-amx.md
void attend8_amx(const AttendOver<uint8_t>& a);
enum class TileShapes : uint8_t { none, product, whole };
void configure_tiles(TileShapes shapes);  // the calling thread's, unless they are so
void release_tiles();                     // Kernels::leave

}  // namespace quintet
