// What the passes of a product fetch meanwhile: the next tile, and the keys and values that attention will read after the products. A core
// has only so many lines on their way at a time (some 24 on Zen 4: 14 GB/s out of memory). Attention of many sequences waits for that, and
// products of many rows need next to none of it: docs/decisions/0063-lines-asked-for-in-time.md.
#pragma once
#include <algorithm>
#include "kernels/kernels.h"
#include "kernels/prefetch.h"

namespace quintet {
namespace {

inline bool any_ahead(const Ahead* ahead) { return ahead && ahead->next < ahead->pieces.size(); }

// What a pass of some rows and T tiles fetches with each block: nothing,
struct FetchNothing {
  FetchNothing(int, Ahead*, int, int) {}
  template <int, int> void with(const Packed&, const uint8_t*, int) {}
};

constexpr int kNoPart = -1;  // of the parts

// one of so many parts of the next T tiles, whose blocks are so many lines, or none, into the first-level cache if `near`,
template <bool near, int parts> class FetchNext {
 public:
  FetchNext(int part, Ahead*, int, int) : part_(part) {}
  template <int lines, int T> void with(const Packed& w, const uint8_t* tile, int b) {
    if (part_ == kNoPart) return;
    constexpr int each = (lines * T + parts - 1) / parts;
    fetch_lines<each, near>(tile + w.tile_bytes * size_t(T) + 64 * each * size_t((parts > 1 ? w.blocks() * part_ : 0) + b));
  }

 private:
  const int part_;
};

// or that, and of what is ahead a piece, or a part of one, some lines each time.
template <bool near, int parts> class FetchAhead {
 public:
  FetchAhead(int part, Ahead* ahead, int products, int blocks) : next_(part, ahead, products, blocks) {
    if (!any_ahead(ahead)) return;
    if (ahead->wait) {
      ahead->wait -= std::min(ahead->wait, size_t(products / kProductsOfLine * blocks));
      return;
    }
    Ahead::Piece& piece = ahead->pieces[ahead->next];
    const int lines = int((piece.to - piece.from + 63) / 64);
    each_ = std::min(products / kProductsOfLine, (lines + blocks - 1) / blocks);
    from_ = piece.from;
    to_ = piece.from = std::min(piece.to, from_ + 64 * each_ * blocks);
    if (to_ == piece.to) ahead->next++;
  }

  template <int lines, int T> void with(const Packed& w, const uint8_t* tile, int b) {
    next_.template with<lines, T>(w, tile, b);
    for (const uint8_t* end = std::min(to_, from_ + 64 * each_); from_ < end; from_ += 64) fetch(from_);
  }

 private:
  FetchNext<near, parts> next_;
  const uint8_t *from_ = nullptr, *to_ = nullptr;
  int each_ = 0;
};

}  // namespace
}  // namespace quintet
