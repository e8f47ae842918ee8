// Choosing tokens and scoring them, one row of logits at a time.
// Every result is a fixed sequence of IEEE operations (own exp and log, fixed 16-lane reductions), so it is the same on any machine.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>
#include "kernels/kernels.h"
#include "kernels/row_passes.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"

namespace quintet {

// Log-probabilities of `target` and of the most likely tokens.
void score_row(const Kernels& k, const float* logits, int vocab, int target, const Scores& to);

// What a row gives instead of a token, below 0; Python's core/types.py has the same.
enum Outcome : int32_t {
  kNotFinite = -1,    // a logit is NaN or +infinity, or all are -infinity
  kNothingLeft = -2,  // the sequence's own controls ban every token
  kNoWayOn = -3,      // the mask does: the guide cannot be followed any further
  kNotDrawn = -4,     // the sequence did not go on as drafted, so there is none at this place yet
};
constexpr std::pair<const char*, Outcome> kOutcomes[] = {
    {"NOT_FINITE", kNotFinite}, {"NOTHING_LEFT", kNothingLeft}, {"NO_WAY_ON", kNoWayOn}, {"NOT_DRAWN", kNotDrawn}};

// Draw a token; its order of steps is in sample.cpp. mask: a bit per token, 1 = may be drawn; null = all may. The token's log-probabilities
// are score_row's; there are none where there is no token, or `to` wants none.
int32_t draw_row(const Kernels& k, const float* logits, Sampler& sampler, uint64_t position, const uint32_t* mask, const Scores& to = {});

// Draw for a sequence that was computed on a draft of how it goes on: row r holds the logits after the first r drafted tokens. A token is
// drawn and accepted at each row in turn, until one is not the drafted one; that one is not accepted, and nothing is drawn after it.
// What is drawn, and what the sampler knows then, are the same as if the rows had come one by one.
//
//   rows      at least 1, `stride` floats apart
//   drafts    [rows], -1 = matches nothing, as the last must
//   masks     [rows][mask_words], or null
//   tokens    [rows], kNotDrawn where nothing was
//   to        [rows], where each drawn token's log-probabilities go
void draw_drafted(const Kernels& k, const float* logits, int64_t stride, int rows, Sampler& sampler, uint64_t position,
                  const int32_t* drafts, const uint32_t* masks, int32_t* tokens, const Scores* to);

// The tokens that `draw_row` may draw, in id order, and their probabilities; empty where it gives no token.
std::vector<std::pair<int32_t, float>> distribution(const Kernels& k, const float* logits, const Sampler& sampler, uint64_t position,
                                                    const uint32_t* mask);

}  // namespace quintet
