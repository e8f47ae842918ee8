// One sequence's way of choosing tokens: its controls, and what it has seen so far. Not thread-safe; a draw reads and `accept` writes.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include "sampling/sampler_history.h"

namespace quintet {

// Every control has a value that turns it off, which is its default. Formulas and sources: docs/sampling.md.
struct Controls {
  float temperature = 1.0f, top_p = 1.0f;
  uint64_t seed = 0;
  int top_k = 0;
  float min_p = 0.0f, min_probability = 0.0f, typical_p = 1.0f;
  bool typical_within = false;  // typical_p is not exceeded, rather than reached
  float top_n_sigma = 0.0f, xtc_probability = 0.0f, xtc_threshold = 0.1f;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  Dry dry = {};
  float mirostat_target = 0.0f, mirostat_lr = 0.1f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::vector<int32_t> allowed_token_ids = {};
  std::vector<std::vector<int32_t>> bad_words = {};  // token sequences, none of them empty
  int min_tokens = 0;
  std::vector<int32_t> eos_ids = {}, stop_token_ids = {};
};

class Sampler {
 public:
  // Throws std::invalid_argument for an id outside the vocabulary or a number that no formula takes.
  Sampler(Controls controls, std::shared_ptr<const Pieces> pieces, const int32_t* prompt, size_t prompt_size);

  // A sibling's: the same controls after the same prompt, but for the seed. Throws std::invalid_argument if this one has accepted a token.
  Sampler fork(uint64_t seed) const;

  const Controls& controls() const { return controls_; }
  int vocab() const { return pieces_->size(); }

  // The sequence goes on with this token, drawn or not. Throws std::invalid_argument if it is outside the vocabulary.
  void accept(int32_t token);
  int accepted() const { return generated_; }

  // Mirostat's bound on surprise, in bits.
  double surprise_bound() const { return mu_; }
  // A draw tells how surprising its token was; `accept` of that token learns from it.
  void drew(int32_t token, double surprise) { drawn_ = {token, surprise}; }

  // Whether the next draw changes any logit.
  bool edits() const;
  // Tokens that end the sequence may not be drawn yet.
  bool holds_ends() const { return generated_ < controls_.min_tokens; }

  // The steps of csrc/sample.cpp that change logits; -infinity is a banned token.
  void keep_allowed(float* logits) const;
  void ban_bad_words(float* logits) const;
  void ban_ends(float* logits) const;
  void add_bias(float* logits) const;
  void penalise_repetition(float* logits) const;
  void penalise_output(float* logits) const;
  void penalise_dry(float* logits) const;

 private:
  void check() const;
  void see(int32_t token, bool output);
  bool completes(const std::vector<int32_t>& word) const;

  Controls controls_;
  std::shared_ptr<const Pieces> pieces_;
  std::vector<uint32_t> allowed_;  // a bit per token; empty = all
  bool counts_tokens_ = false;
  Counts counts_;
  std::optional<Repetitions> repetitions_;
  std::vector<int32_t> output_;   // its last tokens, as many as a bad word may begin with
  size_t longest_beginning_ = 0;  // of a bad word, in tokens
  int generated_ = 0;
  double mu_ = 0.0;
  std::pair<int32_t, double> drawn_ = {-1, 0.0};
};

// Leaves the tokens whose bit is 1. Bits past the vocabulary are not looked at.
void keep_masked(const uint32_t* mask, int vocab, float* logits);
bool keeps_all(const uint32_t* mask, int vocab);
bool keeps_none(const uint32_t* mask, int vocab);
inline size_t mask_words(int vocab) { return (size_t(vocab) + 31) / 32; }

}  // namespace quintet
