// Attention over cells of both types: any number of rows, windows, caps, sinks and sizes of heads; and that a row alone has the bits that
// it has among others, whatever lies beyond its position.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include "kernels/kernels.h"
#include "memory.h"
#include "tests/digest.h"

namespace quintet {
namespace {

struct Pages16 {
  int head_dim;
  std::vector<std::vector<uint16_t>> cells;  // of a page: keys, then values
  std::vector<const uint16_t*> keys, values;

  Pages16(Random& r, int pages, int head_dim) : head_dim(head_dim) {
    for (int p = 0; p < pages; p++) {
      auto& page = cells.emplace_back(size_t(2 * 16 * head_dim));
      for (auto& cell : page) cell = uint16_t(r.below(2) << 15 | (0x2800 + r.below(0x1800)));  // 1/32 to 2, of either sign
      keys.push_back(page.data());
      values.push_back(page.data() + 16 * head_dim);
    }
    for (int d = 0; d < head_dim; d++) cells.back()[size_t(16 * d + 15)] = cells.back()[size_t(31 * head_dim + d)] = 0x7e00;
  }
};

struct Pages8 {
  int head_dim;
  std::vector<std::vector<uint16_t>> cells;  // of a page: keys, values, then the scales of both
  std::vector<const uint8_t*> keys, values;

  Pages8(Random& r, int pages, int head_dim) : head_dim(head_dim) {
    for (int p = 0; p < pages; p++) {
      auto& page = cells.emplace_back(size_t(16 * head_dim + 32));
      for (auto& two : page) two = uint16_t((1 + r.below(255)) << 8 | (1 + r.below(255)));  // an offset of 128: never 0
      for (int i = 0; i < 32; i++) scale(p, i) = uint16_t(0x2000 + r.below(0x800));         // 0.008 to 0.03
      keys.push_back(reinterpret_cast<const uint8_t*>(page.data()));
      values.push_back(keys.back() + 16 * head_dim);
    }
  }
  uint16_t& scale(int page, int i) { return cells[size_t(page)][size_t(16 * head_dim + i)]; }
};

// Of pages up to `tokens`, of which no row sees the last; the first rows end one after the other, as those of a prompt do.
struct Rows {
  std::vector<std::vector<float>> queries;
  std::vector<int> position, first;
  std::vector<float> sinks;

  Rows(Random& r, int count, int dim, int tokens) {
    for (int i = 0; i < count; i++) {
      queries.push_back(r.floats(size_t(dim), 2.0f));
      position.push_back(i < 20 ? 260 + i : r.below(tokens - 1));
      first.push_back(std::max(0, position.back() - 150));
      sinks.push_back(r.real(3.0f));
    }
    queries[3].assign(size_t(dim), 0.0f);
  }
};

struct Way {
  bool window, sink;
  float cap;
  explicit Way(int variant) : window(variant & 1), sink(variant & 4), cap(variant & 2 ? 20.0f : 0.0f) {}
};

inline void attend(const Kernels& k, const AttendOver<uint16_t>& a) { k.attend(a); }
inline void attend(const Kernels& k, const AttendOver<uint8_t>& a) { k.attend8(a); }
inline size_t room(const Pages16& pages, int rows) { return attend_scratch(rows, int(pages.keys.size()), pages.head_dim); }
inline size_t room(const Pages8& pages, int rows) { return attend8_scratch(rows, int(pages.keys.size()), pages.head_dim); }

// Rows [from, to) over the pages from `skipped` on: outputs, one after the other.
template <class Pages> std::vector<float> attend_rows(const Kernels& k, const Pages& pages, const Rows& rows, int from, int to, int skipped,
                                                      Way way) {
  const int n = to - from, dim = pages.head_dim;
  std::vector<int> position, first;
  std::vector<const float*> q;
  std::vector<float> result(size_t(n * dim));
  FloatLines scratch(room(pages, n));
  std::vector<float*> out;
  for (int r = from; r < to; r++) {
    q.push_back(rows.queries[size_t(r)].data());
    position.push_back(rows.position[size_t(r)] - 16 * skipped);
    first.push_back(rows.first[size_t(r)] - 16 * skipped);
    out.push_back(result.data() + (r - from) * dim);
  }
  attend(k, {q.data(), position.data(), way.window ? first.data() : nullptr, n, dim, way.cap, way.sink ? rows.sinks.data() + from : nullptr,
             pages.keys.data() + skipped, pages.values.data() + skipped, skipped, scratch.data(), out.data()});
  return result;
}

// All rows at once: each as if it were alone.
template <class Pages> std::vector<float> attend_all(const Kernels& k, const Pages& pages, const Rows& rows, Way way) {
  const int count = int(rows.position.size()), dim = pages.head_dim;
  const auto all = attend_rows(k, pages, rows, 0, count, 0, way);
  const auto others = attend_rows(k, pages, rows, 20, count, 0, way);  // without the rows in front, which all see the same blocks
  for (int i = 0; i < count; i++) {
    const int skipped = way.window ? rows.first[size_t(i)] / 16 : 0;
    const auto alone = attend_rows(k, pages, rows, i, i + 1, skipped, way);
    if (std::memcmp(alone.data(), all.data() + i * dim, alone.size() * 4) != 0 ||
        (i >= 20 && std::memcmp(alone.data(), others.data() + (i - 20) * dim, alone.size() * 4) != 0))
      std::fprintf(stderr, "ALONE %s: row %d\n", k.name, i), std::abort();
  }
  return all;
}

constexpr int kAttentionPages = 21, kAttentionRows = 29;

constexpr int kSlot = 5;  // of the token of a page that is not finite
// Pages of it: one that the windows of the first rows begin in, one that these rows end in.
constexpr int kUnsoundPages[] = {7, 17};

// What is not finite of a token is no number in rows that see it, and nothing in the others, which have the bits of `all`.
template <class Pages> void require_seen(const Kernels& k, const Pages& pages, const Rows& rows, Way way, const std::vector<float>& all,
                                         int page) {
  const int token = 16 * page + kSlot;
  const int dim = pages.head_dim;
  const auto unsound = attend_rows(k, pages, rows, 0, kAttentionRows, 0, way);
  for (int i = 0; i < kAttentionRows; i++) {
    const bool seen = rows.position[size_t(i)] >= token && (!way.window || rows.first[size_t(i)] <= token);
    const float* row = unsound.data() + i * dim;
    if (seen ? !std::isnan(row[0]) : std::memcmp(row, all.data() + i * dim, size_t(dim) * 4) != 0)
      std::fprintf(stderr, "UNSOUND %s: row %d\n", k.name, i), std::abort();
  }
}

inline void attention16(const Kernels& k, Results& out) {
  Digest d;
  Random r;
  for (int dim : {16, 64, 80, 128})
    for (int variant = 0; variant < 8; variant++) {
      Pages16 pages(r, kAttentionPages, dim);
      const Rows rows(r, kAttentionRows, dim, 16 * kAttentionPages);
      const auto all = attend_all(k, pages, rows, Way(variant));
      d.add(all);
      for (int page : kUnsoundPages)
        for (int i : {kSlot, (16 + kSlot) * dim}) {  // a key, or a value
          const uint16_t sound = std::exchange(pages.cells[size_t(page)][size_t(i)], uint16_t(0x7e00));
          require_seen(k, pages, rows, Way(variant), all, page);
          pages.cells[size_t(page)][size_t(i)] = sound;
        }
    }
  out["attention of halves"] = d.h;
}

// Scores so large that what rounds them is beyond all exponents: a row is the values of the token that it scores highest.
inline std::vector<float> attend_large(const Kernels& k, const Pages8& pages, Rows rows, Way way) {
  for (auto& query : rows.queries)
    for (float& value : query) value *= 1e10f;
  const auto all = attend_rows(k, pages, rows, 0, kAttentionRows, 0, way);
  for (float value : all)
    if (!(std::fabs(value) < 4.0f)) std::fprintf(stderr, "LARGE %s: %g\n", k.name, double(value)), std::abort();
  return all;
}

inline void attention8(const Kernels& k, Results& out) {
  Digest d;
  Random r;
  for (int dim : {16, 64, 80, 128, 192})  // of 192, three steps of tiles, not all stay in them
    for (int variant = 0; variant < 8; variant++) {
      const Way way(variant);
      Pages8 pages(r, kAttentionPages, dim);
      const Rows rows(r, kAttentionRows, dim, 16 * kAttentionPages);
      pages.scale(kAttentionPages - 1, 31) = 0x7e00;  // beyond every row: NaN, which none may see
      const auto all = attend_all(k, pages, rows, way);
      d.add(all);
      d.add(attend_large(k, pages, rows, way));
      for (int page : kUnsoundPages)
        for (int i : {kSlot, 16 + kSlot}) {  // a key, or a value
          const uint16_t sound = std::exchange(pages.scale(page, i), uint16_t(0x7c00));
          require_seen(k, pages, rows, way, all, page);
          pages.scale(page, i) = sound;
        }
    }
  out["attention of bytes"] = d.h;
}

}  // namespace
}  // namespace quintet
