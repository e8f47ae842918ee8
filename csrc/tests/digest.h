// What digests are made of: random numbers, which are the same everywhere, weights of them, and a hash.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace quintet {
namespace {

struct Random {  // splitmix64
  uint64_t state = 42;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  int below(int n) { return int(next() % uint64_t(n)); }
  float real(float scale) { return (float(next() >> 40) / 8388608.0f - 1.0f) * scale; }  // exact
  std::vector<float> floats(size_t n, float scale) {
    std::vector<float> v(n);
    for (auto& x : v) x = real(scale);
    return v;
  }
};

struct Digest {  // FNV-1a
  uint64_t h = 1469598103934665603ULL;
  void add(const void* p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ static_cast<const uint8_t*>(p)[i]) * 1099511628211ULL;
  }
  template <class T> void add(const std::vector<T>& v) { add(v.data(), v.size() * sizeof(T)); }
};

constexpr int kMostRows = 70;  // of products: four panels of 16, and what is left of one more

using Results = std::map<std::string, uint64_t>;

[[maybe_unused]] std::vector<uint8_t> raw_f32(const std::vector<float>& v) {
  std::vector<uint8_t> raw(v.size() * 4);
  std::memcpy(raw.data(), v.data(), raw.size());
  return raw;
}

// Q4_1 blocks: fp16 scale, fp16 minimum, 16 bytes.
[[maybe_unused]] std::vector<uint8_t> raw_q4_1(Random& r, int rows, int cols) {
  std::vector<uint8_t> raw;
  for (int i = 0; i < rows * cols / 32; i++) {
    const uint16_t d = float_to_half(r.real(0.01f)), m = float_to_half(r.real(0.05f));
    for (uint16_t h : {d, m}) {
      raw.push_back(uint8_t(h & 255));
      raw.push_back(uint8_t(h >> 8));
    }
    for (int b = 0; b < 16; b++) raw.push_back(uint8_t(r.next()));
  }
  return raw;
}

// The upper half of small floats: a bfloat16, and as an fp16 likewise a number around 1.
[[maybe_unused]] std::vector<uint8_t> raw_halves(Random& r, size_t n) {
  std::vector<uint8_t> raw;
  for (size_t i = 0; i < n; i++) {
    const float x = r.real(0.2f);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    raw.push_back(uint8_t(bits >> 16));
    raw.push_back(uint8_t(bits >> 24));
  }
  return raw;
}

}  // namespace
}  // namespace quintet
