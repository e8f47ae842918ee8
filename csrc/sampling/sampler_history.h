// What a sequence has seen so far, as far as its controls look back at it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "sampling/breakers.h"

namespace quintet {

// The bytes of each token id, shared by all sequences of a model.
class Pieces {
 public:
  explicit Pieces(const std::vector<std::string>& pieces);
  int size() const { return int(ends_.size()); }
  std::string_view operator[](int32_t token) const;

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

// Which tokens came about, and how often in the output.
class Counts {
 public:
  void add(int32_t token, bool output);
  void penalise_repetition(float penalty, float* logits) const;
  void penalise_output(float frequency, float presence, float* logits) const;

 private:
  struct Seen {
    int32_t token;
    uint32_t output;
  };
  std::vector<Seen> seen_;  // in order of first occurrence
  std::unordered_map<int32_t, uint32_t> places_;
};

struct Dry {
  float multiplier = 0.0f, base = 1.75f;
  int allowed_length = 2;
  int range = -1;                     // of the last tokens; -1 = all
  std::vector<std::string> breakers;  // none of them empty
};

// The text so far as DRY sees it.
class Repetitions {
 public:
  Repetitions(const Dry& dry, std::shared_ptr<const Pieces> pieces);
  void add(int32_t token);
  void penalise(float* logits) const;

 private:
  bool contains_breaker(std::string_view piece) const;
  float penalty(int length) const;

  const Dry dry_;
  const std::shared_ptr<const Pieces> pieces_;
  const std::shared_ptr<const Breakers> breakers_;
  std::vector<int32_t> tokens_;
  size_t run_ = 0;      // the tokens since the last breaker start here
  uint32_t state_ = 0;  // of the breakers, after all of the text
};

}  // namespace quintet
