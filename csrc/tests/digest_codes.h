// Digests of the products with the formats of codes.h.
#pragma once
#include <algorithm>
#include <cstring>
#include "kernels/activations.h"
#include "tests/digest.h"

namespace quintet {
namespace {

// A type of each format of codes.h, with random blocks: `halves` are the offsets of a block's fp16 numbers.
struct Coded {
  const char *type, *format;
  int values, bytes;
  std::vector<int> halves;
};
const Coded kCoded[] = {{"Q2_K", "q4h", 256, 84, {80, 82}}, {"Q5_1", "q5", 32, 24, {0, 2}}, {"Q3_K", "q6", 256, 110, {108}},
                        {"IQ2_XS", "q8h", 256, 74, {0}},    {"IQ4_NL", "q4u", 32, 18, {0}}, {"MXFP4", "q4e", 32, 17, {}}};

std::vector<uint8_t> raw_coded(Random& r, const Coded& c, int rows, int cols) {
  std::vector<uint8_t> raw;
  for (int i = 0; i < rows * cols / c.values; i++) {
    const size_t block = raw.size();
    for (int b = 0; b < c.bytes; b++) raw.push_back(uint8_t(r.next()));
    for (int at : c.halves) {
      const uint16_t h = float_to_half(r.real(0.02f));
      std::memcpy(&raw[block + size_t(at)], &h, 2);
    }
    if (c.halves.empty()) raw[block] = uint8_t(110 + r.below(20));  // an exponent
  }
  return raw;
}

void codes(const Kernels& k, Results& out) {
  const Activations act(k, false);
  for (const Coded& c : kCoded) {
    Random r;
    const int n = 41, cols = 512, stride = 48;
    const auto raw = raw_coded(r, c, n, cols);
    Arena arena;
    Packed w = pack_empty(c.type, n, cols, Floats::q8, arena);
    pack_tiles(w, c.type, raw.data(), {}, 0, w.tiles());
    Digest d;
    d.add(w.data, w.bytes());
    for (int m = 1; m <= kMostRows; m++) {
      Activations::Matrix x;
      act.reserve(x, size_t(m), cols);
      for (int i = 0; i < m; i++) {
        std::vector<float> values = r.floats(size_t(cols), i == 2 ? 1e-37f : 3.0f);
        if (i == 3) std::fill(values.begin(), values.end(), -2.0f);  // the largest sums
        act.put_row(values.data(), cols, x, size_t(i));
      }
      auto y = r.floats(size_t(m) * stride, 1.0f);
      act.multiply(w, 0, w.tiles(), act.view(x, cols), m, y.data(), stride, m % 2 == 0);
      d.add(y);
    }
    out[std::string("gemm ") + c.format] = d.h;
  }
}

}  // namespace
}  // namespace quintet
