// What digests are made of: random numbers, which are the same everywhere, and a hash.
#pragma once
#include <cstdint>
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

}  // namespace
}  // namespace quintet
