// AMX's tile registers: eight of up to 16 rows of 64 bytes. In assembly with exact operands: the compilers' own functions do not say what a
// load reads, nor that a configuration is 64 bytes, so that stores before them are dropped or moved (g++ 12). With QUINTET_EMULATE_AVX512 a
// shim in their place, so that the products can be tested bit for bit on any CPU.
//
// A load of activations names no memory: whoever calls a product has written them before.
#pragma once
#include <cstdint>
#include "kernels/kernels.h"

namespace quintet {

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

using TileBytes = uint8_t[512];    // what a tile of 8 rows of 64 bytes loads
using TileSums = int32_t[16][16];  // what a tile of 16 rows of 16 sums stores

}  // namespace quintet

#ifdef QUINTET_EMULATE_AVX512
#include "tests/tile_shim.h"
#else

namespace quintet {
namespace {

inline void tile_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
inline void tile_release() { asm volatile("tilerelease"); }

// 16 rows of 32 bytes, with which a block of a panel begins.
template <int T> inline void tile_load_rows(const PanelBlock& from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(&from), "r"(size_t(32)), "i"(T));
}
template <int T> inline void tile_load_block(const TileBytes& from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(&from), "r"(size_t(64)), "i"(T), "m"(from));
}
// 16 rows of 64 bytes, `stride` bytes apart.
template <int T> inline void tile_load_whole(const uint8_t* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T));
}
template <int T> inline void tile_store(TileSums& to) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(to) : "r"(&to), "r"(size_t(64)), "i"(T));
}
template <int T> inline void tile_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
// Sums += signed bytes of rows A times signed bytes of block B.
template <int Sums, int A, int B> inline void tile_dot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
}
// Sums += signed bytes of rows A times unsigned bytes of B, 64 of them.
template <int Sums, int A, int B> inline void tile_dot_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
}

}  // namespace
}  // namespace quintet

#endif
