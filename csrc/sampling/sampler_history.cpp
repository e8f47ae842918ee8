#include "sampling/sampler_history.h"
#include <algorithm>

namespace quintet {

Pieces::Pieces(const std::vector<std::string>& pieces) {
  for (const std::string& piece : pieces) {
    bytes_ += piece;
    ends_.push_back(bytes_.size());
  }
}

std::string_view Pieces::operator[](int32_t token) const {
  const size_t begin = token > 0 ? ends_[size_t(token) - 1] : 0;
  return std::string_view(bytes_).substr(begin, ends_[size_t(token)] - begin);
}

// ---- counts

void Counts::add(int32_t token, bool output) {
  const auto [place, fresh] = places_.try_emplace(token, uint32_t(seen_.size()));
  if (fresh) seen_.push_back({token, 0});
  seen_[place->second].output += output;
}

void Counts::penalise_repetition(float penalty, float* logits) const {
  for (const Seen& s : seen_) {
    float& logit = logits[s.token];
    logit = logit > 0.0f ? logit / penalty : logit * penalty;
  }
}

void Counts::penalise_output(float frequency, float presence, float* logits) const {
  for (const Seen& s : seen_) {
    if (s.output == 0) continue;
    logits[s.token] -= float(s.output) * frequency;
    logits[s.token] -= presence;
  }
}

// ---- DRY

Repetitions::Repetitions(const Dry& dry, std::shared_ptr<const Pieces> pieces)
    : dry_(dry), pieces_(std::move(pieces)), breakers_(std::make_shared<const Breakers>(dry.breakers)) {}

void Repetitions::add(int32_t token) {
  tokens_.push_back(token);
  if (breakers_->read((*pieces_)[token], state_)) run_ = tokens_.size();
}

bool Repetitions::contains_breaker(std::string_view piece) const {
  uint32_t state = 0;
  return breakers_->read(piece, state);
}

float Repetitions::penalty(int length) const {
  double grown = double(dry_.multiplier);
  if (dry_.base > 1.0f)
    for (int i = dry_.allowed_length; i < length && grown < 1e30; i++) grown *= double(dry_.base);
  return float(grown);
}

// The Z-algorithm over the text read backwards: z[k] is how many of the last tokens also stand k tokens earlier.
void Repetitions::penalise(float* logits) const {
  const int n = int(dry_.range < 0 ? tokens_.size() : std::min(tokens_.size(), size_t(dry_.range)));
  const int most = std::min(n, int(tokens_.size() - run_));
  if (most < dry_.allowed_length) return;
  const int32_t* last = tokens_.data() + tokens_.size() - 1;
  thread_local std::vector<int> z;
  thread_local std::vector<std::pair<int32_t, int>> matches;  // token that would go on with a repetition, and minus its length
  z.assign(size_t(n), 0);
  matches.clear();
  for (int k = 1, left = 0, right = 0; k < n; k++) {  // [left, right): the match that reaches furthest
    int length = k < right ? std::min(right - k, z[size_t(k - left)]) : 0;
    while (k + length < n && last[-length] == last[-k - length]) length++;
    z[size_t(k)] = length;
    if (k + length > right) left = k, right = k + length;
    length = std::min(length, most);
    if (length >= dry_.allowed_length) matches.emplace_back(last[1 - k], -length);
  }
  std::sort(matches.begin(), matches.end());
  for (size_t i = 0; i < matches.size(); i++) {
    const auto [token, length] = matches[i];
    if (i > 0 && token == matches[i - 1].first) continue;
    if (!contains_breaker((*pieces_)[token])) logits[token] -= penalty(-length);
  }
}

}  // namespace quintet
