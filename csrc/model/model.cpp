// Model: the forward pass over a ragged batch, rows of many sequences one after the other.
//
//   x = embed[token]
//   each layer:   in = q8(norm(x))          qkv = in * Wq|Wk|Wv     norms of q and k, rope, keys and values into pages
//                 heads = q8(attend(q, pages))                      x += heads * Wo
//                 in = q8(norm(x))          ffn = q8(act(in * Wgate) * (in * Wup))
//                                           x += ffn * Wdown
//   out = q8(norm(x))                       of the wanted rows alone, which are all that the last layer attends for
//
// With float activations q8 is left out: rows stay floats. What of this a layer has is its LayerConfig (config.h). Where what is added is
// normed or scaled first, it goes by way of a branch.
//
// A row meets other rows nowhere but in its own sequence's pages: all else is per row, in an order that neither the batch nor the number of
// threads decides. So a number depends on the tokens before it and on nothing else:
// docs/decisions/0002-numbers-that-do-not-depend-on-the-batch.md has the contract, and why a drafted, cached, preempted or chunked sequence
// has the same bits.
#include "model/model.h"
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include "model/pass.h"
#include "model/scoring.h"

namespace quintet {
namespace {

// Rows that one phase of the feed-forward handles at a time: its scratch stays in the first-level cache. In panels it is the second-level
// one, as for each block of them the weights are made ready once more.
constexpr int kRowBlock = 96, kPanelRowBlock = kMostBand;

void fail(const char* what) { throw std::invalid_argument(what); }

}  // namespace

Model::Model(const Config& config, Cpu& cpu)
    : config_(checked(config)), k_(cpu.kernels), team_(cpu.team), act_(cpu.kernels, config.float_activations) {
  for (const RopeParams& r : config_.ropes) ropes_.emplace_back(r, config_.context);
  for (const LayerConfig& c : config_.layers) layers_.emplace_back().c = c;
  auto window = [](const LayerConfig& c) { return c.window; };
  if (std::ranges::all_of(config_.layers, window)) reach_ = std::ranges::max(config_.layers, {}, window).window;
}

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
    const int used = (b.starts[s] + b.lengths[s] + kPage - 1) / kPage, seen = reach_ ? std::max(0, b.starts[s] - reach_ + 1) / kPage : 0;
    if (used > b.table_width) fail("forward: a block table that is too short");
    for (int i = seen; i < used; i++) {  // no layer looks at those before
      const int page = b.tables[size_t(s) * size_t(b.table_width) + size_t(i)];
      if (page < 0 || page >= pages_) fail("forward: a page out of range");
    }
  }
  if (sum != b.total) fail("forward: lengths do not sum to the number of tokens");
  for (int i = 0; i < b.total; i++)
    if (b.tokens[i] < 0 || b.tokens[i] >= config_.vocab) fail("forward: a token id out of range");
  for (int i = 0; i < b.wanted; i++)
    if (b.rows[i] < 0 || b.rows[i] >= b.total) fail("forward: a row out of range");
  for (int i = 0; i < b.givens; i++)
    if (b.given[i] <= (i ? b.given[i - 1] : -1) || b.given[i] >= b.total) fail("forward: a given row out of range or order");
  check_spans(b);
}

void Model::check_spans(const Batch& b) const {
  for (int i = 0, s = 0, from = 0; i < b.span_count; i++) {
    const Span& span = b.spans[i];
    if (span.first < (i ? b.spans[i - 1].first + b.spans[i - 1].count : 0) || span.first >= b.total || span.count <= 0)
      fail("forward: a span out of range or order");
    while (span.first >= from + b.lengths[s]) from += b.lengths[s++];
    if (span.count > from + b.lengths[s] - span.first) fail("forward: a span beyond its segment");
  }
}

void Model::project_qkv(Pass& p, int l, Team::Walk& walk) {
  const Layer& layer = layers_[size_t(l)];
  const int q = layer.q->tiles(), k = layer.k->tiles(), v = layer.v->tiles();
  const size_t width = size_t(p.qkv_width);
  const auto project = [&](int first, int count, int from, int to) {
    const Activations::View in = band(p, {l, Part::attention}, p.batch->total, from, to, walk.thread);
    float* out = p.qkv.data() + size_t(from) * width;
    const auto some = [&](const Packed& w, int begin) {
      const int t = std::max(first, begin), end = std::min(first + count, begin + w.tiles());
      if (t < end) act_.multiply(w, t - begin, end - t, in, to - from, out + 16 * t, width, false);
    };
    some(*layer.q, 0);
    some(*layer.k, q);
    some(*layer.v, q + k);
  };
  products(walk, p.batch->total, q + k + v, project, Work::qkv);
}

// gate and up for 32 columns and rows [from, to), act(gate) * up, put into rows at once.
void Model::gated_block(Pass& p, const Layer& layer, const Gated& part, const Activations::View& rows, int block, int from, int to,
                        int thread) const {
  float* gate = p.threads[size_t(thread)].scratch.data();
  const int most = act_.in_panels(size_t(to - from)) ? kPanelRowBlock : kRowBlock;
  float* up = gate + 32 * most;
  for (int r0 = from; r0 < to; r0 += most) {
    const int n = std::min(most, to - r0);
    const Activations::View in = act_.from(rows, config_.hidden, size_t(r0 - from));
    const int at_once = act_.side_by_side(part.up.format, n);
    for (int t = 0; t < 2; t += at_once) {  // in turns: while one multiplies, the other's next tile has time to come
      const int tile = part.first_tile + 2 * block + t;
      if (part.gate) act_.multiply(*part.gate, tile, at_once, in, n, gate + 16 * t, 32, false);
      act_.multiply(part.up, tile, at_once, in, n, up + 16 * t, 32, false);
    }
    if (layer.c.ffn_bias) {
      const size_t first = 16 * size_t(part.first_tile) + 32 * size_t(block);
      for (int r = 0; r < n && part.gate; r++) k_.add(gate + 32 * r, part.gate_bias.data() + first, 32);
      for (int r = 0; r < n; r++) k_.add(up + 32 * r, part.up_bias.data() + first, 32);
    }
    if (!part.gate) {  // times 1, which is exact
      std::copy_n(up, 32 * n, gate);
      std::fill_n(up, 32 * n, 1.0f);
    }
    switch (layer.c.activation) {
      case Activation::silu: k_.silu_mul(gate, up, 32 * n, gate); break;
      case Activation::gelu: k_.gelu_mul(gate, up, 32 * n, gate); break;
      case Activation::swiglu_oai: k_.swiglu_oai_mul(gate, up, 32 * n, gate); break;
    }
    act_.put_column(gate, n, part.ffn, block, part.out, size_t(r0));
  }
}

void Model::feed_forward(Pass& p, int l, int live, Team::Walk& walk) {
  const Layer& layer = layers_[size_t(l)];
  const int ffn = layer.dense_ffn(config_);
  const Gated part{layer.gate ? &*layer.gate : nullptr, *layer.up, layer.gate_bias, layer.up_bias, 0, ffn, p.ffn};
  const auto gated = [&](int first, int count, int from, int to) {
    const Activations::View in = band(p, {l, Part::ffn}, live, from, to, walk.thread);
    for (int block = first; block < first + count; block++) gated_block(p, layer, part, in, block, from, to, walk.thread);
  };
  products(walk, live, ffn / 32, gated, Work::gate_up);
  const auto in = [&](int from, int) { return meanwhile(p, act_.view(p.ffn, ffn, size_t(from)), walk.thread); };
  give(p, layer.ffn_by_branch(), *layer.down, in, live, walk, Work::down);
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
    p.row_last[j] = p.row_last[i];
  }
}

// What a layer adds to the rows: at once, or into the branch, to be normed or scaled first; `take` ends it.
template <class In> void Model::give(Pass& p, bool by_branch, const Packed& w, In in, int live, Team::Walk& walk, Work work) {
  float* to = by_branch ? p.branch.data() : p.x.data();
  const size_t width = size_t(config_.hidden);
  const auto add = [&](int t, int count, int from, int end) {
    act_.multiply(w, t, count, in(from, end), end - from, to + size_t(from) * width + 16 * t, width, !by_branch);
  };
  products(walk, live, w.tiles(), add, work);
}

void Model::take(Pass& p, const Layer& layer, bool by_branch, const FloatLines& bias, const FloatLines& norm, int r) {
  const Config& c = config_;
  float* branch = p.branch.data() + size_t(r) * size_t(c.hidden);
  float* x = p.x.data() + size_t(r) * size_t(c.hidden);
  if (!bias.empty()) k_.add(by_branch ? branch : x, bias.data(), c.hidden);
  if (!by_branch) return;
  if (layer.c.post_norm) k_.rms_norm(branch, norm.data(), c.hidden, c.norm_eps, branch);
  if (layer.c.residual_scale != 1.0f) k_.scale_row(branch, layer.c.residual_scale, c.hidden);
  k_.add(x, branch, c.hidden);
}

// A layer without norms before its blocks has no weight for it.
const float* Model::enter(Pass& p, const FloatLines& weight, const FloatLines& bias, int r, int thread, Activations::Matrix& to) {
  const Config& c = config_;
  float* row = p.x.data() + size_t(r) * size_t(c.hidden);
  float* normed = weight.empty() ? row : p.threads[size_t(thread)].scratch.data();
  if (!bias.empty()) k_.layer_norm(row, weight.data(), bias.data(), c.hidden, c.norm_eps, normed);
  else if (!weight.empty()) k_.rms_norm(row, weight.data(), c.hidden, c.norm_eps, normed);
  act_.put_row(normed, c.hidden, to, size_t(r));
  return normed;
}

const float* Model::enter(Pass& p, const Entry& e, int r, int thread, Activations::Matrix& to) {
  const Layer& layer = layers_[size_t(e.layer)];
  if (e.part == Part::ffn) return enter(p, layer.ffn_norm, layer.ffn_norm_bias, r, thread, to);
  return enter(p, layer.attn_norm, layer.attn_norm_bias, r, thread, to);
}

int Model::few_rows() const { return std::max(1, kSerialFloats / config_.hidden); }

// Whether each thread makes the rows ready by itself: few, and nothing but norms to be done.
bool Model::each_enters(const Entry& e, int live) const {
  if (live > few_rows()) return false;
  if (e.part == Part::ffn) {
    const Layer& layer = layers_[size_t(e.layer)];
    return !layer.attn_by_branch() && layer.o_bias.empty() && !layer.c.experts.count;
  }
  if (!e.layer) return false;
  const Layer& before = layers_[size_t(e.layer) - 1];
  return !before.ffn_by_branch() && before.down_bias.empty();
}

const Activations::Matrix& Model::entered(Pass& p, const Entry& e, int live, int thread) {
  if (!each_enters(e, live)) return p.in;
  Pass::Own& own = p.threads[size_t(thread)];
  if (own.entered == e) return own.in;
  for (int r = 0; r < live; r++) enter(p, e, r, thread, own.in);
  own.entered = e;
  return own.in;
}

Activations::View Model::meanwhile(Pass& p, Activations::View rows, int thread) {
  rows.ahead = &p.threads[size_t(thread)].ahead;
  return rows;
}

Activations::View Model::band(Pass& p, const Entry& e, int live, int from, int to, int thread) {
  const int k = e.part == Part::heads ? config_.heads * config_.head_dim : config_.hidden;
  const Activations::Matrix& m = e.part == Part::heads ? p.heads : entered(p, e, live, thread);
  if (!act_.in_panels(size_t(to - from))) return meanwhile(p, act_.view(m, k, size_t(from)), thread);
  Pass::Own& own = p.threads[size_t(thread)];
  if (own.laid == e && own.laid_from == from) return own.laid_view;
  own.laid_view = meanwhile(p, act_.view(m.rows.data() + size_t(from) * act_.bytes(k), to - from, k, own.panels), thread);
  own.laid = e;
  own.laid_from = from;
  return own.laid_view;
}

void Model::run_attention(Pass& p, int l, bool last, int& live, Team::Walk& walk) {
  const Layer& layer = layers_[size_t(l)];
  const int width = config_.heads * config_.head_dim, thread = walk.thread;
  const bool by_units = p.rotated_by_units && !last && layer.c.qk_norm != QkNorm::full;
  if (!by_units) rows(walk, live, [&](int r) { rotate_and_store(p, l, r, 0, config_.kv_heads); }, Work::rotation);
  if (last) {
    walk.phase(1, [&](int) { keep_wanted(p); });
    live = int(p.wanted.size());
    if (!live) return;
  }
  const std::vector<Unit>& units = last ? p.last_units : p.units;
  const auto some = [&](int i) {
    const Unit& u = units[size_t(i)];
    for (int r = u.row_from; by_units && r < u.row_to; r++) rotate_and_store(p, l, r, u.kv_head, u.kv_head + 1);
    attend(p, l, u, thread);
  };
  walk.phase(int(units.size()), some, Work::attention);
  look_ahead(p, l + 1, walk);
  const auto put_heads = [&](int r) { act_.put_row(p.attended.data() + size_t(r) * size_t(width), width, p.heads, size_t(r)); };
  if (!whole_blocks()) rows(walk, live, put_heads, Work::heads);
  const auto in = [&](int from, int to) { return band(p, {l, Part::heads}, live, from, to, thread); };
  give(p, layer.attn_by_branch(), *layer.o, in, live, walk, Work::attention_out);
}

void Model::run_layers(Pass& p, Team::Walk& walk) {
  const Config& c = config_;
  const int thread = walk.thread, count = int(layers_.size());
  int live = p.batch->total;
  const auto begin = [&](int r) {
    float* row = p.x.data() + size_t(r) * size_t(c.hidden);
    if (const float* given = p.row_given[size_t(r)]) {
      std::copy_n(given, c.hidden, row);
    } else {
      unpack_row(*embed_, p.batch->tokens[r], row);
      if (c.embed_scale != 1.0f) k_.scale_row(row, c.embed_scale, c.hidden);
    }
    enter(p, {0, Part::attention}, r, thread, p.in);
  };
  rows(walk, live, begin, Work::norms);
  look_ahead(p, 0, walk);
  for (int l = 0; l < count; l++) {
    const Layer& layer = layers_[size_t(l)];
    const bool last = l == count - 1;
    project_qkv(p, l, walk);
    run_attention(p, l, last, live, walk);
    if (!live) return;
    const auto to_ffn = [&](int r) {
      take(p, layer, layer.attn_by_branch(), layer.o_bias, layer.post_attn_norm, r);
      const float* normed = enter(p, {l, Part::ffn}, r, thread, p.in);
      if (layer.c.experts.count) route(p, layer, normed, r, thread);
    };
    if (!each_enters({l, Part::ffn}, live)) rows(walk, live, to_ffn, Work::norms);
    if (layer.c.experts.count) run_experts(p, l, live, walk);
    if (layer.dense_ffn(c)) feed_forward(p, l, live, walk);
    const auto to_next = [&](int r) {
      if (layer.c.experts.count) combine(p, layer, r);
      take(p, layer, layer.ffn_by_branch(), layer.down_bias, layer.post_ffn_norm, r);
      if (last) enter(p, output_norm_, output_norm_bias_, r, thread, p.in);
      else enter(p, {l + 1, Part::attention}, r, thread, p.in);
    };
    if (last || !each_enters({l + 1, Part::attention}, live)) rows(walk, live, to_next, Work::norms);
  }
}

// What only some layers need, for t rows.
void Model::reserve(Pass& p, const Layer& layer, size_t t) const {
  const ExpertConfig& e = layer.c.experts;
  const size_t hidden = size_t(config_.hidden), pairs = t * size_t(e.used);
  if (layer.ffn_by_branch()) grow(p.branch, t * hidden);
  act_.reserve(p.ffn, t, layer.dense_ffn(config_));
  if (!e.count) return;  // what an earlier layer with experts has stays as it is laid out
  grow(p.chosen, pairs);
  grow(p.slots, pairs);
  grow(p.weights, pairs);
  const size_t places = slots_of(e, pairs);
  act_.reserve(p.expert_in, places, config_.hidden);
  act_.reserve(p.expert_ffn, places, e.ffn);
  grow(p.expert_out, places * hidden);
  for (Pass::Own& own : p.threads) grow(own.scores, size_t(e.count + 15));
}

// Every buffer is sized here, so that nothing can fail once the threads run.
void Model::prepare(Pass& p, const Batch& b) {
  const Config& c = config_;
  const size_t t = size_t(b.total);
  p.batch = &b;
  p.qkv_width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  grow(p.x, t * size_t(c.hidden));
  p.threads.resize(size_t(team_.size()));
  p.groups.resize(layers_.size());
  for (const Layer& layer : layers_) reserve(p, layer, t);
  grow(p.qkv, t * size_t(p.qkv_width));
  grow(p.attended, t * size_t(c.heads * c.head_dim));
  act_.reserve_rows(p.in, t, c.hidden);
  act_.reserve_rows(p.heads, t, c.heads * c.head_dim);
  p.row_segment.clear();
  p.row_position.clear();
  int pages = 0;
  for (int s = 0; s < b.segments; s++) {
    for (int i = 0; i < b.lengths[s]; i++) {
      p.row_segment.push_back(s);
      p.row_position.push_back(b.starts[s] + i);
    }
    pages = std::max(pages, p.row_position.back() / kPage + 1);
  }
  p.row_last = p.row_position;
  for (const Span* span = b.spans; span < b.spans + b.span_count; span++)
    for (int r = span->first; r < span->first + span->count; r++)
      p.row_last[size_t(r)] = p.row_position[size_t(span->first + span->count - 1)];
  p.row_given.assign(t, nullptr);
  for (int i = 0; i < b.givens; i++) p.row_given[size_t(b.given[i])] = b.embeddings + size_t(i) * size_t(c.hidden);
  p.wanted.assign(b.rows, b.rows + b.wanted);
  std::sort(p.wanted.begin(), p.wanted.end());
  p.wanted.erase(std::unique(p.wanted.begin(), p.wanted.end()), p.wanted.end());
  p.units = attention_units(p.row_segment, pages);
  p.rotated_by_units = int(p.units.size()) == b.segments * c.kv_heads && p.units[0].head_to - p.units[0].head_from == c.heads / c.kv_heads;
  std::vector<int> segments;
  for (int row : p.wanted) segments.push_back(p.row_segment[size_t(row)]);
  p.last_units = attention_units(segments, pages);
  reserve_attention(p, pages);
  for (auto& own : p.threads) {
    grow(own.scratch, std::max(size_t(c.hidden), size_t(kPanelRowBlock) * 64));
    act_.reserve_rows(own.in, std::min(t, size_t(few_rows())), c.hidden);
    act_.reserve(own.panels, std::min(t, size_t(kMostBand + kPanelRows)), std::max(c.hidden, c.heads * c.head_dim));
    own.entered = own.laid = {};
  }
}

void Model::forward(const Batch& b, uint8_t* out, const std::function<void()>& meanwhile) {
  check(b);
  if (!pass_) pass_ = std::make_unique<Pass>();
  Pass& p = *pass_;
  prepare(p, b);
  const int reached = *std::max_element(p.row_position.begin(), p.row_position.end()) + 1;
  for (RopeTable& rope : ropes_) rope.reach(reached);
  team_.run([&](Team::Walk& walk) { run_layers(p, walk); }, meanwhile);
  for (int i = 0; i < b.wanted; i++) {
    const size_t j = size_t(std::lower_bound(p.wanted.begin(), p.wanted.end(), b.rows[i]) - p.wanted.begin());
    std::memcpy(out + size_t(i) * row_bytes(), p.in.rows.data() + j * row_bytes(), row_bytes());
  }
}

}  // namespace quintet
