// The next tile fetched while this one is multiplied, in the last pass over it (a pass is a few rows). The hardware fetches what is read as
// one stream; a tile that is read several times, or that has its scales at its end, is not, and the products would wait for memory
// (docs/decisions/0007).
#pragma once
#include "pack.h"

namespace quintet {
namespace {

// g++ takes a function around the builtin for one that does nothing, and drops its calls.
inline void fetch(const uint8_t* line) { asm volatile("prefetcht0 %0" : : "m"(*line)); }

// Into the second-level cache, which has room for more of them on their way.
inline void fetch_far(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const uint8_t*>(line)));
#elif defined(__aarch64__)
  asm volatile("prfm pldl2keep, %0" : : "Q"(*static_cast<const uint8_t*>(line)));
#endif
}

// With block b of a tile: lines [b * lines, (b + 1) * lines) of the next one. In an 8-bit tile 9, so that its scales are among them.
template <int lines> inline void fetch_next(const Packed& w, const uint8_t* tile, int b) {
  const uint8_t* from = tile + w.tile_bytes + 64 * lines * size_t(b);
#pragma GCC unroll 9
  for (int i = 0; i < lines; i++) fetch(from + 64 * i);
}

// Whether the hardware fetches its tiles by itself, as long as each is read only once.
inline bool streams(const Packed& w) { return w.format == Format::q4; }

}  // namespace
}  // namespace quintet
