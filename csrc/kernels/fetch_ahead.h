// What the passes of a product fetch meanwhile: the next tile, and the keys and values that attention will read after the products. A core has only
// so many lines on their way at a time (some 24 on Zen 4: 14 GB/s out of memory). Attention of many sequences waits for that, and products of many rows
// need next to none of it: docs/decisions/0063-lines-asked-for-in-time.md.
#pragma once
#include <algorithm>
#include "kernels/kernels.h"
#include "kernels/prefetch.h"

namespace quintet {
namespace {

// What a pass of some rows fetches with each block: nothing,
struct FetchNothing {
  FetchNothing(bool, Ahead*, int, int) {}
  template <int> void with(const Packed&, const uint8_t*, int) {}
};

// the next tile, if `next`, whose blocks are so many lines,
class FetchNext {
 public:
  FetchNext(bool next, Ahead*, int, int) : next_(next) {}
  template <int lines> void with(const Packed& w, const uint8_t* tile, int b) {
    if (next_) fetch_next<lines>(w, tile, b);
  }

 private:
  const bool next_;
};

// or that, and of what is ahead a piece, or a part of one, some lines each time.
class FetchAhead {
 public:
  FetchAhead(bool next, Ahead* ahead, int rows, int blocks) : next_(next, ahead, rows, blocks) {
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
    next_.template with<lines>(w, tile, b);
    for (const uint8_t* end = std::min(to_, from_ + 64 * each_); from_ < end; from_ += 64) fetch(from_);
  }

 private:
  static constexpr int kRowsOfLine = 2;  // whose products with a block take about as long as memory needs for a line

  FetchNext next_;
  const uint8_t *from_ = nullptr, *to_ = nullptr;
  int each_ = 0;
};

}  // namespace
}  // namespace quintet
