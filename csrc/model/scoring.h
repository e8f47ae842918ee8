// Buffers of Model::score, kept from one call to the next.
#pragma once
#include <vector>
#include "memory.h"
#include "model/model.h"

namespace quintet {

// Rows of a block: so many that the output matrix is not read too often, so few that their logits stay in the caches.
constexpr int kBlock = 32;

struct Model::Scoring {
  FloatLines logits;                               // [kBlock, vocab_stride]
  std::vector<std::vector<float>> maxima, masses;  // [kBlock][chunks]
  std::vector<uint8_t> sound;                      // [chunks, kBlock]
};

}  // namespace quintet
