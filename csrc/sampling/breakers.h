// DRY's breakers, all found in one pass over the text however alike they are (Aho and Corasick, "Efficient string matching", 1975).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quintet {

class Breakers {
 public:
  // None of them empty.
  explicit Breakers(std::vector<std::string> breakers);

  // Goes on reading a text; whether a breaker ends within these bytes, wherever it began. `state`: where it stands in the text, at first 0.
  bool read(std::string_view bytes, uint32_t& state) const;

 private:
  // A beginning of a breaker. Its children are one byte longer; they stand together, in order of that byte.
  struct Node {
    uint8_t byte = 0;              // its last
    bool ends = false;             // a breaker ends with it
    uint32_t back = 0;             // the longest of its proper endings that is a node too
    uint32_t first = 0, last = 0;  // its children, `last` excluded
  };
  uint32_t next(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // shorter ones first; the empty one, which is no node's child, at 0
  std::array<uint32_t, 256> starts_ = {};           // the empty one's children, which most bytes of a text are not; by their byte
};

}  // namespace quintet
