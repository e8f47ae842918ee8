// Choosing tokens and scoring them, one row of logits at a time.
// Every result is a fixed sequence of IEEE operations (own exp and log, fixed 16-lane reductions), so it is the same on any machine.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>
#include "kernels.h"
#include "philox.h"
#include "sampler.h"

namespace quintet {

// Natural log of the softmax denominator of a row: max + log(sum(exp(x - max))), summed in 16 lanes and a fixed tree.
float log_sum_exp(const Kernels& k, const float* logits, int vocab);

// Log-probability of `target` and the top_k most likely tokens (most likely first, ties by lower id).
void score_row(const Kernels& k, const float* logits, int vocab, int target, int top_k, float* chosen, int32_t* top_ids, float* top);

// Instead of a token:
constexpr int32_t kNotFinite = -1;     // a logit is NaN or +infinity, or all are -infinity
constexpr int32_t kNothingLeft = -2;   // the sequence's own controls ban every token

// Draw a token; its order of steps is in sample.cpp. mask: a bit per token, 1 = may be drawn; null = all may.
int32_t draw_row(const Kernels& k, const float* logits, Sampler& sampler, uint64_t position, const uint32_t* mask);

// The tokens that `draw_row` may draw, in id order, and their probabilities; empty where it gives no token.
std::vector<std::pair<int32_t, float>> distribution(const Kernels& k, const float* logits, const Sampler& sampler, uint64_t position,
                                                    const uint32_t* mask);

}  // namespace quintet
