#include "sampling/breakers.h"
#include <algorithm>

namespace quintet {

Breakers::Breakers(std::vector<std::string> breakers) {
  std::sort(breakers.begin(), breakers.end());  // those that begin alike stand together, and the shortest of them first
  struct Range {
    size_t begin, end, length;
  };
  std::vector<Range> ranges = {{0, breakers.size(), 0}};  // per node: the breakers that begin with it, and its own length
  for (uint32_t at = 0; at < nodes_.size(); at++) {
    auto [begin, end, length] = ranges[at];
    bool ends = at > 0 && nodes_[nodes_[at].back].ends;
    for (; begin < end && breakers[begin].size() == length; begin++) ends = true;
    nodes_[at].ends = ends;
    nodes_[at].first = nodes_[at].last = uint32_t(nodes_.size());
    for (size_t stop = begin; begin < end; begin = stop) {
      const uint8_t byte = uint8_t(breakers[begin][length]);
      while (stop < end && uint8_t(breakers[stop][length]) == byte) stop++;
      const uint32_t back = at > 0 ? next(nodes_[at].back, byte) : 0;
      if (at == 0) starts_[byte] = uint32_t(nodes_.size());
      nodes_.push_back({byte, false, back});
      nodes_[at].last++;
      ranges.push_back({begin, stop, length + 1});
    }
  }
}

// The longest ending of the node and this byte that is a node.
uint32_t Breakers::next(uint32_t node, uint8_t byte) const {
  for (; node > 0; node = nodes_[node].back) {
    const auto end = nodes_.begin() + nodes_[node].last;
    const auto child =
        std::lower_bound(nodes_.begin() + nodes_[node].first, end, byte, [](const Node& n, uint8_t b) { return n.byte < b; });
    if (child != end && child->byte == byte) return uint32_t(child - nodes_.begin());
  }
  return starts_[byte];
}

bool Breakers::read(std::string_view bytes, uint32_t& state) const {
  bool ends = false;
  for (const char byte : bytes) {
    state = next(state, uint8_t(byte));
    ends |= nodes_[state].ends;
  }
  return ends;
}

}  // namespace quintet
