// Attention over keys and values of 8 bits, in integers: what is added up is exact, so tiles, threads and instruction sets may take any
// order.
//
//   query       q  = qs * Q                                Q of 15 bits, a scale a row
//   score       s  = (Q . K) * qs * ks                     K of 8 bits, a scale ks a token
//   weight      w  = exp(s - max) * vs = ws * W            W of 14 bits, a scale ws for a block of 128 tokens;
//                                                          vs: the token's scale of its value
//   output      o += (sum over the block of W * V) * ws    V of 8 bits; floats only here, in the order of the blocks
//
// Blocks begin at multiples of 128 of the sequence: so they are the same in any chunks. What a row does not see has the weight 0, and rows
// that end at different tokens go together. Q and W are in parts that the instruction set multiplies with bytes (V::kParts), which go one
// after the other into the same sums. Cells have an offset of 128; what it adds is the same for all columns of a row, and sums begin with
// the negative of it (V::start). docs/decisions/0061-attention-in-integers.md.
#pragma once
#include <algorithm>
#include <cstring>
#include "kernels/attend_shared.h"

namespace quintet {
namespace {

using Bytes = AttendOver<uint8_t>;
using I = V::I;

constexpr int kBlockPages = 8;
constexpr int kBytesAhead = 2 * kAhead, kScalesAhead = 16;  // pages from the one that is computed to the one that is fetched
constexpr int kByteRows = kWide ? 6 : 4;                    // whose sums stay in registers: 6 x 4 of 16 lanes, or 4 x 1
constexpr float kQueryMost = 16383, kWeightMost = 16383;
constexpr float kMostScore = 1 << 30;   // log2(e) times a larger one is rounded by more than exponents go up to: it is subtracted first
constexpr float kLeastQuery = 5e-35f;   // below it 16383 / query need not be finite, and it is quantised to 0
constexpr float kLeastWeight = 1e-30f;  // below it a block weighs nothing, and 16383 / weight need not be finite

// Numbers of a row as they are multiplied: their parts, what sums begin with, and what these are to be multiplied by.
struct Numbers {
  const int8_t* parts;
  int32_t total;
  float scale;
};

// Parts take as much as `count / 2` floats, total and scale are the next two: so a block's weights have room where its scores have been.
inline void put_numbers(float* scores, int count, int32_t total, float scale) {
  std::memcpy(scores + count / 2, &total, 4);
  scores[count / 2 + 1] = scale;
}
inline Numbers get_numbers(const float* from, int count) {
  Numbers n{reinterpret_cast<const int8_t*>(from), 0, from[count / 2 + 1]};
  std::memcpy(&n.total, from + count / 2, 4);
  return n;
}

// A query in 15 bits. One that is not finite is NaN in all its scores.
inline void quantize_query(const float* q, int n, float* to) {
  const float most = largest_magnitude(q, n), inverse = most > kLeastQuery ? kQueryMost / most : 0.0f;
  I total = V::set1_int(0);
  for (int i = 0; i < n; i += 16) {
    const F v = std::isnan(most) ? V::set1(0.0f) : V::mul(V::load(q + i), V::set1(inverse));
    total = V::add_int(total, V::store_parts<1>(reinterpret_cast<int8_t*>(to), n, i, &v));
  }
  put_numbers(to, n, V::total(total), most / kQueryMost);
}

// sums[r][c] += the products of R rows' numbers, `groups` fours of them, with C columns of cells, of which cells(g, c) is where the group
// lies.
template <int R, int C, class Cells> inline void multiply(const Numbers (&rows)[R], int groups, Cells cells, I (&sums)[R][C]) {
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = V::start(rows[r].total);
  const int8_t* parts[R];
  for (int r = 0; r < R; r++) parts[r] = rows[r].parts;
  for (int part = 0; part < V::kParts; part++) {
    if (part)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = V::next_part(sums[r][c]);
    for (int g = 0; g < groups; g++) {
      V::Cells column[C];
      for (int c = 0; c < C; c++) column[c] = V::load_cells(cells(g, c, part));
      for (int r = 0; r < R; r++) {
        const V::Four four = V::load_four(parts[r]);
        parts[r] += V::kFour;
        for (int c = 0; c < C; c++) sums[r][c] = V::dot(sums[r][c], column[c], four);
      }
    }
  }
}

// Where in the scratch what lies: scores, which become weights, [rows][stride]; the scales of keys and of values, [stride] each; each row's
// query; what each row's outputs are to be multiplied by.
struct Room {
  int pages;
  size_t stride, query_size;
  float *scores, *key_scales, *value_scales, *queries, *inverse;
  bool sound;  // whether all scales are finite

  explicit Room(const Bytes& a)
      : pages(*std::max_element(a.position, a.position + a.rows) / 16 + 1), stride(attend_stride(pages)),
        query_size(attend8_query(a.head_dim)), scores(a.scratch), key_scales(scores + size_t(a.rows) * stride),
        value_scales(key_scales + stride), queries(value_scales + stride), inverse(queries + size_t(a.rows) * query_size), sound(true) {}
  float* query(int r) const { return queries + size_t(r) * query_size; }
};

inline const uint16_t* scales_of(const Bytes& a, int page) { return reinterpret_cast<const uint16_t*>(a.v[page] + 16 * a.head_dim); }

// As floats, once for all rows. A token beyond the last position may have anything, and a later row's may not be finite: it is 0 here, and
// told apart.
inline void load_scales(const Bytes& a, Room& room) {
  const F zero = V::set1(0.0f);
  F poison = zero;
  for (int p = 0; p < room.pages; p++) {
    const uint16_t* scales = scales_of(a, p);
    fetch(scales_of(a, std::min(p + kScalesAhead, room.pages - 1)));
    const F of_keys = V::load_half(scales), of_values = V::load_half(scales + 16);
    poison = V::fma(of_keys, zero, V::fma(of_values, zero, poison));
    V::store(room.key_scales + 16 * p, of_keys);
    V::store(room.value_scales + 16 * p, of_values);
  }
  room.sound = V::hsum(poison) == 0.0f;
  for (int t = 0; !room.sound && t < 16 * room.pages; t++)
    if (!std::isfinite(room.value_scales[t])) room.value_scales[t] = 0.0f;
}

// Whether a row sees a key or a value that is not finite.
inline bool sees_unsound(const Bytes& a, int r) {
  for (int t = a.first ? a.first[r] : 0; t <= a.position[r]; t++)
    for (int i = t % 16; i < 32; i += 16)
      if ((scales_of(a, t / 16)[i] & 0x7c00) == 0x7c00) return true;
  return false;
}

// Scores of R rows against P pages from `page` on.
template <int R, int P, bool Fetch>
inline void byte_scores(const Bytes& a, const Room& room, int from, int page) {
  Numbers q[R];
  for (int r = 0; r < R; r++) q[r] = get_numbers(room.query(from + r), a.head_dim);
  const uint8_t *keys[P], *ahead[P];
  for (int p = 0; p < P; p++) keys[p] = a.k[page + p], ahead[p] = nth_read(a, room.pages, page + p + kBytesAhead);
  I sums[R][P];
  multiply<R, P>(
      q, a.head_dim / 4,
      [&](int g, int p, int part) {
        if (Fetch && !part) fetch(ahead[p] + 64 * g);
        return keys[p] + 64 * g;
      },
      sums);
  for (int p = 0; p < P; p++) {
    const F scale = V::load(room.key_scales + 16 * (page + p));
    for (int r = 0; r < R; r++)
      V::store(room.scores + size_t(from + r) * room.stride + 16 * (page + p),
               V::mul(V::mul(V::to_float(sums[r][p]), V::set1(q[r].scale)), scale));
  }
}

// The first page of the block that follows the one of `page`.
inline int next_block(const Bytes& a, int page) { return (page + a.lead) / kBlockPages * kBlockPages + kBlockPages - a.lead; }

// 2^y for y <= 127, to 3e-6 of it, which is a tenth of what a weight is rounded by; exactly 0 from -127 down, and of what is no number.
inline F power_of_2(F y) {
  y = V::max(y, V::set1(-127.0f));
  const F n = V::round(y), f = V::sub(y, n);
  F p = V::set1(9.5828532355e-03f);
  p = V::fma(p, f, V::set1(5.5906426153e-02f));
  p = V::fma(p, f, V::set1(2.4024098616e-01f));
  p = V::fma(p, f, V::set1(6.9312419326e-01f));
  p = V::fma(p, f, V::set1(1.0f));
  return V::mul(p, V::pow2(n));
}

// Of a block of a row: its pages, how many of them the row sees, and the largest of its weights.
struct Weights {
  int page, count, seen;
  float top;
};

// Scores become weights as floats, where they lie; `sum` grows by the exponentials.
inline void exponentials(const Room& room, float* row, Weights& block, F per_score, F shift, F& sum) {
  float* scores = row + 16 * block.page;
  const float* scales = room.value_scales + 16 * block.page;
  F most = V::set1(0.0f);
  for (int i = 0; i < 16 * block.seen; i += 16) {
    const F e = power_of_2(V::fma(V::load(scores + i), per_score, shift)), weight = V::mul(e, V::load(scales + i));
    sum = V::add(sum, e);
    most = V::max(weight, most);
    V::store(scores + i, weight);
  }
  block.top = V::hmax(most);
}

// Weights as floats become numbers, of N pages: all are read before the first is written, as these lie closer together.
template <int N> inline void quantize_weights(float* weights, const Weights& block) {
  const float inverse = block.top > kLeastWeight ? kWeightMost / block.top : 0.0f;
  F w[N];
  for (int p = 0; p < N; p++) w[p] = p < block.seen ? V::mul(V::load(weights + 16 * p), V::set1(inverse)) : V::set1(0.0f);
  I total = V::set1_int(0);
  constexpr int step = N % 4 ? 1 : 4;
  for (int p = 0; p < N; p += step)
    total = V::add_int(total, V::store_parts<step>(reinterpret_cast<int8_t*>(weights), 16 * N, 16 * p, w + p));
  put_numbers(weights, 16 * N, V::total(total), inverse != 0.0f ? block.top / kWeightMost : 0.0f);
}

// Row r's scores become the weights of all blocks; returns what the row's outputs are to be multiplied by. Some blocks at a time have first
// their exponentials and then their numbers: one alone waits for its largest weight in between.
inline float to_weights(const Bytes& a, const Room& room, int r) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr int most_blocks = 8;
  float* row = room.scores + size_t(r) * room.stride;
  auto [max, sum] = softmax_begin(a, r, row);
  if (std::fabs(V::hmax(max)) > kMostScore) {
    for (int i = 0; i <= a.position[r]; i += 16) V::store(row + i, V::sub(V::load(row + i), max));
    max = V::set1(0.0f);
  }
  const F per_score = V::set1(log2_e), shift = V::mul(max, V::set1(-log2_e));
  Weights blocks[most_blocks];
  for (int page = 0; page < room.pages;) {
    int count = 0;
    for (; page < room.pages && count < most_blocks; count++) {
      const int end = std::min(next_block(a, page), room.pages), seen = std::clamp(a.position[r] / 16 + 1 - page, 0, end - page);
      blocks[count] = {page, end - page, seen, 0.0f};
      exponentials(room, row, blocks[count], per_score, shift, sum);
      page = end;
    }
    for (const Weights* block = blocks; block < blocks + count; block++)
      with_rows<kBlockPages>(block->count, [&]<int N>() { quantize_weights<N>(row + 16 * block->page, *block); });
  }
  const bool sound = std::isfinite(get_numbers(room.query(r), a.head_dim).scale) && (room.sound || !sees_unsound(a, r));
  return sound ? 1.0f / V::hsum(sum) : std::numeric_limits<float>::quiet_NaN();
}

// The part of `count` pages from `page` on, a block, in 16 * B dimensions of R rows, on top of what is in `out`; nothing yet if it is the
// first.
template <int R, int B, bool Fetch> inline void byte_values(const Bytes& a, const Room& room, int from, int page, int count, int d) {
  Numbers w[R];
  for (int r = 0; r < R; r++) w[r] = get_numbers(room.scores + size_t(from + r) * room.stride + 16 * page, 16 * count);
  I sums[R][B];
  multiply<R, B>(
      w, 4 * count,
      [&](int g, int b, int part) {
        const int at = 4 * (g % 4 * a.head_dim + d + 16 * b);
        if (Fetch && !part) fetch(nth_read(a, room.pages, room.pages + page + g / 4 + kBytesAhead) + at);
        return a.v[page + g / 4] + at;
      },
      sums);
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) {
      float* out = a.out[from + r] + d + 16 * b;
      V::store(out, V::fma(V::to_float(sums[r][b]), V::set1(w[r].scale), page ? V::load(out) : V::set1(0.0f)));
    }
}

// Of `count` pages those that any of R rows sees.
template <int R> inline int seen_pages(const Bytes& a, int from, int page, int count) {
  return std::min(count, *std::max_element(a.position + from, a.position + from + R) / 16 + 1 - page);
}

template <int R, bool Fetch> inline void rows_scores(const Bytes& a, const Room& room, int from, int page, int count) {
  const int seen = seen_pages<R>(a, from, page, count);
  for (int p = 0; p < seen; p += kSide)
    with_rows<kSide>(std::min(kSide, seen - p), [&]<int P>() { byte_scores<R, P, Fetch>(a, room, from, page + p); });
}

template <int R, bool Fetch> inline void rows_values(const Bytes& a, const Room& room, int from, int page, int count) {
  if (seen_pages<R>(a, from, page, count) <= 0) return;
  each_dimensions(a.head_dim, [&]<int B>(int d) { byte_values<R, B, Fetch>(a, room, from, page, count, d); });
}

// each<rows, whether these are the first, which fetch what is read next>(from, page, count) for all blocks and in each all rows, a few at a
// time.
template <class Each> inline void all_blocks(const Bytes& a, int pages, Each each) {
  for (int page = 0, end; page < pages; page = end) {
    end = std::min(next_block(a, page), pages);
    for (int from = 0; from < a.rows; from += kByteRows)
      with_rows<kByteRows>(std::min(kByteRows, a.rows - from), [&]<int R>() {
        if (from) each.template operator()<R, false>(from, page, end - page);
        else each.template operator()<R, true>(from, page, end - page);
      });
  }
}

inline void finish(const Bytes& a, const Room& room) {
  for (int r = 0; r < a.rows; r++)
    for (int d = 0; d < a.head_dim; d += 16) V::store(a.out[r] + d, V::mul(V::load(a.out[r] + d), V::set1(room.inverse[r])));
}

inline void attend_bytes(const Bytes& a) {
  Room room(a);
  load_scales(a, room);
  for (int r = 0; r < a.rows; r++) quantize_query(a.q[r], a.head_dim, room.query(r));
  all_blocks(a, room.pages, [&]<int R, bool Fetch>(int from, int page, int count) { rows_scores<R, Fetch>(a, room, from, page, count); });
  for (int r = 0; r < a.rows; r++) room.inverse[r] = to_weights(a, room, r);
  all_blocks(a, room.pages, [&]<int R, bool Fetch>(int from, int page, int count) { rows_values<R, Fetch>(a, room, from, page, count); });
  finish(a, room);
}

}  // namespace
}  // namespace quintet
