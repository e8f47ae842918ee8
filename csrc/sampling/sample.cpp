// How a token is chosen, in this order; each step does nothing if its control is off. docs/sampling.md has the formulas.
//
//   guide               tokens that the guide's mask does not allow are banned, as are by the next steps
//   allowed_token_ids   all others
//   bad_words           tokens that would complete one
//   min_tokens          the ends of a sequence, before so many tokens
//   logit_bias          is added; -100 bans, and 100 bans all tokens but those with 100
//   repetition_penalty, frequency_penalty and presence_penalty, DRY
//   greedy              temperature below 1e-5, or not a number: the largest logit, ties by lower id. Such temperatures divide
//                       differences that are within the rounding of the logits, so nothing is left to draw.
//   temperature         mass(i) = exp((logit[i] - max) / temperature), not normalised
//   Mirostat 2          if it is on, instead of the seven steps that follow
//   top_n_sigma, top_k, typical_p, top_p, min_p, min_probability, XTC: each over the tokens that the one before left
//   draw                the first token in id order whose cumulative mass, over the kept tokens, exceeds uniform * kept mass
//
// Where everything is banned but the ends of a sequence that min_tokens holds back, those may be drawn after all: the
// output cannot go on. Whatever the row holds, the id is one of the row's, or tells why there is none.
#include "sampling/sample.h"
#include <algorithm>
#include <limits>
#include "sampling/sampler_filters.h"

namespace quintet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;

using Edit = void (Sampler::*)(float* logits) const;
constexpr Edit kEdits[] = {&Sampler::keep_allowed,        &Sampler::ban_bad_words,   &Sampler::ban_ends,    &Sampler::add_bias,
                           &Sampler::penalise_repetition, &Sampler::penalise_output, &Sampler::penalise_dry};

using Filter = void (*)(Row&);
constexpr Filter kFilters[] = {keep_top_n_sigma, keep_top_k, keep_typical, keep_top_p, keep_min_p, keep_probable, exclude_top_choices};

// Kept from call to call for its memory alone: up to 24 bytes per token of the vocabulary, whose page faults would cost more than the
// work on it.
struct Scratch {
  std::vector<float> edited, maxima, chunks;
  Candidates candidates;
};
thread_local Scratch scratch;

// The row as the sequence's controls leave it, in `scratch.edited`; its maximum.
float edit(const Kernels& k, const float* logits, const Sampler& sampler, const uint32_t* mask, bool hold_ends) {
  const int vocab = sampler.vocab();
  scratch.edited.assign(logits, logits + vocab);
  float* row = scratch.edited.data();
  if (mask) keep_masked(mask, vocab, row);
  for (const Edit step : kEdits)
    if (hold_ends || step != &Sampler::ban_ends) (sampler.*step)(row);
  chunk_maxima(k, row, vocab, scratch.maxima);
  return row_max(scratch.maxima);
}

struct Edited {
  int32_t refusal = 0;            // below 0: there is nothing to draw
  const float* logits = nullptr;  // with these maxima in `scratch`
  float max = 0.0f;
};

Edited edited_row(const Kernels& k, const float* logits, const Sampler& sampler, const uint32_t* mask) {
  const int vocab = sampler.vocab();
  if (mask && keeps_none(mask, vocab)) return {kNoWayOn};
  if (!chunk_maxima(k, logits, vocab, scratch.maxima)) return {kNotFinite};
  float max = row_max(scratch.maxima);
  if (!(max > -kInfinity)) return {kNotFinite};
  if (mask && keeps_all(mask, vocab)) mask = nullptr;
  if (!mask && !sampler.edits()) return {0, logits, max};
  max = edit(k, logits, sampler, mask, true);
  if (!(max > -kInfinity) && sampler.holds_ends()) max = edit(k, logits, sampler, mask, false);
  if (!(max > -kInfinity)) return {kNothingLeft};
  return {0, scratch.edited.data(), max};
}

// False if the choice is greedy.
bool is_drawn(const Sampler& sampler, const Edited& edited) {
  const float t = sampler.controls().temperature;
  return t >= kGreedyBelow && t < kInfinity && edited.max < kInfinity;
}

Row filtered(const Kernels& k, const Edited& edited, const Sampler& sampler, uint64_t position) {
  const Controls& c = sampler.controls();
  Row row{k,          edited.logits,        sampler.vocab(), sampler,           position, scratch.maxima,
          edited.max, 1.0f / c.temperature, scratch.chunks,  scratch.candidates};
  if (c.mirostat_target > 0.0f) keep_unsurprising(row);
  else
    for (const Filter step : kFilters) step(row);
  return row;
}

struct Drawn {
  int32_t token;
  bool weighed = false;  // `scratch.chunks` are the masses of `edited` at temperature 1
};

Drawn draw_edited(const Kernels& k, const Edited& edited, Sampler& sampler, uint64_t position) {
  const int32_t likeliest = first_of(edited.logits, sampler.vocab(), scratch.maxima, edited.max);
  if (!is_drawn(sampler, edited)) return {likeliest};
  Row row = filtered(k, edited, sampler, position);
  const int32_t token = draw(row, uniform(sampler.controls().seed, position, Purpose::token)).value_or(likeliest);
  if (sampler.controls().mirostat_target > 0.0f) sampler.drew(token, surprise(row, token));
  return {token, row.weighed && row.scale == 1.0f};
}

}  // namespace

// The caller has checked 0 <= target < vocab and 0 <= top_k <= vocab.
void score_row(const Kernels& k, const float* logits, int vocab, int target, const Scores& to) {
  const bool sound = chunk_maxima(k, logits, vocab, scratch.maxima);
  score_with(k, logits, vocab, scratch.maxima, sound, target, scratch.chunks, false, to);
}

// Log-probabilities are the model's own. Where nothing edits the row they share its maxima with the draw, and at temperature 1 its masses.
int32_t draw_row(const Kernels& k, const float* logits, Sampler& sampler, uint64_t position, const uint32_t* mask, const Scores& to) {
  const Edited edited = edited_row(k, logits, sampler, mask);
  if (edited.refusal < 0) return edited.refusal;
  const Drawn drawn = draw_edited(k, edited, sampler, position);
  if (to.top_k < 0) return drawn.token;
  if (edited.logits == logits) score_with(k, logits, sampler.vocab(), scratch.maxima, true, drawn.token, scratch.chunks, drawn.weighed, to);
  else score_row(k, logits, sampler.vocab(), drawn.token, to);
  return drawn.token;
}

void draw_drafted(const Kernels& k, const float* logits, int64_t stride, int rows, Sampler& sampler, uint64_t position,
                  const int32_t* drafts, const uint32_t* masks, int32_t* tokens, const Scores* to) {
  const size_t words = mask_words(sampler.vocab());
  std::fill(tokens, tokens + rows, kNotDrawn);
  for (int r = 0; r < rows; r++) {
    const uint32_t* mask = masks ? masks + size_t(r) * words : nullptr;
    tokens[r] = draw_row(k, logits + r * stride, sampler, position + uint64_t(r), mask, to[r]);
    if (tokens[r] < 0 || tokens[r] != drafts[r]) return;
    sampler.accept(tokens[r]);
  }
}

std::vector<std::pair<int32_t, float>> distribution(const Kernels& k, const float* logits, const Sampler& sampler, uint64_t position,
                                                    const uint32_t* mask) {
  const Edited edited = edited_row(k, logits, sampler, mask);
  if (edited.refusal < 0) return {};
  if (!is_drawn(sampler, edited)) return {{first_of(edited.logits, sampler.vocab(), scratch.maxima, edited.max), 1.0f}};
  Row row = filtered(k, edited, sampler, position);
  Candidates& c = row.candidates;
  if (row.whole) {
    c.ids.resize(size_t(row.vocab));
    c.masses.resize(size_t(row.vocab));
    for (int i = 0; i < row.vocab; i++) c.ids[size_t(i)] = i;
    k.row_exp(row.logits, row.vocab, row.max, row.scale, c.masses.data());
  }
  const double total = sum(c.masses);
  std::vector<std::pair<int32_t, float>> kept;
  for (size_t i = 0; i < c.ids.size(); i++)
    if (c.masses[i] > 0.0f) kept.emplace_back(c.ids[i], float(double(c.masses[i]) / total));
  return kept;
}

}  // namespace quintet
