// Attention over cells of 8 bits: any number of rows, windows, caps, sinks and sizes of heads; and that a row alone has the bits that it has among
// others, whatever lies beyond its position.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include "kernels/kernels.h"
#include "tests/digest.h"

namespace quintet {
namespace {

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

struct Rows8 {
  std::vector<std::vector<float>> queries;
  std::vector<int> position, first;
  std::vector<float> sinks;
};

// Rows [from, to) over the pages from `skipped` on: outputs, one after the other.
[[maybe_unused]] std::vector<float> attend_rows8(const Kernels& k, const Pages8& pages, const Rows8& rows, int from, int to, int skipped,
                                                 bool window, float cap, bool sink) {
  const int n = to - from, dim = pages.head_dim;
  std::vector<int> position, first;
  std::vector<const float*> q;
  std::vector<float> result(size_t(n * dim)), scratch(attend8_scratch(n, int(pages.keys.size()), dim));
  std::vector<float*> out;
  for (int r = from; r < to; r++) {
    q.push_back(rows.queries[size_t(r)].data());
    position.push_back(rows.position[size_t(r)] - 16 * skipped);
    first.push_back(rows.first[size_t(r)] - 16 * skipped);
    out.push_back(result.data() + (r - from) * dim);
  }
  k.attend8({q.data(), position.data(), window ? first.data() : nullptr, n, dim, cap, sink ? rows.sinks.data() + from : nullptr,
             pages.keys.data() + skipped, pages.values.data() + skipped, skipped, scratch.data(), out.data()});
  return result;
}

[[maybe_unused]] void attention8(const Kernels& k, Results& out) {
  Digest d;
  Random r;
  const int count = 21, rows_count = 29;
  for (int dim : {16, 64, 80, 128})
    for (int variant = 0; variant < 8; variant++) {
      const bool window = variant & 1, sink = variant & 4;
      const float cap = variant & 2 ? 20.0f : 0.0f;
      Pages8 pages(r, count, dim);
      Rows8 rows;
      for (int i = 0; i < rows_count; i++) {
        rows.queries.push_back(r.floats(size_t(dim), 2.0f));
        rows.position.push_back(i < 20 ? 260 + i : r.below(16 * count - 1));
        rows.first.push_back(std::max(0, rows.position.back() - 150));
        rows.sinks.push_back(r.real(3.0f));
      }
      rows.queries[3].assign(size_t(dim), 0.0f);
      pages.scale(count - 1, 31) = 0x7e00;  // beyond every row: NaN, which none may see
      const auto all = attend_rows8(k, pages, rows, 0, rows_count, 0, window, cap, sink);
      for (int i = 0; i < rows_count; i++) {
        const int skipped = window ? rows.first[size_t(i)] / 16 : 0;
        const auto alone = attend_rows8(k, pages, rows, i, i + 1, skipped, window, cap, sink);
        if (std::memcmp(alone.data(), all.data() + i * dim, alone.size() * 4) != 0)
          std::fprintf(stderr, "ALONE %s: row %d\n", k.name, i), std::abort();
      }
      d.add(all);
      pages.scale(17, 16 + 5) = 0x7c00;  // a value that is infinite: of token 277, which some rows see, some not
      const auto unsound = attend_rows8(k, pages, rows, 0, rows_count, 0, window, cap, sink);
      for (int i = 0; i < rows_count; i++) {
        const bool seen = rows.position[size_t(i)] >= 277 && (!window || rows.first[size_t(i)] <= 277);
        const float* row = unsound.data() + i * dim;
        if (seen ? !std::isnan(row[0]) : std::memcmp(row, all.data() + i * dim, size_t(dim) * 4) != 0)
          std::fprintf(stderr, "UNSOUND %s: row %d\n", k.name, i), std::abort();
      }
    }
  out["attention of bytes"] = d.h;
}

}  // namespace
}  // namespace quintet
