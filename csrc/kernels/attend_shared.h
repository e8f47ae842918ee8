// What the ways of attention share (attend.h).
#pragma once
#include <algorithm>
#include <limits>
#include "kernels/kernels_impl.h"
#include "kernels/prefetch.h"

namespace quintet {
namespace {

using Halves = AttendOver<uint16_t>;

constexpr bool kWide = V::kRegisters >= 32;
constexpr int kSide = kWide ? 4 : 1;      // pages, or blocks of 16 dimensions, that several rows do side by side
constexpr int kExpPages = kWide ? 8 : 3;  // whose exponentials go side by side; fewer at the end
constexpr int kAhead = 3;                 // pages from the one that is computed to the one that is fetched
constexpr int kLine = 32;                 // cells of fp16 in a line of the cache

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the score of what a row does not see

// What is read: the keys of all pages, then their values.
template <class Cell> inline const Cell* nth_read(const AttendOver<Cell>& a, int pages, int i) {
  if (i < pages) return a.k[i];
  return a.v[i - pages < pages ? i - pages : pages - 1];
}

template <int R, class Tile> inline void with_rows(int rows, Tile tile) {
  if (rows == R) return tile.template operator()<R>();
  if constexpr (R > 1) with_rows<R - 1>(rows, tile);
}

// each<blocks of 16 dimensions>(first dimension) for all of a head's.
template <class Each> inline void each_dimensions(int head_dim, Each each) {
  int d = 0;
  for (; d + 16 * kSide <= head_dim; d += 16 * kSide) each.template operator()<kSide>(d);
  if constexpr (kSide > 1)
    for (; d < head_dim; d += 16) each.template operator()<1>(d);
}

// Of the tokens [low, high) those that R rows see: what one does not see has no part in it, not even one of 0, as 0 times infinity is none.
template <int R> struct Seen {
  int begin[R], end[R];  // each row's
  int from, to;          // what all of them see, between what only some do

  Seen(const Halves& a, int row, int low, int high) : from(low), to(high) {
    for (int r = 0; r < R; r++) {
      begin[r] = a.first ? std::clamp(a.first[row + r], low, high) : low;
      end[r] = std::clamp(a.position[row + r] + 1, low, high);
      from = std::max(from, begin[r]);
      to = std::min(to, end[r]);
    }
    to = std::max(from, to);
  }
  int before(int r) const { return std::min(from, end[r]); }  // the end of its own that comes before
};

// A row's softmax before its first exponential: what each score is less of, and the sum so far.
struct Softmax {
  F max, sum;
};

// Row r's scores are capped, and become -infinity where it does not see. A sink is one score more, not capped, which comes before all
// pages, in lane 0. Of the first `known` scores, if they are neither capped nor hidden, `most` is the greatest.
template <class Cell> inline Softmax softmax_begin(const AttendOver<Cell>& a, int r, float* s, int known = 0, float most = kNone) {
  const int position = a.position[r], padded = (position + 16) / 16 * 16;
  if (a.cap != 0.0f) soft_cap(s, a.cap, padded);
  for (int t = 0; a.first && t < a.first[r]; t++) s[t] = kNone;
  for (int t = position + 1; t < padded; t++) s[t] = kNone;
  const float max = std::max(most, row_max(s + known, padded - known)), *sink = a.sink ? a.sink + r : nullptr;
  const F m = V::set1(sink && *sink > max ? *sink : max);
  return {m, sink ? exp16(V::sub(load_tail(sink, 1), m)) : V::set1(0.0f)};
}

// Of N pages at a time, as long as there are so many: exp(score - max) in their place, and `sum` grows by them.
template <int N> inline void exp_pages(float*& scores, const float* end, F max, F& sum) {
  F all = sum;
  float* s = scores;
  for (; end - s >= 16 * N; s += 16 * N) {
    F e[N];
    for (int i = 0; i < N; i++) e[i] = V::sub(V::load(s + 16 * i), max);
    exp_each(e);
    for (int i = 0; i < N; i++) {
      V::store(s + 16 * i, e[i]);
      all = V::add(all, e[i]);
    }
  }
  scores = s;
  sum = all;
}

// A row's scores become the numerators of their softmax; returns 1 / sum. Pages in order, lanes that the row does not see are exactly 0.
inline float softmax(const Halves& a, int r, float* s, int known = 0, float most = kNone) {
  auto [max, sum] = softmax_begin(a, r, s, known, most);
  const float* end = s + (a.position[r] + 16) / 16 * 16;
  exp_pages<kExpPages>(s, end, max, sum);
  exp_pages<2>(s, end, max, sum);
  exp_pages<1>(s, end, max, sum);
  return 1.0f / V::hsum(sum);
}

}  // namespace
}  // namespace quintet
