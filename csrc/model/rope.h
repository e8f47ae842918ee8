// Tables of cosines and sines for rotary position embeddings, from our own elementary functions: the same bits on any machine.
#pragma once
#include <string>
#include <vector>
#include "memory.h"

namespace quintet {

struct RopeParams {
  int dim = 0;                   // rotated dimensions per head
  double base = 10000.0;         // theta
  std::string scaling = "none";  // none, linear, yarn
  double factor = 1.0;           // context extension
  int original_context = 0;      // yarn: context the model was trained on
  double attn_factor = 1.0;      // on the rotated values
  double beta_fast = 32.0, beta_slow = 1.0;
  double log_multiplier = 0;        // yarn: its own factor on the rotated values is divided by 1 + this times a tenth of its logarithm
  bool truncate = true;             // yarn: the ramp begins and ends at whole pairs
  std::vector<float> freq_factors;  // divisors per pair (llama 3); empty = 1
};

// Filled as sequences reach further: the table of a long context is larger than the rest of an idle model's working memory.
class RopeTable {
 public:
  // Throws std::invalid_argument for an unknown scaling or sizes that do not fit.
  RopeTable(const RopeParams& p, int positions);
  // Fills the rows below `positions`, which the constructor allowed. No other thread may read meanwhile.
  void reach(int positions);
  int dim() const { return 2 * half_; }
  const float* cos(int position) const { return cos_.data() + size_t(position) * size_t(half_); }
  const float* sin(int position) const { return sin_.data() + size_t(position) * size_t(half_); }

 private:
  int half_, most_, filled_ = 0;
  double scale_;
  std::vector<double> frequencies_;
  FloatLines cos_, sin_;  // reserved for all positions, so that rows stay where they are
};

}  // namespace quintet
