// What is read soon is fetched while something else is computed (docs/decisions/0007): the next tile, in the last pass over this one (a
// pass is a few rows), and in every pass what is read after the products. The hardware fetches what is read as one stream; a tile that is read several
// times, or that has its scales at its end, is not, and the products would wait for memory.
#pragma once
#include <algorithm>
#include "kernels/kernels.h"

namespace quintet {
namespace {

// Into the second-level cache, which has room for more lines on their way than the first. In assembly, as g++ takes a function around the builtin
// for one that does nothing, and drops its calls. Of its operand the assembly knows the address alone: g++ takes assembly with an operand in
// memory for one that may read any other memory too, and would store the sums of a loop, which are in registers, each time it comes by.
inline void fetch(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 %a0" : : "p"(line));
#elif defined(__aarch64__)
  asm volatile("prfm pldl2keep, [%0]" : : "r"(line));
#else
  (void)line;
#endif
}

// With block b of a tile: lines [b * lines, (b + 1) * lines) of the next one. In an 8-bit tile 9, so that its scales are among them.
template <int lines> inline void fetch_next(const Packed& w, const uint8_t* tile, int b) {
  const uint8_t* from = tile + w.tile_bytes + 64 * lines * size_t(b);
#pragma GCC unroll 9
  for (int i = 0; i < lines; i++) fetch(from + 64 * i);
}

// What a pass of some rows fetches with each block: nothing,
struct FetchNothing {
  FetchNothing(bool, Ahead*, int, int) {}
  template <int> void with(const Packed&, const uint8_t*, int) {}
};

// the next tile, whose blocks are so many lines,
struct FetchNext {
  FetchNext(bool, Ahead*, int, int) {}
  template <int lines> void with(const Packed& w, const uint8_t* tile, int b) { fetch_next<lines>(w, tile, b); }
};

// or that, if `next`, and of what is ahead a piece, or a part of one. A core has only so many lines on their way at a time (some 24 on Zen 4: 14 GB/s
// out of memory). Attention of many sequences waits for that, and products of many rows need next to none of it:
// docs/decisions/0063-keys-fetched-by-products.md.
class FetchAhead {
 public:
  FetchAhead(bool next, Ahead* ahead, int rows, int blocks) : next_(next) {
    if (!any(ahead)) return;
    Ahead::Piece& piece = ahead->pieces[ahead->next];
    const int lines = int((piece.to - piece.from + 63) / 64);
    each_ = std::min(rows / kRowsOfLine, (lines + blocks - 1) / blocks);
    from_ = piece.from;
    to_ = piece.from = std::min(piece.to, from_ + 64 * each_ * blocks);
    if (to_ == piece.to) ahead->next++;
  }

  static bool any(const Ahead* ahead) { return ahead && ahead->next < ahead->pieces.size(); }

  template <int lines> void with(const Packed& w, const uint8_t* tile, int b) {
    if (next_) fetch_next<lines>(w, tile, b);
    for (const uint8_t* end = std::min(to_, from_ + 64 * each_); from_ < end; from_ += 64) fetch(from_);
  }

 private:
  static constexpr int kRowsOfLine = 2;  // whose products with a block take about as long as memory needs for a line

  const bool next_;
  const uint8_t *from_ = nullptr, *to_ = nullptr;
  int each_ = 0;
};

// Whether the hardware, such as has no AVX-512, fetches its tiles by itself, as long as each is read only once.
inline bool streams(const Packed& w) { return w.format == Format::q4; }

}  // namespace
}  // namespace quintet
