// Choosing tokens and scoring them: plain functions over rows of logits, one row at a time, no global state.
// Every result is a fixed sequence of IEEE operations (own exp and log, fixed 16-lane reductions), so it is the same on any machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include "kernels.h"

namespace quintet {

// Natural log of the softmax denominator of a row: max + log(sum(exp(x - max))), summed in 16 lanes and a fixed tree.
float log_sum_exp(const Kernels& k, const float* logits, int vocab);

// Log-probability of `target` and the top_k most likely tokens (most likely first, ties by lower id).
void score_row(const Kernels& k, const float* logits, int vocab, int target, int top_k, float* chosen, int32_t* top_ids, float* top);

// Philox4x32-10 with key = seed and counter = position: one float uniform in [0, 1) with 24 bits.
float uniform(uint64_t seed, uint64_t position);

struct SampleParams { float temperature, top_p; uint64_t seed, position; };
int32_t sample_row(const Kernels& k, const float* logits, int vocab, const SampleParams& p);

}  // namespace quintet
