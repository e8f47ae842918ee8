// Attention of many query rows over the pages of one KV head: what a prompt needs. Once, over the 16-lane type V of the including file.
//
// The keys of a block of pages are made floats once and stay in the first-level cache while every row's scores are computed from them; when
// all scores are there, the softmax; then the same with the values:
//
//   for each block: keys as [dimension][page][16 tokens]      for each 6 rows: scores of 4 pages, or as many as they see, 24 chains of FMAs
//                                                             and, while they are in registers, the greatest of each row so far
//   for each row:   softmax of its scores
//   for each block: values as [token][dimension]              for each 6 rows: 4 x 16 dimensions, 24 chains that go on from `out`
//
// Of a block that they all see, the first 6 rows make the floats while they use them: conversions and stores take other units than FMAs do.
// One output is the same chain of FMAs as in attend_few.h, in the order of dimensions or tokens, so the bits are the same however rows are
// put together. Instruction sets whose registers hold fewer lanes do one page, or one block of 16 dimensions, at a time.
#pragma once
#include <algorithm>
#include "kernels/attend_shared.h"

namespace quintet {
namespace {

constexpr int kTileRows = 6;  // 6 x 4 sums, 4 operands and a query fit into 32 registers, 6 x 1 into 8
static_assert(kAttendPages % 4 == 0 && 4 % kSide == 0);

// Cells [i, i + 16) of a page become floats; those of a page that is read later are fetched.
inline F widen(const uint16_t* cells, const uint16_t* ahead, int i, float* out) {
  if (i % kLine == 0) fetch(ahead + i);
  const F x = V::load_half(cells + i);
  V::store(out, x);
  return x;
}

// Keys of `count` pages from `page` on as [count / kSide][head_dim][kSide][16]; places beyond the last page hold nothing.
inline void widen_keys(const Halves& a, int page, int pages, int count, float* out) {
  for (int group = 0; group < count; group += kSide)
    for (int p = 0; p < std::min(kSide, count - group); p++) {
      const int i = page + group + p;
      const uint16_t *keys = a.k[i], *ahead = nth_read(a, pages, i + kAhead);
      float* to = out + size_t(group) * size_t(a.head_dim) * 16 + 16 * p;
      for (int d = 0; d < a.head_dim; d++, to += 16 * kSide) widen(keys, ahead, 16 * d, to);
    }
}

// Values of the tokens of `count` pages from `page` on as [token][head_dim].
inline void widen_values(const Halves& a, int page, int pages, int count, float* out) {
  const int size = 16 * a.head_dim;
  for (int p = 0; p < count; p++, out += size) {
    const uint16_t *values = a.v[page + p], *ahead = nth_read(a, pages, pages + page + p + kAhead);
    for (int i = 0; i < size; i += 16) widen(values, ahead, i, out + i);
  }
}

// How many pages all rows of a tile see whole.
inline int pages_seen(const Halves& a, int from) {
  return (*std::min_element(a.position + from, a.position + std::min(from + kTileRows, a.rows)) + 1) / 16;
}

// Of these the ones whose scores the softmax takes as they are, so that their maximum is known with them: a pass less over scores that fill
// the second-level cache.
inline int pages_known(const Halves& a, int from) { return a.first || a.cap != 0.0f ? 0 : pages_seen(a, from) / kSide * kSide; }

// Scores of R rows against P pages; key(d, p) are dimension d's of page p. `most`: null, or [R][16] maxima, which these are taken into.
template <int R, int P, class Key> inline void tile_scores(const float* const* queries, Key key, int head_dim, float* scores, size_t stride,
                                                           float* most) {
  F acc[R][P];
  const float* q[R];
  for (int r = 0; r < R; r++) {
    q[r] = queries[r];
    for (int p = 0; p < P; p++) acc[r][p] = V::set1(0.0f);
  }
  for (int d = 0; d < head_dim; d++) {
    F k[P];
    for (int p = 0; p < P; p++) k[p] = key(d, p);
    for (int r = 0; r < R; r++) {
      const F x = V::set1(q[r][d]);
      for (int p = 0; p < P; p++) acc[r][p] = V::fma(x, k[p], acc[r][p]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P; p++) V::store(scores + size_t(r) * stride + 16 * p, acc[r][p]);
  if (!most) return;
  for (int r = 0; r < R; r++, most += 16) {
    F m = V::load(most);
    for (int p = 0; p < P; p++) m = V::max(acc[r][p], m);
    V::store(most, m);
  }
}

// `count` tokens, in order, on top of what B blocks of 16 dimensions of R rows have in `out`. value(t, b) are dimensions d + 16 * b of
// token t.
template <int R, int B, class Value>
inline void tile_values(Value value, const float* weights, size_t stride, int count, float* const* out, int d) {
  F acc[R][B];
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) acc[r][b] = V::load(out[r] + d + 16 * b);
  for (int t = 0; t < count; t++) {
    F v[B];
    for (int b = 0; b < B; b++) v[b] = value(t, b);
    for (int r = 0; r < R; r++) {
      const F w = V::set1(weights[size_t(r) * stride + size_t(t)]);
      for (int b = 0; b < B; b++) acc[r][b] = V::fma(w, v[b], acc[r][b]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) V::store(out[r] + d + 16 * b, acc[r][b]);
}

template <int R>
inline void tokens_values(const float* values, int head_dim, const float* weights, size_t stride, int count, float* const* out) {
  each_dimensions(head_dim, [&]<int B>(int d) {
    const auto value = [&](int t, int b) { return V::load(values + t * head_dim + d + 16 * b); };
    tile_values<R, B>(value, weights, stride, count, out, d);
  });
}

// The first tile's scores against a block that all of its rows see. The keys become what widen_keys makes of them.
inline void first_scores(const Halves& a, int page, int count, int pages, float* keys, size_t stride, float* most) {
  if (page >= pages_known(a, 0)) most = nullptr;
  for (int group = page; group < page + count; group += kSide, keys += size_t(16 * kSide) * size_t(a.head_dim)) {
    const uint16_t *from[kSide], *ahead[kSide];
    for (int p = 0; p < kSide; p++) {
      from[p] = a.k[group + p];
      ahead[p] = nth_read(a, pages, group + p + kAhead);
    }
    const auto key = [&](int d, int p) { return widen(from[p], ahead[p], 16 * d, keys + 16 * (kSide * d + p)); };
    tile_scores<kTileRows, kSide>(a.q, key, a.head_dim, a.scratch + 16 * group, stride, most);
  }
}

// Likewise its part of the outputs, and the values.
inline void first_values(const Halves& a, int page, int count, int pages, float* values, size_t stride) {
  const int size = 16 * a.head_dim;
  for (int p = page; p < page + count; p++, values += size) {
    const uint16_t *from = a.v[p], *ahead = nth_read(a, pages, pages + p + kAhead);
    each_dimensions(a.head_dim, [&]<int B>(int d) {
      const auto value = [&](int t, int b) {
        const int i = t * a.head_dim + d + 16 * b;
        return widen(from, ahead, i, values + i);
      };
      tile_values<kTileRows, B>(value, a.scratch + 16 * p, stride, 16, a.out, d);
    });
  }
}

// A block's part of the outputs of R rows.
template <int R>
inline void block_values(const Halves& a, int row, int token, int count, const float* values, size_t stride) {
  const auto part = [&]<int N>(int r, int from, int to) {
    tokens_values<N>(values + (from - token) * a.head_dim, a.head_dim, a.scratch + size_t(r) * stride + from, stride, to - from, a.out + r);
  };
  const Seen<R> seen(a, row, token, token + count);
  for (int r = 0; r < R; r++)
    if (seen.begin[r] < seen.before(r)) part.template operator()<1>(row + r, seen.begin[r], seen.before(r));
  if (seen.from < seen.to) part.template operator()<R>(row, seen.from, seen.to);
  for (int r = 0; r < R; r++)
    if (seen.to < seen.end[r]) part.template operator()<1>(row + r, seen.to, seen.end[r]);
}

// The scratch is [rows][stride] scores, then a block of keys or values, then [rows][16] maxima of scores, then what rows' outputs are
// multiplied by: see attend_scratch.
inline void attend_block(const Halves& a) {
  const int last = *std::max_element(a.position, a.position + a.rows), pages = last / 16 + 1, block_pages = attend_block_pages(a.head_dim);
  const size_t stride = attend_stride(pages), dim = size_t(a.head_dim);
  float *block = a.scratch + size_t(a.rows) * stride, *most = block + size_t(kAttendPages) * 16 * dim,
        *inverse = most + 16 * size_t(a.rows);
  const auto tiles = [&](int first, auto each) {
    for (int from = first; from < a.rows; from += kTileRows)
      with_rows<kTileRows>(std::min(kTileRows, a.rows - from), [&]<int R>() { each.template operator()<R>(from); });
  };
  // Before this page are whole blocks that all rows of a first tile see.
  const int whole = a.rows < kTileRows ? 0 : pages_seen(a, 0) / block_pages * block_pages;
  std::fill_n(most, 16 * a.rows, kNone);
  for (int page = 0; page < pages; page += block_pages) {
    const int count = std::min(block_pages, pages - page);
    if (page < whole) first_scores(a, page, count, pages, block, stride, most);
    else widen_keys(a, page, pages, count, block);
    tiles(page < whole ? kTileRows : 0, [&]<int R>(int from) {
      const int seen = *std::max_element(a.position + from, a.position + from + R) / 16 + 1 - page, known = pages_known(a, from) - page;
      for (int p = 0; p < std::min(count, seen); p += kSide) {
        const float* keys = block + size_t(p) * dim * 16;
        const auto key = [&](int d, int i) { return V::load(keys + 16 * (kSide * d + i)); };
        float* scores = a.scratch + size_t(from) * stride + 16 * (page + p);
        float* into = p < known ? most + 16 * from : nullptr;
        with_rows<kSide>(std::min(kSide, seen - p), [&]<int P>() { tile_scores<R, P>(a.q + from, key, a.head_dim, scores, stride, into); });
      }
    });
  }
  for (int r = 0; r < a.rows; r++) {
    const int known = 16 * pages_known(a, r / kTileRows * kTileRows);
    inverse[r] = softmax(a, r, a.scratch + size_t(r) * stride, known, V::hmax(V::load(most + 16 * r)));
  }
  const int begun = a.first ? *std::max_element(a.first, a.first + std::min(kTileRows, a.rows)) : 0;
  for (int r = 0; r < a.rows; r++) std::fill_n(a.out[r], a.head_dim, 0.0f);
  for (int page = 0; page < pages; page += block_pages) {
    const int count = std::min(block_pages, pages - page);
    const bool first = page < whole && 16 * page >= begun;
    if (first) first_values(a, page, count, pages, block, stride);
    else widen_values(a, page, pages, count, block);
    tiles(first ? kTileRows : 0, [&]<int R>(int from) { block_values<R>(a, from, 16 * page, 16 * count, block, stride); });
  }
  for (int r = 0; r < a.rows; r++)
    for (int d = 0; d < a.head_dim; d += 16) V::store(a.out[r] + d, V::mul(V::load(a.out[r] + d), V::set1(inverse[r])));
}

}  // namespace
}  // namespace quintet
