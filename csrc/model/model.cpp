// Model: the forward pass over a ragged batch, rows of many sequences one after the other.
//
//   x = embed[token]
//   each layer:   in = q8(norm(x))          qkv = in * Wq|Wk|Wv     rope, keys and values into pages
//                 heads = q8(attend(q, pages))                      x += heads * Wo
//                 in = q8(norm(x))          ffn = q8(silu(in * Wgate) * (in * Wup))
//                                           x += ffn * Wdown
//   out = q8(norm(x))                       of the wanted rows alone, which are all that the last layer attends for
//
// A row meets other rows nowhere but in its own sequence's pages: all else is per row, in an order that neither the batch nor the number of
// threads decides. So a number depends on the tokens before it and on nothing else: docs/decisions/0002-numbers-that-do-not-depend-on-the-batch.md
// has the contract, and why a drafted, cached, preempted or chunked sequence has the same bits.
#include "model/model.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace quintet {
namespace {

// Rows that one phase of the feed-forward handles at a time: its scratch stays in the first-level cache.
constexpr int kRowBlock = 32;
// Row-wise work below this many floats is done before a second thread has heard of it.
constexpr int kSerialFloats = 2048;
constexpr int kMaxHeadDim = 1024;
constexpr int kPhasesPerLayer = 10;

template <class T> void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

void fail(const char* what) { throw std::invalid_argument(what); }

const Config& checked(const Config& c) {
  auto positive = [](int v, int max) { return v > 0 && v <= max; };
  if (!positive(c.layers, 1024) || !positive(c.hidden, 1 << 20) || !positive(c.heads, 4096) || !positive(c.kv_heads, 4096) ||
      !positive(c.head_dim, kMaxHeadDim) || !positive(c.ffn, 1 << 22) || !positive(c.vocab, 1 << 24) || !positive(c.context, 1 << 22))
    fail("model: a size is out of range");
  if (c.hidden % 32 || c.ffn % 32 || c.head_dim % 16 || (c.heads * c.head_dim) % 32)
    fail("model: hidden, ffn and heads * head_dim must be multiples of 32, head_dim of 16");
  if (c.heads % c.kv_heads) fail("model: heads must be a multiple of kv_heads");
  if (c.rope.dim > c.head_dim) fail("model: more rotated dimensions than head_dim");
  return c;
}

}  // namespace

struct Model::Pass {
  const Batch* batch = nullptr;
  std::vector<int> row_segment, row_position;  // per row; from the last layer's attention on, per wanted row
  std::vector<int> wanted;                     // sorted, unique
  std::vector<Unit> units, last_units;         // attention of all rows, and of the wanted ones
  std::vector<float> x, qkv, attended;         // [T, hidden], [T, heads + 2 kv_heads, head_dim], [T, heads, head_dim]
  std::vector<uint8_t> in, heads, ffn;         // quantised rows: normed x, attended, gate * up
  struct Own {
    std::vector<float> scratch;
    std::vector<const uint16_t*> keys, values;
  };
  std::vector<Own> threads;  // each thread's own
  size_t in_row = 0, heads_row = 0, ffn_row = 0;
  int qkv_width = 0;
};

Model::Model(const Config& config, Cpu& cpu)
    : config_(checked(config)), k_(cpu.kernels), team_(cpu.team), rope_(config.rope, config.context), layers_(size_t(config.layers)) {}

Model::~Model() = default;

void Model::check(const Batch& b) const {
  if (!finished_) fail("forward: the model is not complete");
  if (!kv_) fail("forward: no KV memory");
  if (b.total <= 0 || b.segments <= 0) fail("forward: an empty batch");
  int64_t sum = 0;
  for (int s = 0; s < b.segments; s++) {
    if (b.lengths[s] <= 0) fail("forward: a segment without tokens");
    sum += b.lengths[s];
    if (b.starts[s] < 0 || int64_t(b.starts[s]) + b.lengths[s] > config_.context) fail("forward: a position past the context");
    const int used = (b.starts[s] + b.lengths[s] + kPage - 1) / kPage;
    if (used > b.table_width) fail("forward: a block table that is too short");
    for (int i = 0; i < used; i++) {
      const int page = b.tables[size_t(s) * size_t(b.table_width) + size_t(i)];
      if (page < 0 || page >= pages_) fail("forward: a page out of range");
    }
  }
  if (sum != b.total) fail("forward: lengths do not sum to the number of tokens");
  for (int i = 0; i < b.total; i++)
    if (b.tokens[i] < 0 || b.tokens[i] >= config_.vocab) fail("forward: a token id out of range");
  for (int i = 0; i < b.wanted; i++)
    if (b.rows[i] < 0 || b.rows[i] >= b.total) fail("forward: a row out of range");
}

// A phase of a matrix product's tiles, a few to a unit: enough units to balance the threads, few enough that claiming costs nothing.
template <class Tile> void Model::tiles(Team::Walk& walk, int count, Tile tile) {
  const int chunk = std::max(1, count / (6 * team_.size()));
  walk.phase((count + chunk - 1) / chunk, [&](int u) {
    for (int t = u * chunk; t < std::min(count, (u + 1) * chunk); t++) tile(t);
  });
}

// A phase of row-wise work; a little of it is done by one thread, as dividing it would cost more.
template <class Row> void Model::rows(Team::Walk& walk, int live, Row row) {
  const int chunk = live * config_.hidden <= kSerialFloats ? live : std::clamp(live / team_.size(), 1, 4);
  walk.phase((live + chunk - 1) / chunk, [&](int u) {
    for (int r = u * chunk; r < std::min(live, (u + 1) * chunk); r++) row(r);
  });
}

void Model::project_qkv(Pass& p, const Layer& layer, Team::Walk& walk) {
  const int q = layer.q->tiles(), k = layer.k->tiles(), v = layer.v->tiles();
  tiles(walk, q + k + v, [&](int u) {
    const Packed& w = u < q ? *layer.q : u < q + k ? *layer.k : *layer.v;
    const int tile = u < q ? u : u < q + k ? u - q : u - q - k;
    k_.gemm_tile(w, tile, p.in.data(), p.in_row, p.batch->total, p.qkv.data() + 16 * u, size_t(p.qkv_width), false);
  });
}

void Model::rotate_and_store(Pass& p, int l, int r) {
  const Config& c = config_;
  const Layer& layer = layers_[size_t(l)];
  const int position = p.row_position[size_t(r)], segment = p.row_segment[size_t(r)];
  const int page = p.batch->tables[size_t(segment) * size_t(p.batch->table_width) + size_t(position / kPage)], slot = position % kPage;
  float* q = p.qkv.data() + size_t(r) * size_t(p.qkv_width);
  float* k = q + c.heads * c.head_dim;
  float* v = k + c.kv_heads * c.head_dim;
  if (c.qkv_bias) {
    k_.add(q, layer.q_bias.data(), c.heads * c.head_dim);
    k_.add(k, layer.k_bias.data(), c.kv_heads * c.head_dim);
    k_.add(v, layer.v_bias.data(), c.kv_heads * c.head_dim);
  }
  const float* cos = rope_.cos(position);
  const float* sin = rope_.sin(position);
  for (int h = 0; h < c.heads + c.kv_heads; h++) k_.rope(q + h * c.head_dim, cos, sin, c.rope.dim);
  k_.scale_row(q, 1.0f / std::sqrt(float(c.head_dim)), c.heads * c.head_dim);
  uint16_t half[kMaxHeadDim];
  for (int h = 0; h < c.kv_heads; h++) {
    k_.to_half(k + h * c.head_dim, c.head_dim, half);
    uint16_t* column = keys(l, page, h) + slot;
    for (int d = 0; d < c.head_dim; d++) column[size_t(d) * kPage] = half[d];
    k_.to_half(v + h * c.head_dim, c.head_dim, values(l, page, h) + size_t(slot) * size_t(c.head_dim));
  }
}

// Attention split into units: rows of one segment that share a KV head. With far more threads than that the query heads are spread as well; else
// they read their keys and values together.
std::vector<Model::Unit> Model::attention_units(const std::vector<int>& segments) const {
  const int live = int(segments.size()), group = config_.heads / config_.kv_heads, rows_per_unit = std::max(1, 24 / group);
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

void Model::attend(Pass& p, int layer, const Unit& u, int thread) {
  const int dim = config_.head_dim, last = p.row_position[size_t(u.row_to - 1)], pages = last / kPage + 1;
  const int32_t* table = p.batch->tables + size_t(u.segment) * size_t(p.batch->table_width);
  const uint16_t** k = p.threads[size_t(thread)].keys.data();
  const uint16_t** v = p.threads[size_t(thread)].values.data();
  for (int i = 0; i < pages; i++) {
    k[i] = keys(layer, table[i], u.kv_head);
    v[i] = values(layer, table[i], u.kv_head);
  }
  float* scores = p.threads[size_t(thread)].scratch.data();
  const float* q[4];
  float* out[4];
  int position[4];
  int n = 0;
  bool first = true;
  auto flush = [&] {
    if (n) k_.attend({q, position, n, first, dim, k, v, scores, out});
    n = 0, first = false;
  };
  for (int r = u.row_from; r < u.row_to; r++) {
    for (int h = u.head_from; h < u.head_to; h++) {
      q[n] = p.qkv.data() + size_t(r) * size_t(p.qkv_width) + h * dim;
      out[n] = p.attended.data() + (size_t(r) * size_t(config_.heads) + size_t(h)) * size_t(dim);
      position[n++] = p.row_position[size_t(r)];
      if (n == 4) flush();
    }
  }
  flush();
}

// gate and up for 32 columns at a time, silu(gate) * up, quantised at once: the product never goes to memory as floats.
void Model::feed_forward(Pass& p, const Layer& layer, int live, Team::Walk& walk) {
  float* gate = p.threads[size_t(walk.thread)].scratch.data();
  float* up = gate + kRowBlock * 32;
  tiles(walk, config_.ffn / 32, [&](int u) {
    for (int r0 = 0; r0 < live; r0 += kRowBlock) {
      const int n = std::min(kRowBlock, live - r0);
      const uint8_t* in = p.in.data() + size_t(r0) * p.in_row;
      for (int t = 0; t < 2; t++) {
        k_.gemm_tile(*layer.gate, 2 * u + t, in, p.in_row, n, gate + 16 * t, 32, false);
        k_.gemm_tile(*layer.up, 2 * u + t, in, p.in_row, n, up + 16 * t, 32, false);
      }
      k_.silu_mul(gate, up, 32 * n, gate);
      for (int r = 0; r < n; r++) k_.quantize_block(gate + 32 * r, config_.ffn, u, p.ffn.data() + size_t(r0 + r) * p.ffn_row);
    }
  });
}

// The last layer's keys and values are stored: from here on only the wanted rows matter.
void Model::keep_wanted(Pass& p) {
  for (size_t j = 0; j < p.wanted.size(); j++) {
    const size_t i = size_t(p.wanted[j]);
    if (i == j) continue;
    std::copy_n(p.x.data() + i * size_t(config_.hidden), config_.hidden, p.x.data() + j * size_t(config_.hidden));
    std::copy_n(p.qkv.data() + i * size_t(p.qkv_width), p.qkv_width, p.qkv.data() + j * size_t(p.qkv_width));
    p.row_segment[j] = p.row_segment[i];
    p.row_position[j] = p.row_position[i];
  }
}

void Model::run_layers(Pass& p, Team::Walk& walk) {
  const Config& c = config_;
  const int width = c.heads * c.head_dim, thread = walk.thread;
  int live = p.batch->total;
  auto norm = [&](const std::vector<float>& weight, int r) {
    float* normed = p.threads[size_t(thread)].scratch.data();
    k_.rms_norm(p.x.data() + size_t(r) * size_t(c.hidden), weight.data(), c.hidden, c.norm_eps, normed);
    k_.quantize_row(normed, c.hidden, p.in.data() + size_t(r) * p.in_row);
  };
  auto add_to_x = [&](const Packed& w, const std::vector<uint8_t>& in, size_t in_row) {
    tiles(walk, w.tiles(), [&](int t) { k_.gemm_tile(w, t, in.data(), in_row, live, p.x.data() + 16 * t, size_t(c.hidden), true); });
  };
  rows(walk, live, [&](int r) {
    unpack_row(*embed_, p.batch->tokens[r], p.x.data() + size_t(r) * size_t(c.hidden));
    norm(layers_[0].attn_norm, r);
  });
  for (int l = 0; l < c.layers; l++) {
    const Layer& layer = layers_[size_t(l)];
    const bool last = l == c.layers - 1;
    project_qkv(p, layer, walk);
    rows(walk, live, [&](int r) { rotate_and_store(p, l, r); });
    if (last) {
      walk.phase(1, [&](int) { keep_wanted(p); });
      live = int(p.wanted.size());
      if (!live) return;
    }
    const std::vector<Unit>& units = last ? p.last_units : p.units;
    walk.phase(int(units.size()), [&](int u) { attend(p, l, units[size_t(u)], thread); });
    rows(walk, live,
         [&](int r) { k_.quantize_row(p.attended.data() + size_t(r) * size_t(width), width, p.heads.data() + size_t(r) * p.heads_row); });
    add_to_x(*layer.o, p.heads, p.heads_row);
    rows(walk, live, [&](int r) { norm(layer.ffn_norm, r); });
    feed_forward(p, layer, live, walk);
    add_to_x(*layer.down, p.ffn, p.ffn_row);
    rows(walk, live, [&](int r) { norm(last ? output_norm_ : layers_[size_t(l) + 1].attn_norm, r); });
  }
}

// Every buffer is sized here, so that nothing can fail once the threads run.
void Model::prepare(Pass& p, const Batch& b) const {
  const Config& c = config_;
  const size_t t = size_t(b.total);
  p.batch = &b;
  p.qkv_width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  p.in_row = activation_row_bytes(c.hidden);
  p.heads_row = activation_row_bytes(c.heads * c.head_dim);
  p.ffn_row = activation_row_bytes(c.ffn);
  grow(p.x, t * size_t(c.hidden));
  grow(p.qkv, t * size_t(p.qkv_width));
  grow(p.attended, t * size_t(c.heads * c.head_dim));
  grow(p.in, t * p.in_row);
  grow(p.heads, t * p.heads_row);
  grow(p.ffn, t * p.ffn_row);
  p.row_segment.clear();
  p.row_position.clear();
  size_t pages = 0;
  for (int s = 0; s < b.segments; s++) {
    for (int i = 0; i < b.lengths[s]; i++) {
      p.row_segment.push_back(s);
      p.row_position.push_back(b.starts[s] + i);
    }
    pages = std::max(pages, size_t(p.row_position.back()) / kPage + 1);
  }
  p.threads.resize(size_t(team_.size()));
  for (auto& own : p.threads) {
    grow(own.scratch, std::max({size_t(c.hidden), size_t(kRowBlock) * 64, 4 * pages * kPage}));
    grow(own.keys, pages);
    grow(own.values, pages);
  }
  p.wanted.assign(b.rows, b.rows + b.wanted);
  std::sort(p.wanted.begin(), p.wanted.end());
  p.wanted.erase(std::unique(p.wanted.begin(), p.wanted.end()), p.wanted.end());
  p.units = attention_units(p.row_segment);
  std::vector<int> segments;
  for (int row : p.wanted) segments.push_back(p.row_segment[size_t(row)]);
  p.last_units = attention_units(segments);
}

void Model::forward(const Batch& b, uint8_t* out) {
  check(b);
  if (!pass_) pass_ = std::make_unique<Pass>();
  Pass& p = *pass_;
  prepare(p, b);
  rope_.reach(*std::max_element(p.row_position.begin(), p.row_position.end()) + 1);
  team_.run(kPhasesPerLayer * config_.layers + 1, [&](Team::Walk& walk) { run_layers(p, walk); });
  for (int i = 0; i < b.wanted; i++) {
    const size_t j = size_t(std::lower_bound(p.wanted.begin(), p.wanted.end(), b.rows[i]) - p.wanted.begin());
    std::memcpy(out + size_t(i) * p.in_row, p.in.data() + j * p.in_row, p.in_row);
  }
}

const Packed& Model::output_matrix() const {
  if (!finished_) throw std::invalid_argument("logits: the model is not complete");
  return config_.tied ? *embed_ : *output_;
}

void Model::logits_of(const uint8_t* rows, int n, const int32_t* tokens, float* out) {
  const Packed& w = output_matrix();
  team_.parallel(n, [&](int i) {
    float tile[16];
    k_.gemm_tile(w, tokens[i] / 16, rows + size_t(i) * row_bytes(), row_bytes(), 1, tile, 16, false);
    out[i] = tile[tokens[i] % 16];
  });
}

void Model::logits(const uint8_t* rows, int n, float* out) {
  const Packed& w = output_matrix();
  const int chunk = 4, units = (w.tiles() + chunk - 1) / chunk;
  team_.parallel(units, [&](int u) {
    for (int t = u * chunk; t < std::min(w.tiles(), (u + 1) * chunk); t++)
      k_.gemm_tile(w, t, rows, row_bytes(), n, out + 16 * t, size_t(vocab_stride()), false);
  });
}

}  // namespace quintet
