// What the two ways of attention share (attend.h).
#pragma once
#include <limits>
#include <type_traits>
#include "kernels/kernels_impl.h"
#include "kernels/prefetch.h"

namespace quintet {
namespace {

constexpr bool kWide = V::kRegisters >= 32;
constexpr int kSide = kWide ? 4 : 1;  // pages, or blocks of 16 dimensions, that several rows do side by side
constexpr int kAhead = 3;             // pages from the one that is computed to the one that is fetched

template <class Cell> constexpr int kLine = 64 / int(sizeof(Cell));  // cells of a line of the cache

inline F load_cells(const uint16_t* cells) { return V::load_half(cells); }
inline F load_cells(const int8_t* cells) { return V::load_i8(cells); }

// What is read: the keys of all pages, then their values.
template <class Cell> inline const Cell* nth_read(const AttendOver<Cell>& a, int pages, int i) {
  if (i < pages) return a.k[i];
  return a.v[i - pages < pages ? i - pages : pages - 1];
}

// Softmax numerators in place of the scores; returns 1 / sum. Pages in order, lanes that the row does not see are exactly 0. A sink is one
// score more, not capped, which comes before all pages, in lane 0.
inline float softmax(float* s, int first, int position, float cap, const float* sink) {
  const int padded = (position + 16) / 16 * 16;
  if (cap != 0.0f) soft_cap(s, cap, padded);
  for (int t = 0; t < first; t++) s[t] = -std::numeric_limits<float>::infinity();
  for (int t = position + 1; t < padded; t++) s[t] = -std::numeric_limits<float>::infinity();
  const float max = row_max(s, padded);
  const F m = V::set1(sink && *sink > max ? *sink : max);
  F sum = sink ? exp16(V::sub(load_tail(sink, 1), m)) : V::set1(0.0f);
  for (int t = 0; t < padded; t += 16) {
    const F e = exp16(V::sub(V::load(s + t), m));
    V::store(s + t, e);
    sum = V::add(sum, e);
  }
  return 1.0f / V::hsum(sum);
}

// A row's scores so far become weights of its values; returns what all of them are to be multiplied by. With 8 bits the scales of keys and
// values come in here, once for each token: the values' only after the softmax, so beyond the row's position there may be anything.
template <class Cell> inline float to_weights(const AttendOver<Cell>& a, int r, float* s) {
  auto times_scales = [&](const Cell* const* values, int skip) {
    for (int p = 0; p <= a.position[r] / 16; p++) {
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(values[p] + 16 * a.head_dim) + skip;
      V::store(s + 16 * p, V::mul(V::load(s + 16 * p), V::load_half(scales)));
    }
  };
  constexpr bool scaled = std::is_same_v<Cell, int8_t>;
  if constexpr (scaled) times_scales(a.v, 0);
  const float inverse = softmax(s, a.first ? a.first[r] : 0, a.position[r], a.cap, a.sink ? a.sink + r : nullptr);
  if constexpr (scaled) times_scales(a.v, 16);
  return inverse;
}

}  // namespace
}  // namespace quintet
