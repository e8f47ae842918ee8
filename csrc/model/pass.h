// One forward pass: its buffers and views, kept from one to the next, and how its phases are divided.
#pragma once
#include <algorithm>
#include <vector>
#include "memory.h"
#include "model/model.h"

namespace quintet {

// Row-wise work below this many floats is done before a second thread has heard of it.
constexpr int kSerialFloats = 2048;
// Rows for which it pays to read the weights once more. For each thread, as the more of them multiply, the less each has of what memory
// reads in a second; more where weights are unpacked for all rows of a call, and where rows are wide: what bands spare, values that go from
// core to core, are fewer then beside the products.
constexpr int kLeastBandOfThread = 6, kLeastWideBandOfThread = 10, kLeastBandOfPanels = 64;
constexpr int kWideRows = 1024;
constexpr int kMostBand = 256;  // rows whose activations stay in a second-level cache
constexpr int kPassRows = 4;    // that a product takes at once on AVX2: fewer cost nearly as much
constexpr int kLongUnits = 64;  // rows that make a unit long even of a few tiles

template <class Vector> void grow(Vector& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

struct Model::Pass {
  const Batch* batch = nullptr;
  std::vector<int> row_segment, row_position;  // per row; from the last layer's attention on, per wanted row,
  std::vector<int> row_last;                   // likewise: the last position that it sees, its own if it is of no span
  std::vector<const float*> row_given;         // per row: null, or what stands for the embedding's
  std::vector<int> wanted;                     // sorted, unique
  std::vector<Unit> units, last_units;         // attention of all rows, and of the wanted ones
  bool rotated_by_units = false;               // of all rows: a unit has all rows of its segment and all query heads of its KV head
  FloatLines x, branch;                        // [T, hidden]: the rows, and what a layer adds to them
  FloatLines qkv, attended;                    // [T, heads + 2 kv_heads, head_dim], [T, heads, head_dim]
  Activations::Matrix in, heads, ffn;          // rows for products: normed x, attended, gate * up
  template <class Cell> struct Pages {
    std::vector<const Cell*> keys, values;
  };
  struct Own {
    FloatLines scratch, scores;
    Activations::Matrix in;  // the rows of `entered`, few
    Entry entered;
    Activations::Panels panels;  // of `laid`, from row `laid_from` on
    Activations::View laid_view;
    Entry laid;
    int laid_from = 0;
    Ahead ahead;  // what this thread will read in the next layer's attention
    Pages<uint16_t> halves;
    Pages<uint8_t> bytes;
    std::vector<const float*> q;  // of a unit of attention: of each pair of row and query head
    std::vector<float*> out;
    std::vector<int> position, first;
    std::vector<float> sink;
  };
  struct Group {
    int expert, from, to;  // slots
  };
  std::vector<int> chosen, slots;             // [T, used]: experts, and where each pair of row and expert is computed
  std::vector<float> weights;                 // [T, used]
  std::vector<std::vector<Group>> groups;     // per layer
  std::vector<int> next_slot;                 // scratch of grouping
  Activations::Matrix expert_in, expert_ffn;  // per slot
  FloatLines expert_out;
  std::vector<Own> threads;  // each thread's own
  int qkv_width = 0;
};

// A phase of a matrix product's tiles, a few to a unit: enough units to balance the threads, few enough that claiming costs nothing, and as
// many for each.
template <class Tile> void Model::tiles(Team::Walk& walk, int count, Tile tile, Work work) {
  const int units = std::min(count, 6 * team_.size());
  walk.phase(
      units,
      [&](int u) {
        for (int t = int(int64_t(count) * u / units), end = int(int64_t(count) * (u + 1) / units); t < end; t++) tile(t);
      },
      work);
}

// A phase of products: some(t, count, from, to) for all tiles, `count` neighbours at a time, and all rows. Many rows are divided into
// bands, one after the other: a thread begins with a run of neighbours among the units, in `rows` as here, so it meets the same rows in
// phase after phase, in its own second-level cache. Weights are read once a band for that, which many rows pay for.
template <class Some> void Model::products(Team::Walk& walk, int live, int count, Some some, Work work) {
  const int side = std::max(act_.side(), kPassRows), sides = (live + side - 1) / side;
  const int of_thread = config_.hidden < kWideRows ? kLeastBandOfThread : kLeastWideBandOfThread;
  const int least = act_.side() > 1 ? kLeastBandOfPanels : std::min(of_thread * team_.size(), kLeastBandOfPanels);
  const int bands = std::max(std::clamp(live / least, 1, team_.size()), (live + kMostBand - 1) / kMostBand);
  const auto begin = [&](int band) { return std::min(live, sides * band / bands * side); };
  // Units of a thread: of few rows a unit is short, and its weights should be one stream; bands may differ by some rows. All are about as
  // long, and as many for each thread: for one more than the others have, the others would wait. Pairs stay together, of whatever format:
  // q4's begin at the fewest rows.
  const int each = live >= kLongUnits ? 24 : bands > 1 ? 12 : 6;
  const int side_by_side = act_.side_by_side(Format::q4, live), groups = (count + side_by_side - 1) / side_by_side;
  const int units = std::clamp(each * team_.size() / bands, 1, groups);
  const auto unit_begin = [&](int unit) { return std::min(count, int(int64_t(groups) * unit / units) * side_by_side); };
  walk.phase(
      bands * units,
      [&](int u) {
        const int from = begin(u / units), to = begin(u / units + 1), first = unit_begin(u % units);
        if (from < to) some(first, unit_begin(u % units + 1) - first, from, to);
      },
      work);
}

// A phase of row-wise work; a little of it is done by one thread, as dividing it would cost more.
template <class Row> void Model::rows(Team::Walk& walk, int live, Row row, Work work) {
  const int chunk = live <= few_rows() ? live : std::clamp(live / team_.size(), 1, 4);
  walk.phase((live + chunk - 1) / chunk,
             [&](int u) {
               for (int r = u * chunk; r < std::min(live, (u + 1) * chunk); r++) row(r);
             },
             work);
}

}  // namespace quintet
