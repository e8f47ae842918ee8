// The next tile asked for while this one is multiplied. The hardware does not see it coming: it follows a stream, and with more than a few
// rows, or with scales of their own at the end, a tile is not read as one (the 8-bit product of one row took 2.5 times as long, of four
// 1.7 times, the 4-bit one of eight rows 1.1 times; docs/decisions/0007).
#pragma once
#include "pack.h"

namespace quintet {
namespace {

// A tile is read in several passes, a few rows each; each pass fetches an even share of the next tile, a few lines with every block.
class Ahead {
 public:
  Ahead(const Packed& w, int tile, int passes)
      : from_(w.tile(tile + 1)), lines_((int((w.tile_bytes + 63) / 64) + passes * w.blocks() - 1) / (passes * w.blocks())), blocks_(w.blocks()) {}
  void block(int b) const {
    for (int i = 0; i < lines_; i++) __builtin_prefetch(from_ + 64 * (size_t(b) * size_t(lines_) + size_t(i)));
  }
  void next_pass() { from_ += size_t(64) * size_t(lines_) * size_t(blocks_); }

 private:
  const uint8_t* from_;
  int lines_, blocks_;
};

}  // namespace
}  // namespace quintet
