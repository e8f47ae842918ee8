// Model: what attention does beside the product: norms, rotation and storing of keys and values, and the rows' way over the pages.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include "kernels/scalar_math.h"
#include "model/model.h"
#include "model/pass.h"

namespace quintet {

constexpr int kLeastPairs = 12;       // of row and query head in a unit of attention
constexpr size_t kMostScores = 8192;  // of a pair, as long as a unit has the most of them: beyond, it has fewer
constexpr int kUnitsPerThread = 4;
constexpr int kFewRowsAhead = 4;                // of one sequence
constexpr size_t kMostAhead = size_t(2) << 20;  // bytes for a thread: what is fetched too early is gone again

namespace {
// By a token, in a layer that has a window of so many, or 0.
int first_seen(int window, int position) { return window ? std::max(0, position - window + 1) : 0; }
}  // namespace

void Model::rotate_and_store(Pass& p, int l, int r, int first, int last) {
  const Config& c = config_;
  const Layer& layer = layers_[size_t(l)];
  const int position = p.row_position[size_t(r)], segment = p.row_segment[size_t(r)];
  const int page = p.batch->tables[size_t(segment) * size_t(p.batch->table_width) + size_t(position / kPage)], slot = position % kPage;
  const int dim = c.head_dim, group = c.heads / c.kv_heads, first_q = first * group, kv_count = last - first, q_count = kv_count * group;
  float* row = p.qkv.data() + size_t(r) * size_t(p.qkv_width);
  float *q = row + first_q * dim, *k = row + (c.heads + first) * dim, *v = row + (c.heads + c.kv_heads + first) * dim;
  if (layer.c.qkv_bias) {
    k_.add(q, layer.q_bias.data() + first_q * dim, q_count * dim);
    k_.add(k, layer.k_bias.data() + first * dim, kv_count * dim);
    k_.add(v, layer.v_bias.data() + first * dim, kv_count * dim);
  }
  if (layer.c.qk_norm == QkNorm::full) {
    k_.rms_norm(q, layer.q_norm.data(), q_count * dim, c.norm_eps, q);
    k_.rms_norm(k, layer.k_norm.data(), kv_count * dim, c.norm_eps, k);
  }
  const auto rotate = [&](float* heads, int count, const FloatLines& norm) {
    for (float* head = heads; head < heads + count * dim; head += dim) {
      if (layer.c.qk_norm == QkNorm::head) k_.rms_norm(head, norm.data(), dim, c.norm_eps, head);
      if (layer.c.rope < 0) continue;
      const RopeTable& rope = ropes_[size_t(layer.c.rope)];
      k_.rope(head, rope.cos(position), rope.sin(position), rope.dim());
    }
  };
  rotate(q, q_count, layer.q_norm);
  rotate(k, kv_count, layer.k_norm);
  float scale = layer.c.attn_scale != 0.0f ? layer.c.attn_scale : 1.0f / std::sqrt(float(dim));
  if (layer.c.temperature != 0.0f)
    scale = float(double(scale) * (1 + double(layer.c.temperature) * log_positive(1 + position / layer.c.temperature_length)));
  if (c.kv_type == KvType::q8) {
    scale *= rotate_for_cells(q, q_count);
    rotate_for_cells(k, kv_count);
    rotate_for_cells(v, kv_count);
  }
  k_.scale_row(q, scale, q_count * dim);
  if (c.kv_type == KvType::f16) store(l, page, slot, first, last, k, v);
  else store8(l, page, slot, first, last, k, v);
}

// With cells of 8 bits all heads are rotated: a few large dimensions, which would decide a scale, come to be spread over all of them.
// Products of queries and keys stay what they are, and what attention makes of values is rotated back (docs/decisions/0049). By blocks of a
// power of two dimensions; returns what this and its inverse, which is the same, are together to be multiplied by.
float Model::rotate_for_cells(float* heads, int count) const {
  const int total = count * config_.head_dim, block = config_.head_dim & -config_.head_dim;
  for (int d = 0; d < total; d += block) k_.hadamard(heads + d, block);
  return 1.0f / float(block);
}

void Model::store(int l, int page, int slot, int first, int last, const float* k, const float* v) const {
  const int dim = config_.head_dim;
  uint16_t half[kMaxHeadDim];
  for (int h = first; h < last; h++, k += dim, v += dim) {
    k_.to_half(k, dim, half);
    uint16_t* column = keys<uint16_t>(l, page, h) + slot;
    for (int d = 0; d < dim; d++) column[size_t(d) * kPage] = half[d];
    k_.to_half(v, dim, values<uint16_t>(l, page, h) + size_t(slot) * size_t(dim));
  }
}

// Four dimensions of a key, and four tokens of a value, lie together, as bytes with an offset: attend_bytes.h.
void Model::store8(int l, int page, int slot, int first, int last, const float* k, const float* v) const {
  const int dim = config_.head_dim;
  int8_t key[kMaxHeadDim], value[kMaxHeadDim];
  auto with_offset = [&](int8_t cell) { return uint8_t(cell + 128); };
  for (int h = first; h < last; h++, k += dim, v += dim) {
    uint8_t *page_keys = keys<uint8_t>(l, page, h), *page_values = values<uint8_t>(l, page, h);
    uint16_t *scales = reinterpret_cast<uint16_t*>(page_values + dim * kPage), both[2];
    const float* const rows[] = {k, v};
    int8_t* const cells[] = {key, value};
    k_.quantize_cells(rows, dim, cells, both);
    scales[slot] = both[0];
    scales[kPage + slot] = both[1];
    for (int d = 0; d < dim; d++) page_keys[d / 4 * 4 * kPage + 4 * slot + d % 4] = with_offset(key[d]);
    uint8_t* column = page_values + slot / 4 * 4 * dim + slot % 4;
    for (int d = 0; d < dim; d++) column[4 * d] = with_offset(value[d]);
  }
}

// Attention split into units: rows of one segment that share a KV head. The more rows, the fewer times their keys and values are read and
// made floats; but their scores should not be much more than a core's caches, and there must be units enough for all threads. With far more
// threads than units the query heads are spread as well.
std::vector<Model::Unit> Model::attention_units(const std::vector<int>& segments, int pages) const {
  const int live = int(segments.size()), group = config_.heads / config_.kv_heads;
  const int cached = int(size_t(k_.attend_pairs) * kMostScores / std::max(kMostScores, attend_stride(pages)));
  const int pairs = std::max(kLeastPairs, std::min(cached, live * config_.heads / (kUnitsPerThread * team_.size())));
  const int rows_per_unit = std::max(1, pairs / group);
  std::vector<Unit> units;
  for (int from = 0; from < live;) {
    const int segment = segments[size_t(from)];
    int to = from;
    while (to < live && to - from < rows_per_unit && segments[size_t(to)] == segment) to++;
    for (int h = 0; h < config_.kv_heads; h++) units.push_back({segment, h, h * group, (h + 1) * group, from, to});
    from = to;
  }
  if (2 * int(units.size()) >= team_.size() || group == 1) return units;
  std::vector<Unit> spread;
  for (const Unit& u : units)
    for (int h = u.head_from; h < u.head_to; h++) spread.push_back({u.segment, u.kv_head, h, h + 1, u.row_from, u.row_to});
  return spread;
}

// What the largest unit needs, over so many pages.
void Model::reserve_attention(Pass& p, int pages) const {
  int pairs = 0;
  for (const auto* units : {&p.units, &p.last_units})
    for (const Unit& u : *units) pairs = std::max(pairs, (u.row_to - u.row_from) * (u.head_to - u.head_from));
  for (auto& own : p.threads) {
    own.ahead.pieces.reserve(kMostAhead / head_page_bytes() + 1);
    grow(own.scratch, (config_.kv_type == KvType::f16 ? attend_scratch : attend8_scratch)(pairs, pages, config_.head_dim));
    for (auto* one : {&own.halves.keys, &own.halves.values}) grow(*one, size_t(pages));
    for (auto* one : {&own.bytes.keys, &own.bytes.values}) grow(*one, size_t(pages));
    grow(own.q, size_t(pairs));
    grow(own.out, size_t(pairs));
    grow(own.position, size_t(pairs));
    grow(own.first, size_t(pairs));
    grow(own.sink, size_t(pairs));
  }
}

// Of the tiles that are multiplied before a layer's attention and after that of the layer before, all experts' left out.
int64_t Model::blocks_before(int l) const {
  const auto sum = [](std::initializer_list<const std::optional<Packed>*> matrices) {
    int64_t blocks = 0;
    for (const auto* w : matrices) blocks += *w ? int64_t((*w)->tiles()) * (*w)->blocks() : 0;
    return blocks;
  };
  const Layer& layer = layers_[size_t(l)];
  const int64_t own = sum({&layer.q, &layer.k, &layer.v});
  if (!l) return own;
  const Layer& before = layers_[size_t(l) - 1];
  return own + sum({&before.o, &before.gate, &before.up, &before.down});
}

// Of sequences of a few rows alone: those of many compute longer than they read. Heads that are neighbours lie together. Where there is
// more time than it takes, twice as much is left for it: what is there too early is gone again when it is read, as all weights come by.
void Model::look_ahead(Pass& p, int l, const Team::Walk& walk) const {
  Ahead& ahead = p.threads[size_t(walk.thread)].ahead;
  ahead.pieces.clear();
  ahead.next = 0;
  const Batch& b = *p.batch;
  if (l == int(layers_.size()) || !k_.least_ahead || b.total < k_.least_ahead) return;
  const auto [from, to] = walk.share(int(p.units.size()));
  size_t bytes = 0;
  for (int i = from; i < to && bytes < kMostAhead;) {
    const int segment = p.units[size_t(i)].segment, length = b.lengths[segment], window = layers_[size_t(l)].c.window;
    int low = config_.kv_heads, high = 0;
    for (; i < to && p.units[size_t(i)].segment == segment; i++) {
      low = std::min(low, p.units[size_t(i)].kv_head);
      high = std::max(high, p.units[size_t(i)].kv_head + 1);
    }
    if (length > kFewRowsAhead) continue;
    const size_t size = size_t(high - low) * head_page_bytes();
    const int32_t* table = b.tables + size_t(segment) * size_t(b.table_width);
    const int first = first_seen(window, b.starts[segment]) / kPage, last = (b.starts[segment] + length - 1) / kPage;
    for (int nth = first; nth <= last && bytes < kMostAhead; nth++, bytes += size) {
      const uint8_t* at = keys<uint8_t>(l, table[nth], low);
      ahead.pieces.push_back({at, at + size});
    }
  }
  const size_t needed = 2 * bytes / 64, room = size_t(blocks_before(l) * b.total / team_.size() / kProductsOfLine);
  ahead.wait = room > needed ? room - needed : 0;
}

// Of a windowed layer the pages before the first that any of the unit's rows sees are left out: to the kernel the sequence begins there.
void Model::attend(Pass& p, int l, const Unit& u, int thread) {
  const LayerConfig& c = layers_[size_t(l)].c;
  const int dim = config_.head_dim, last = p.row_last[size_t(u.row_to - 1)];
  const int skipped = first_seen(c.window, p.row_position[size_t(u.row_from)]) / kPage, pages = last / kPage + 1 - skipped;
  const int32_t* table = p.batch->tables + size_t(u.segment) * size_t(p.batch->table_width) + skipped;
  Pass::Own& own = p.threads[size_t(thread)];
  size_t n = 0;
  for (int r = u.row_from; r < u.row_to; r++) {
    for (int h = u.head_from; h < u.head_to; h++, n++) {
      own.q[n] = p.qkv.data() + size_t(r) * size_t(p.qkv_width) + h * dim;
      own.out[n] = p.attended.data() + (size_t(r) * size_t(config_.heads) + size_t(h)) * size_t(dim);
      if (c.sinks) own.sink[n] = layers_[size_t(l)].sinks[size_t(h)];
      own.position[n] = p.row_last[size_t(r)] - skipped * kPage;
      own.first[n] = first_seen(c.window, p.row_position[size_t(r)]) - skipped * kPage;
    }
  }
  auto over = [&]<class Cell>(Pass::Pages<Cell>& cells) {
    for (int i = 0; i < pages; i++) {
      cells.keys[size_t(i)] = keys<Cell>(l, table[i], u.kv_head);
      cells.values[size_t(i)] = values<Cell>(l, table[i], u.kv_head);
    }
    return AttendOver<Cell>{own.q.data(),
                            own.position.data(),
                            c.window ? own.first.data() : nullptr,
                            int(n),
                            dim,
                            c.attn_cap,
                            c.sinks ? own.sink.data() : nullptr,
                            cells.keys.data(),
                            cells.values.data(),
                            skipped,
                            own.scratch.data(),
                            own.out.data()};
  };
  if (config_.kv_type == KvType::f16) {
    k_.attend(over(own.halves));
  } else {
    k_.attend8(over(own.bytes));
    for (size_t i = 0; i < n; i++) k_.scale_row(own.out[i], rotate_for_cells(own.out[i], 1), dim);
  }
  if (!whole_blocks()) return;
  n = 0;
  for (int r = u.row_from; r < u.row_to; r++)
    for (int h = u.head_from; h < u.head_to; h++, n++)
      act_.put_part(own.out[n], dim / 32, config_.heads * dim, h * dim / 32, p.heads, size_t(r));
}

}  // namespace quintet
