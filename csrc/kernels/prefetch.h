// What is read soon is fetched while something else is computed (docs/decisions/0007). Here: the next tile, in one of the passes over this
// one (a pass is a few rows; in_passes says which). The hardware fetches what is read as one stream; a tile that is read several times, or
// that has its scales at its end, is not, and the products would wait for memory.
#pragma once
#include "kernels/pack.h"

namespace quintet {

// Whether this CPU has as many lines on their way to its first-level cache as to its second-level one (isa.cpp).
extern const bool kFetchesNear;

namespace {

// Into the second-level cache, which has room for more lines on their way than the first, or into the first. In assembly, as g++ takes a
// function around the builtin for one that does nothing, and drops its calls. Of its operand the assembly knows the address alone: g++
// takes assembly with an operand in memory for one that may read any other memory too, and would store the sums of a loop, which are in
// registers, each time it comes by.
#if defined(__x86_64__)
inline void fetch(const void* line) { asm volatile("prefetcht1 %a0" : : "p"(line)); }
inline void fetch_near(const void* line) { asm volatile("prefetcht0 %a0" : : "p"(line)); }
#elif defined(__aarch64__)
inline void fetch(const void* line) { asm volatile("prfm pldl2keep, [%0]" : : "r"(line)); }
inline void fetch_near(const void* line) { asm volatile("prfm pldl1keep, [%0]" : : "r"(line)); }
#else
inline void fetch(const void*) {}
inline void fetch_near(const void*) {}
#endif

// What a pass of R rows writes or adds to at its end, with 16 columns of each: a line a row, which comes from another core's cache or from
// the third-level one, and there are not enough instructions in flight to go on meanwhile. A scratch, whose rows lie close together, is in
// the first-level cache anyway.
template <int R> inline void fetch_results(const float* y, size_t y_stride) {
  constexpr size_t kScratch = 32;
  if (y_stride <= kScratch) return;
  for (int r = 0; r < R; r++) fetch_near(y + size_t(r) * y_stride);
}

template <int count, bool near = false> inline void fetch_lines(const uint8_t* from) {
#pragma GCC unroll 18
  for (int i = 0; i < count; i++) near ? fetch_near(from + 64 * i) : fetch(from + 64 * i);
}

// With block b of a tile: lines [b * lines, (b + 1) * lines) of the next one. In an 8-bit tile 9, so that its scales are among them.
template <int lines> inline void fetch_next(const Packed& w, const uint8_t* tile, int b) {
  fetch_lines<lines>(tile + w.tile_bytes + 64 * lines * size_t(b));
}

// Whether the hardware, such as has no AVX-512, fetches its tiles by itself, as long as each is read only once.
inline bool streams(const Packed& w) { return w.format == Format::q4; }

}  // namespace
}  // namespace quintet
