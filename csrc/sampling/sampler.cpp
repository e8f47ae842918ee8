#include "sampling/sampler.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <stdexcept>

namespace quintet {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr float kForce = 100.0f;  // a bias that large forces, and the opposite bans

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

void require_ids(const std::vector<int32_t>& ids, int vocab, const char* what) {
  for (const int32_t id : ids) require(id >= 0 && id < vocab, what);
}

}  // namespace

Sampler::Sampler(Controls controls, std::shared_ptr<const Pieces> pieces, const int32_t* prompt, size_t prompt_size)
    : controls_(std::move(controls)), pieces_(std::move(pieces)) {
  check();
  const Controls& c = controls_;
  if (!c.allowed_token_ids.empty()) {
    allowed_.assign(mask_words(vocab()), 0);
    for (const int32_t id : c.allowed_token_ids) allowed_[size_t(id) / 32] |= 1u << (id % 32);
  }
  counts_tokens_ = c.repetition_penalty != 1.0f || c.frequency_penalty != 0.0f || c.presence_penalty != 0.0f;
  if (c.dry.multiplier > 0.0f && c.dry.range != 0) repetitions_.emplace(c.dry, pieces_);
  for (const auto& word : c.bad_words) longest_beginning_ = std::max(longest_beginning_, word.size() - 1);
  mu_ = 2.0 * double(c.mirostat_target);
  if (!repetitions_ && !counts_tokens_) return;
  for (size_t i = 0; i < prompt_size; i++) require(prompt[i] >= 0 && prompt[i] < vocab(), "sampler: prompt token out of range");
  for (size_t i = 0; i < prompt_size; i++) see(prompt[i], false);
}

Sampler Sampler::fork(uint64_t seed) const {
  require(generated_ == 0, "fork: the sampler has accepted a token");
  Sampler made = *this;
  made.controls_.seed = seed;
  made.drawn_ = {-1, 0.0};  // it may have drawn already
  return made;
}

void Sampler::check() const {
  const Controls& c = controls_;
  require(vocab() > 0, "sampler: no vocabulary");
  for (const float x : {c.top_p, c.min_p, c.min_probability, c.typical_p, c.xtc_probability, c.xtc_threshold})
    require(x >= 0.0f && x <= 1.0f, "sampler: a probability outside 0 to 1");
  for (const float x : {c.frequency_penalty, c.presence_penalty}) require(std::isfinite(x), "sampler: a penalty is not finite");
  for (const float x : {c.top_n_sigma, c.mirostat_target, c.mirostat_lr, c.dry.multiplier})
    require(x >= 0.0f && std::isfinite(x), "sampler: a number below 0 or not finite");
  require(c.repetition_penalty > 0.0f && std::isfinite(c.repetition_penalty), "sampler: repetition_penalty must be above 0");
  require(c.dry.base >= 1.0f && std::isfinite(c.dry.base) && c.dry.allowed_length >= 1,
          "sampler: dry base and allowed_length must be at least 1");
  for (const std::string& breaker : c.dry.breakers) require(!breaker.empty(), "sampler: an empty dry breaker");
  for (const auto& [id, bias] : c.logit_bias)
    require(id >= 0 && id < vocab() && std::fabs(bias) <= kForce, "sampler: logit_bias id or bias out of range");
  require_ids(c.allowed_token_ids, vocab(), "sampler: allowed_token_ids out of range");
  require_ids(c.eos_ids, vocab(), "sampler: eos_ids out of range");
  require_ids(c.stop_token_ids, vocab(), "sampler: stop_token_ids out of range");
  for (const auto& word : c.bad_words) {
    require(!word.empty(), "sampler: an empty bad word");
    require_ids(word, vocab(), "sampler: bad_words out of range");
  }
}

void Sampler::accept(int32_t token) {
  require(token >= 0 && token < vocab(), "accept: token out of range");
  see(token, true);
  if (longest_beginning_ > 0) {
    if (output_.size() == longest_beginning_) output_.erase(output_.begin());
    output_.push_back(token);
  }
  if (controls_.mirostat_target > 0.0f && token == drawn_.first)
    mu_ -= double(controls_.mirostat_lr) * (drawn_.second - double(controls_.mirostat_target));
  drawn_.first = -1;
  generated_++;
}

void Sampler::see(int32_t token, bool output) {
  if (counts_tokens_) counts_.add(token, output);
  if (repetitions_) repetitions_->add(token);
}

bool Sampler::edits() const {
  const Controls& c = controls_;
  return !allowed_.empty() || !c.bad_words.empty() || holds_ends() || !c.logit_bias.empty() || counts_tokens_ || repetitions_;
}

// ---- the steps

void Sampler::keep_allowed(float* logits) const {
  if (!allowed_.empty()) keep_masked(allowed_.data(), vocab(), logits);
}

bool Sampler::completes(const std::vector<int32_t>& word) const {
  const size_t before = word.size() - 1;
  return before <= output_.size() && std::equal(word.begin(), word.end() - 1, output_.end() - ptrdiff_t(before));
}

void Sampler::ban_bad_words(float* logits) const {
  for (const auto& word : controls_.bad_words)
    if (completes(word)) logits[word.back()] = kBanned;
}

void Sampler::ban_ends(float* logits) const {
  if (!holds_ends()) return;
  for (const int32_t id : controls_.eos_ids) logits[id] = kBanned;
  for (const int32_t id : controls_.stop_token_ids) logits[id] = kBanned;
}

// A token that is banned by now can neither be forced nor biased; if others are forced, all but these are banned.
void Sampler::add_bias(float* logits) const {
  thread_local std::vector<std::pair<int32_t, float>> forced;
  forced.clear();
  for (const auto& [id, bias] : controls_.logit_bias) {
    logits[id] = bias <= -kForce ? kBanned : logits[id] + bias;
    if (bias >= kForce && logits[id] > kBanned) forced.emplace_back(id, logits[id]);
  }
  if (forced.empty()) return;
  std::fill(logits, logits + vocab(), kBanned);
  for (const auto& [id, logit] : forced) logits[id] = logit;
}

void Sampler::penalise_repetition(float* logits) const {
  if (controls_.repetition_penalty != 1.0f) counts_.penalise_repetition(controls_.repetition_penalty, logits);
}

void Sampler::penalise_output(float* logits) const {
  const Controls& c = controls_;
  if (c.frequency_penalty != 0.0f || c.presence_penalty != 0.0f) counts_.penalise_output(c.frequency_penalty, c.presence_penalty, logits);
}

void Sampler::penalise_dry(float* logits) const {
  if (repetitions_) repetitions_->penalise(logits);
}

// ---- masks

namespace {

// Per 4 bits of a mask, a word of ones for each bit that is 1.
constexpr auto kLanes = [] {
  std::array<std::array<uint32_t, 4>, 16> lanes = {};
  for (uint32_t bits = 0; bits < 16; bits++)
    for (uint32_t lane = 0; lane < 4; lane++) lanes[bits][lane] = bits >> lane & 1u ? ~0u : 0u;
  return lanes;
}();

void keep_lanes(uint32_t bits, float* logits) {
  constexpr uint32_t banned = std::bit_cast<uint32_t>(kBanned);
  uint32_t x[4];
  std::memcpy(x, logits, sizeof x);
  for (size_t lane = 0; lane < 4; lane++) x[lane] = (x[lane] & kLanes[bits][lane]) | (banned & ~kLanes[bits][lane]);
  std::memcpy(logits, x, sizeof x);
}

}  // namespace

void keep_masked(const uint32_t* mask, int vocab, float* logits) {
  int i = 0;
  for (; i + 32 <= vocab; i += 32) {
    const uint32_t bits = mask[i / 32];
    if (bits == ~0u) continue;
    if (bits == 0) std::fill(logits + i, logits + i + 32, kBanned);
    else
      for (int j = 0; j < 32; j += 4) keep_lanes(bits >> j & 15u, logits + i + j);
  }
  for (; i < vocab; i++)
    if (!(mask[i / 32] >> (i % 32) & 1u)) logits[i] = kBanned;
}

bool keeps_all(const uint32_t* mask, int vocab) {
  for (int i = 0; i + 32 <= vocab; i += 32)
    if (mask[i / 32] != ~0u) return false;
  const uint32_t tail = (1u << (vocab % 32)) - 1u;
  return vocab % 32 == 0 || (mask[vocab / 32] & tail) == tail;
}

bool keeps_none(const uint32_t* mask, int vocab) {
  for (int i = 0; i + 32 <= vocab; i += 32)
    if (mask[i / 32] != 0) return false;
  const uint32_t tail = (1u << (vocab % 32)) - 1u;
  return vocab % 32 == 0 || (mask[vocab / 32] & tail) == 0;
}

}  // namespace quintet
