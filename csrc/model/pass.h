// The buffers and views of one forward pass; kept from one to the next.
#pragma once
#include <vector>
#include "model/model.h"

namespace quintet {

struct Model::Pass {
  const Batch* batch = nullptr;
  std::vector<int> row_segment, row_position;  // per row; from the last layer's attention on, per wanted row
  std::vector<int> wanted;                     // sorted, unique
  std::vector<Unit> units, last_units;         // attention of all rows, and of the wanted ones
  std::vector<float> x, branch;                // [T, hidden]: the rows, and what a layer adds to them
  std::vector<float> qkv, attended;            // [T, heads + 2 kv_heads, head_dim], [T, heads, head_dim]
  std::vector<uint8_t> in, heads, ffn;         // quantised rows: normed x, attended, gate * up
  struct Own {
    std::vector<float> scratch;
    std::vector<const uint16_t*> keys, values;
  };
  std::vector<Own> threads;  // each thread's own
  size_t in_row = 0, heads_row = 0, ffn_row = 0;
  int qkv_width = 0;
};

}  // namespace quintet
