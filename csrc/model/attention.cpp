// Model: what attention does beside the product: norms, rotation and storing of keys and values, and the rows' way over the pages.
#include <algorithm>
#include <cmath>
#include "kernels/scalar_math.h"
#include "model/model.h"
#include "model/pass.h"

namespace quintet {

// Pairs of row and query head in a unit of attention.
constexpr int kMostPairs = 48, kLeastPairs = 12;
constexpr size_t kCachedScores = size_t(1) << 18;  // 1 MiB
constexpr int kUnitsPerThread = 4;

void Model::rotate_and_store(Pass& p, int l, int r) {
  const Config& c = config_;
  const Layer& layer = layers_[size_t(l)];
  const int position = p.row_position[size_t(r)], segment = p.row_segment[size_t(r)];
  const int page = p.batch->tables[size_t(segment) * size_t(p.batch->table_width) + size_t(position / kPage)], slot = position % kPage;
  float* q = p.qkv.data() + size_t(r) * size_t(p.qkv_width);
  float* k = q + c.heads * c.head_dim;
  float* v = k + c.kv_heads * c.head_dim;
  if (layer.c.qkv_bias) {
    k_.add(q, layer.q_bias.data(), c.heads * c.head_dim);
    k_.add(k, layer.k_bias.data(), c.kv_heads * c.head_dim);
    k_.add(v, layer.v_bias.data(), c.kv_heads * c.head_dim);
  }
  if (layer.c.qk_norm == QkNorm::full) {
    k_.rms_norm(q, layer.q_norm.data(), c.heads * c.head_dim, c.norm_eps, q);
    k_.rms_norm(k, layer.k_norm.data(), c.kv_heads * c.head_dim, c.norm_eps, k);
  } else if (layer.c.qk_norm == QkNorm::head) {
    for (int h = 0; h < c.heads + c.kv_heads; h++) {
      float* head = q + h * c.head_dim;
      k_.rms_norm(head, (h < c.heads ? layer.q_norm : layer.k_norm).data(), c.head_dim, c.norm_eps, head);
    }
  }
  if (layer.c.rope >= 0) {
    const RopeTable& rope = ropes_[size_t(layer.c.rope)];
    const float* cos = rope.cos(position);
    const float* sin = rope.sin(position);
    for (int h = 0; h < c.heads + c.kv_heads; h++) k_.rope(q + h * c.head_dim, cos, sin, rope.dim());
  }
  float scale = layer.c.attn_scale != 0.0f ? layer.c.attn_scale : 1.0f / std::sqrt(float(c.head_dim));
  if (layer.c.temperature != 0.0f)
    scale = float(double(scale) * (1 + double(layer.c.temperature) * log_positive(1 + position / layer.c.temperature_length)));
  if (c.kv_type == KvType::q8) scale *= rotate_for_cells(q, c.heads + 2 * c.kv_heads);
  k_.scale_row(q, scale, c.heads * c.head_dim);
  if (c.kv_type == KvType::f16) store(l, page, slot, k, v);
  else store8(l, page, slot, k, v);
}

// With cells of 8 bits all heads are rotated: a few large dimensions, which would decide a scale, come to be spread over all of them. Products of
// queries and keys stay what they are, and what attention makes of values is rotated back (docs/decisions/0049). By blocks of a power of two
// dimensions; returns what this and its inverse, which is the same, are together to be multiplied by.
float Model::rotate_for_cells(float* heads, int count) const {
  const int total = count * config_.head_dim, block = config_.head_dim & -config_.head_dim;
  for (int d = 0; d < total; d += block) k_.hadamard(heads + d, block);
  return 1.0f / float(block);
}

void Model::store(int l, int page, int slot, const float* k, const float* v) const {
  const int dim = config_.head_dim;
  uint16_t half[kMaxHeadDim];
  for (int h = 0; h < config_.kv_heads; h++) {
    k_.to_half(k + h * dim, dim, half);
    uint16_t* column = keys<uint16_t>(l, page, h) + slot;
    for (int d = 0; d < dim; d++) column[size_t(d) * kPage] = half[d];
    k_.to_half(v + h * dim, dim, values<uint16_t>(l, page, h) + size_t(slot) * size_t(dim));
  }
}

// Four dimensions of a key, and four tokens of a value, lie together, as bytes with an offset: attend_bytes.h.
void Model::store8(int l, int page, int slot, const float* k, const float* v) const {
  const int dim = config_.head_dim;
  int8_t cells[kMaxHeadDim];
  auto with_offset = [&](int d) { return uint8_t(cells[d] + 128); };
  for (int h = 0; h < config_.kv_heads; h++) {
    uint8_t *page_keys = keys<uint8_t>(l, page, h), *page_values = values<uint8_t>(l, page, h);
    uint16_t* scales = reinterpret_cast<uint16_t*>(page_values + dim * kPage);
    scales[slot] = k_.quantize_cells(k + h * dim, dim, cells);
    for (int d = 0; d < dim; d++) page_keys[d / 4 * 4 * kPage + 4 * slot + d % 4] = with_offset(d);
    scales[kPage + slot] = k_.quantize_cells(v + h * dim, dim, cells);
    uint8_t* column = page_values + slot / 4 * 4 * dim + slot % 4;
    for (int d = 0; d < dim; d++) column[4 * d] = with_offset(d);
  }
}

// Attention split into units: rows of one segment that share a KV head. The more rows, the fewer times their keys and values are read and made
// floats; but their scores should stay in the second-level cache, and there must be units enough for all threads. With far more threads than
// units the query heads are spread as well.
std::vector<Model::Unit> Model::attention_units(const std::vector<int>& segments, int pages) const {
  const int live = int(segments.size()), group = config_.heads / config_.kv_heads;
  const int cached = int(std::min(size_t(kMostPairs), kCachedScores / attend_stride(pages)));
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

// Of a windowed layer the pages before the first that any of the unit's rows sees are left out: to the kernel the sequence begins there.
void Model::attend(Pass& p, int l, const Unit& u, int thread) {
  const LayerConfig& c = layers_[size_t(l)].c;
  auto first_seen = [&](int r) { return c.window ? std::max(0, p.row_position[size_t(r)] - c.window + 1) : 0; };
  const int dim = config_.head_dim, last = p.row_last[size_t(u.row_to - 1)];
  const int skipped = first_seen(u.row_from) / kPage, pages = last / kPage + 1 - skipped;
  const int32_t* table = p.batch->tables + size_t(u.segment) * size_t(p.batch->table_width) + skipped;
  Pass::Own& own = p.threads[size_t(thread)];
  size_t n = 0;
  for (int r = u.row_from; r < u.row_to; r++) {
    for (int h = u.head_from; h < u.head_to; h++, n++) {
      own.q[n] = p.qkv.data() + size_t(r) * size_t(p.qkv_width) + h * dim;
      own.out[n] = p.attended.data() + (size_t(r) * size_t(config_.heads) + size_t(h)) * size_t(dim);
      if (c.sinks) own.sink[n] = layers_[size_t(l)].sinks[size_t(h)];
      own.position[n] = p.row_last[size_t(r)] - skipped * kPage;
      own.first[n] = first_seen(r) - skipped * kPage;
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
  if (config_.kv_type == KvType::f16) return k_.attend(over(own.halves));
  k_.attend8(over(own.bytes));
  for (size_t i = 0; i < n; i++) k_.scale_row(own.out[i], rotate_for_cells(own.out[i], 1), dim);
}

}  // namespace quintet
