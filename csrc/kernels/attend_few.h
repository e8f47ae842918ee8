// Attention of up to four query rows: what decoding needs. Keys and values are read once, as they lie. With many sequences they are more
// bytes than the weights, and they come in pieces of 2 KB, which the hardware does not fetch ahead (docs/decisions/0007).
#pragma once
#include <algorithm>
#include "kernels/attend_shared.h"

namespace quintet {
namespace {

// Scores of R query rows against the 16 tokens of each of P pages.
template <int R, int P> inline void page_scores(const Halves& a, int page, int pages, size_t stride) {
  const uint16_t* ahead[P];
  F acc[P][R];
  for (int p = 0; p < P; p++) {
    ahead[p] = nth_read(a, pages, page + p + std::max(kAhead, P));
    for (int r = 0; r < R; r++) acc[p][r] = V::set1(0.0f);
  }
  for (int d = 0; d < a.head_dim; d++) {
    for (int p = 0; p < P; p++) {
      if (16 * d % kLine == 0) fetch(ahead[p] + 16 * d);
      const F k = V::load_half(a.k[page + p] + 16 * d);
      for (int r = 0; r < R; r++) acc[p][r] = V::fma(V::set1(a.q[r][d]), k, acc[p][r]);
    }
  }
  for (int p = 0; p < P; p++)
    for (int r = 0; r < R; r++) V::store(a.scratch + r * stride + 16 * (page + p), acc[p][r]);
}

template <int R, int P> inline void all_scores(const Halves& a, int pages, size_t stride) {
  int page = 0;
  for (; page + P <= pages; page += P) page_scores<R, P>(a, page, pages, stride);
  for (; page < pages; page++) page_scores<R, 1>(a, page, pages, stride);
}

// 16 * B dimensions from d on of R rows, `count` tokens of one page in order. With Fetch, all dimensions of another page are fetched.
template <int R, int B, bool Fetch = false>
inline void weigh_page(const uint16_t* v, int head_dim, const float* scores, size_t stride, int count, F (&acc)[R][B],
                       const uint16_t* ahead = nullptr) {
  for (int t = 0; t < count; t++, v += head_dim) {
    if constexpr (Fetch)
      for (int i = 0; i < head_dim; i += kLine) fetch(ahead + t * head_dim + i);
    F value[B];
    for (int b = 0; b < B; b++) value[b] = V::load_half(v + 16 * b);
    for (int r = 0; r < R; r++) {
      const F s = V::set1(scores[r * stride + t]);
      for (int b = 0; b < B; b++) acc[r][b] = V::fma(s, value[b], acc[r][b]);
    }
  }
}

// Tokens [from, to) of row r alone.
template <int B> inline void weigh_own(const Halves& a, int r, int d, int from, int to, size_t stride, F (&acc)[B]) {
  F own[1][B];
  for (int b = 0; b < B; b++) own[0][b] = acc[b];
  for (int page = from / 16, t = from, end; t < to; page++, t = end) {
    end = std::min(16 * page + 16, to);
    weigh_page<1, B>(a.v[page] + (t - 16 * page) * a.head_dim + d, a.head_dim, a.scratch + size_t(r) * stride + t, stride, end - t, own);
  }
  for (int b = 0; b < B; b++) acc[b] = own[0][b];
}

template <int R, int B> inline void weigh(const Halves& a, const Seen<R>& seen, const float* inverse, int d, int pages, size_t stride) {
  F acc[R][B];
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) acc[r][b] = V::set1(0.0f);
    if (R > 1) weigh_own(a, r, d, seen.begin[r], seen.before(r), stride, acc[r]);
  }
  for (int page = seen.from / 16, t = seen.from, end; t < seen.to; page++, t = end) {
    end = std::min(16 * page + 16, seen.to);
    const uint16_t* v = a.v[page] + (t - 16 * page) * a.head_dim + d;
    if (!d) weigh_page<R, B, true>(v, a.head_dim, a.scratch + t, stride, end - t, acc, nth_read(a, pages, pages + page + kAhead));
    else weigh_page<R, B>(v, a.head_dim, a.scratch + t, stride, end - t, acc);
  }
  for (int r = 0; r < R; r++) {
    if (R > 1) weigh_own(a, r, d, seen.to, seen.end[r], stride, acc[r]);
    for (int b = 0; b < B; b++) V::store(a.out[r] + d + 16 * b, V::mul(acc[r][b], V::set1(inverse[r])));
  }
}

// R rows, and of them P pages or B blocks of 16 dimensions side by side: at least 8 chains of registers keep the FMA units busy. Where 8
// values of F are all registers, three rows are 6 chains, as 12 do not fit with their operands.
template <int R, int P, int B> void attend_rows(const Halves& a) {
  const int pages = *std::max_element(a.position, a.position + R) / 16 + 1;
  const size_t stride = size_t(pages) * 16;
  all_scores<R, P>(a, pages, stride);
  float inverse[R];
  for (int r = 0; r < R; r++) inverse[r] = softmax(a, r, a.scratch + r * stride);
  const Seen<R> seen(a, 0, 0, 16 * pages);
  int d = 0;
  for (; d + 16 * B <= a.head_dim; d += 16 * B) weigh<R, B>(a, seen, inverse, d, pages, stride);
  for (; d < a.head_dim; d += 16) weigh<R, 1>(a, seen, inverse, d, pages, stride);
}

constexpr int kFewRows = 4;

inline void attend_few(const Halves& a) {
  switch (a.rows) {
    case 1: return attend_rows<1, 4, 4>(a);
    case 2: return attend_rows<2, kWide ? 4 : 2, kWide ? 4 : 2>(a);
    case 3: return attend_rows<3, kSide, kSide>(a);
    default: return attend_rows<4, kSide, kSide>(a);
  }
}

}  // namespace
}  // namespace quintet
