// Byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909): neighbours are joined by rank, the leftmost first among equals.
#pragma once
#include <array>
#include <memory>
#include "tokens/texts.h"

namespace quintet {

class Merges {
 public:
  // ``pairs``: two texts with a space between them, the best first. A letter that is no token gets an id past the vocabulary's end: it
  // keeps its neighbours apart, and may be joined.
  // ``whole``: a word that is a token is that one, whatever the pairs say.
  Merges(std::shared_ptr<const Texts> texts, const Strings& pairs, Alphabet alphabet, bool whole);
  // The first pair that does not join two tokens to a third: only where there is none can anything be encoded. pairs.size() = there is
  // none.
  size_t bad() const { return bad_; }
  // The tokens of a word, without those past the vocabulary's end. Time is n log n.
  std::vector<int32_t> encode(std::string_view word) const;

 private:
  struct Join {
    uint64_t pair;
    int32_t rank, id;  // rank -1: free
  };

  int32_t find(std::string_view text) const;
  const Join* join(int32_t left, int32_t right) const;  // nullptr: they are not joined
  // ``guess``: the token that it may join to; then the one that it does.
  bool add(std::string_view pair, int32_t rank, int32_t& guess);

  std::shared_ptr<const Texts> texts_;
  Alphabet alphabet_;
  bool whole_;
  size_t bad_;
  std::array<int32_t, 256> letters_;
  std::vector<Join> joins_;  // open addressing
};

}  // namespace quintet
