// The texts of a vocabulary, found by their bytes. A model file is hostile: where a string lies is checked against the bytes that there
// are, and places in tables depend on a number drawn at the start, so that nobody can make texts that all meet in one place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quintet {

constexpr int32_t kNoToken = -1;

// Strings as GGUF has them, each after its length in 8 bytes, little-endian: where each ends, counted from the first length. Of ``count``
// strings as many as lie in the data.
std::vector<int64_t> walk_strings(std::string_view data, size_t count);

// Strings of data that was walked so.
class Strings {
 public:
  // Throws std::invalid_argument unless the ends are such.
  Strings(std::string_view data, std::span<const int64_t> ends);
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const;
  // The first that is not UTF-8, as Python reads it; size() = all are.
  size_t not_unicode() const;

 private:
  std::string_view data_;
  std::span<const int64_t> ends_;
};

// Spread over 64 bits, in a way of this process alone.
uint64_t scatter(uint64_t value);

// The letters that stand for bytes in a byte-level vocabulary, one for each.
class Alphabet {
 public:
  explicit Alphabet(std::string_view letters);  // UTF-8; throws std::invalid_argument unless they are 256 different ones below U+0200
  std::string_view operator[](uint8_t byte) const { return letters_[byte]; }
  // The bytes that a text stands for; false: a letter stands for none.
  bool spell(std::string_view text, std::string& out) const;

 private:
  std::vector<std::string> letters_;
  std::vector<int16_t> bytes_;  // of each code point
};

// A token's kind, of GGUF's; ``TokenType`` in Python.
enum class Kind : uint8_t { normal = 1, user_defined = 4, byte = 6 };

class Texts {
 public:
  // UTF-8. An empty text is named [EMPTY_<id>].
  explicit Texts(const Strings& strings);
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t id) const {
    const size_t start = id ? ends_[id - 1] : 0;
    return std::string_view(blob_).substr(start, ends_[id] - start);
  }
  int32_t find(std::string_view text) const;  // kNoToken: it is none
  // The first token whose text another one has as well; size() = there is none.
  size_t twice() const { return twice_; }
  size_t longest() const;  // in characters
  // The bytes of each token of a byte-level vocabulary one after the other, and where each one's end: none for control tokens; a text with
  // a letter that stands for no byte stands for itself.
  std::string spelled(const Alphabet& alphabet, std::string_view kinds, std::vector<uint32_t>& ends) const;

 private:
  struct Place {
    int32_t id = kNoToken;
    uint32_t mark = 0;  // of the text's hash, so that few others are compared
  };

  // Where a text is, or would be.
  size_t place(std::string_view text, uint64_t hash) const;

  std::string blob_;
  std::vector<size_t> ends_;
  std::vector<Place> table_;  // open addressing
  size_t twice_;
};

}  // namespace quintet
