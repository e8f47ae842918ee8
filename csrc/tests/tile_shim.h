// The tile instructions of kernels/tiles.h in software, after Intel's description of them. What the CPU would answer with a fault ends the
// program: a tile that is not configured, or shapes that do not go together.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "kernels/tiles.h"
#include "tests/tiles_held.h"

namespace quintet {

struct Tiles {
  TileConfig config;
  bool configured = false;
  uint8_t data[8][16][64];

  uint8_t (&tile(int t, int rows, int row_bytes))[16][64] {
    if (!configured || config.rows[t] != rows || config.row_bytes[t] != row_bytes) {
      std::fprintf(stderr, "tile %d is not configured so\n", t);
      std::abort();
    }
    return data[t];
  }
};
inline Tiles& tiles() {  // a thread's, whichever file configured them
  thread_local Tiles own;
  return own;
}

namespace {

inline void tile_configure(const TileConfig& config) {
  Tiles& own = tiles();
  if (!own.configured) tiles_held++;
  own.config = config;
  own.configured = true;
  std::memset(own.data, 0, sizeof own.data);
}
inline void tile_release() {
  if (tiles().configured) tiles_held--;
  tiles().configured = false;
}

template <int T> inline void tile_load_rows(const PanelBlock& from) {
  auto& to = tiles().tile(T, 16, 32);
  for (size_t r = 0; r < 16; r++) std::memcpy(to[r], from.q[r], 32);
}
template <int T> inline void tile_load_block(const TileBytes& from) { std::memcpy(tiles().tile(T, 8, 64), from, sizeof from); }
template <int T> inline void tile_load_whole(const uint8_t* from, size_t stride) {
  auto& to = tiles().tile(T, 16, 64);
  for (size_t r = 0; r < 16; r++) std::memcpy(to[r], from + r * stride, 64);
}
template <int T> inline void tile_store(TileSums& to) { std::memcpy(to, tiles().tile(T, 16, 64), sizeof to); }
template <int T> inline void tile_zero() { std::memset(tiles().tile(T, 16, 64), 0, 16 * 64); }
template <int Depth, class Cell> inline void add_products(uint8_t (&sums)[16][64], const uint8_t (&a)[16][64], const uint8_t (&b)[16][64]) {
  tile_products++;
  for (int r = 0; r < 16; r++)
    for (int lane = 0; lane < 16; lane++) {
      int32_t sum;
      std::memcpy(&sum, &sums[r][4 * lane], 4);
      for (int i = 0; i < Depth; i++) sum += int8_t(a[r][i]) * Cell(b[i / 4][4 * lane + i % 4]);
      std::memcpy(&sums[r][4 * lane], &sum, 4);
    }
}
template <int Sums, int A, int B> inline void tile_dot() {
  add_products<32, int8_t>(tiles().tile(Sums, 16, 64), tiles().tile(A, 16, 32), tiles().tile(B, 8, 64));
}
template <int Sums, int A, int B> inline void tile_dot_unsigned() {
  add_products<64, uint8_t>(tiles().tile(Sums, 16, 64), tiles().tile(A, 16, 64), tiles().tile(B, 16, 64));
}

}  // namespace
}  // namespace quintet
