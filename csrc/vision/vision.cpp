// Vision: a tile's way through the encoder, in stages of rows.
//
//   embedding     x = patches * Wpatch + bias + positions
//   each layer    q, k, v = q8(norm(x)) * Wq|Wk|Wv + biases        of all rows, before any of them goes on
//                 x += q8(attend(q, all keys and values)) * Wo + bias
//                 x += q8(gelu(q8(norm(x)) * Wup + bias)) * Wdown + bias
//   projection    out = q8(merge(norm(x))) * Wprojection           a token of scale x scale neighbours
//
// With float activations q8 is left out. A row meets others in its layer's keys and values alone, all of which it sees, and in its token.
#include "vision/vision.h"
#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace quintet {
namespace {

constexpr int kPage = 16;
constexpr int kLeast = 16, kMost = 256;  // rows of a piece: what a product reads its weights for, and what bounds the buffers
constexpr int kRowBlock = 32;            // rows that a block of the feed-forward part handles at a time
constexpr int kUnitRows = 24;            // rows of a head that attend together
constexpr int kAttention = 4;            // what a multiply-add of attention, in floats, takes of those of a product, roughly

}  // namespace

Vision::Vision(const VisionConfig& config, Cpu& cpu)
    : config_(checked(config)), k_(cpu.kernels), team_(cpu.team), act_(cpu.kernels, config.float_activations),
      layers_(size_t(config.layers)) {
  for (int c = 0; c < 3; c++)
    for (int v = 0; v < 256; v++) levels_.push_back(float((double(v) / 255 - double(config_.mean[c])) / double(config_.std[c])));
}

void Vision::begin(const uint8_t* pixels) {
  if (!finished_) throw std::invalid_argument("vision: not complete");
  const VisionConfig& c = config_;
  const size_t patches = size_t(c.patches()), pages = (patches + kPage - 1) / kPage, heads = size_t(c.heads),
               width = size_t(c.head_width());
  pixels_.assign(pixels, pixels + size_t(c.image) * size_t(c.image) * 3);
  x_.resize(patches * size_t(c.hidden));
  q_.resize(patches * heads * width);  // zero beyond head_dim, for ever
  keys_.resize(heads * pages * width * kPage);
  values_.resize(keys_.size());
  out_.resize(size_t(c.tokens()) * size_t(c.out));
  key_pages_.clear();
  value_pages_.clear();
  for (size_t i = 0; i < heads * pages; i++) {
    key_pages_.push_back(keys_.data() + i * width * kPage);
    value_pages_.push_back(values_.data() + i * width * kPage);
  }
  const int widest = std::max({c.hidden, c.patch_width(), c.merged()});
  act_.reserve(in_, kMost, widest);
  act_.reserve(ffn_, kMost, c.ffn_width());
  wide_.resize(kMost * std::max(3 * size_t(c.hidden), heads * width));
  own_.resize(size_t(team_.size()));
  for (Own& own : own_) {
    own.row.resize(std::max({size_t(widest), 2 * size_t(kRowBlock) * 32, 2 * size_t(c.hidden), width}));
    own.scores.resize(attend_scratch(kUnitRows, int(pages), c.head_width()));
  }
  stage_ = row_ = 0;
}

int64_t Vision::row_work(int stage) const {
  const VisionConfig& c = config_;
  const int64_t hidden = c.hidden;
  if (stage == 0) return hidden * c.patch_width();
  if (stage + 1 == stages()) return int64_t(c.out) * c.merged();
  if (stage % 2) return 3 * hidden * hidden;
  return 2 * int64_t(c.patches()) * c.heads * c.head_width() * kAttention + hidden * hidden + 2 * hidden * c.ffn_width();
}

int64_t Vision::tile_work() const {
  int64_t sum = 0;
  for (int stage = 0; stage < stages(); stage++) sum += row_work(stage) * stage_rows(stage);
  return sum;
}

bool Vision::advance(int64_t work) {
  if (stage_ < 0) throw std::invalid_argument("vision: no tile was begun");
  for (bool first = true; stage_ < stages(); first = false) {
    const int64_t each = row_work(stage_), wanted = work / each;
    if (!first && wanted < kLeast) break;
    const int n = std::min(int(std::clamp<int64_t>(wanted, kLeast, kMost)), stage_rows(stage_) - row_);
    run(stage_, row_, n);
    work -= each * n;
    row_ += n;
    if (row_ == stage_rows(stage_)) stage_++, row_ = 0;
  }
  return stage_ == stages();
}

void Vision::take(float* out) const {
  if (stage_ != stages()) throw std::invalid_argument("vision: the tile is not done");
  std::copy(out_.begin(), out_.end(), out);
}

void Vision::run(int stage, int from, int n) {
  team_.run([&](Team::Walk& walk) {
    if (stage == 0) return embed(walk, from, n);
    if (stage + 1 == stages()) return project(walk, from, n);
    const Layer& layer = layers_[size_t((stage - 1) / 2)];
    if (stage % 2) return project_qkv(walk, layer, from, n);
    attend(walk, from, n);
    feed_forward(walk, layer, from, n);
  });
}

template <class Row> void Vision::rows(Team::Walk& walk, int n, Row row) {
  const int chunk = std::clamp(n / (4 * team_.size()), 1, 16);
  walk.phase((n + chunk - 1) / chunk, [&](int u) {
    for (int r = u * chunk; r < std::min(n, (u + 1) * chunk); r++) row(r);
  });
}

// The product of n rows into rows of `width` floats; of the u-th two tiles.
void Vision::give_pair(const Packed& w, int u, const Activations::View& in, int n, float* to, size_t width, bool accumulate) const {
  act_.multiply(w, 2 * u, std::min(2, w.tiles() - 2 * u), in, n, to + 32 * u, width, accumulate);
}

// Of all tiles.
void Vision::give(Team::Walk& walk, const Packed& w, const Activations::View& in, int n, float* to, size_t width, bool accumulate) const {
  walk.phase((w.tiles() + 1) / 2, [&](int u) { give_pair(w, u, in, n, to, width, accumulate); });
}

// The values of a patch, colour by colour, each row by row, as the weights of a convolution lie.
void Vision::patch_row(int patch, float* row) const {
  const VisionConfig& c = config_;
  const int top = patch / c.side() * c.patch, left = patch % c.side() * c.patch;
  float* to = row;
  for (int colour = 0; colour < 3; colour++) {
    const float* level = levels_.data() + 256 * colour;
    for (int y = top; y < top + c.patch; y++) {
      const uint8_t* pixel = pixels_.data() + (size_t(y) * size_t(c.image) + size_t(left)) * 3 + colour;
      for (int x = 0; x < c.patch; x++) *to++ = level[pixel[3 * x]];
    }
  }
  std::fill(to, row + c.patch_width(), 0.0f);
}

void Vision::embed(Team::Walk& walk, int from, int n) {
  const VisionConfig& c = config_;
  const size_t hidden = size_t(c.hidden);
  rows(walk, n, [&](int r) {
    float* row = own_[size_t(walk.thread)].row.data();
    patch_row(from + r, row);
    act_.put_row(row, c.patch_width(), in_, size_t(r));
  });
  float* x = x_.data() + size_t(from) * hidden;
  give(walk, *patch_, act_.view(in_, c.patch_width()), n, x, hidden, false);
  rows(walk, n, [&](int r) {
    k_.add(x + size_t(r) * hidden, patch_bias_.data(), c.hidden);
    k_.add(x + size_t(r) * hidden, positions_.data() + size_t(from + r) * hidden, c.hidden);
  });
}

void Vision::project_qkv(Team::Walk& walk, const Layer& layer, int from, int n) {
  const VisionConfig& c = config_;
  const size_t hidden = size_t(c.hidden);
  rows(walk, n, [&](int r) {
    float* row = own_[size_t(walk.thread)].row.data();
    k_.layer_norm(x_.data() + size_t(from + r) * hidden, layer.attn_norm.data(), layer.attn_norm_bias.data(), c.hidden, c.norm_eps, row);
    act_.put_row(row, c.hidden, in_, size_t(r));
  });
  const int pairs = (layer.q->tiles() + 1) / 2;
  const Activations::View in = act_.view(in_, c.hidden);
  walk.phase(3 * pairs, [&](int u) {
    const int which = u / pairs;
    const Packed& w = which == 0 ? *layer.q : which == 1 ? *layer.k : *layer.v;
    give_pair(w, u % pairs, in, n, wide_.data() + size_t(which) * hidden, 3 * hidden, false);
  });
  rows(walk, n, [&](int r) { store(layer, from + r, wide_.data() + size_t(r) * 3 * hidden, walk.thread); });
}

// A row's queries, keys and values to where attention reads them.
void Vision::store(const Layer& layer, int row, float* q, int thread) {
  const VisionConfig& c = config_;
  float *k = q + c.hidden, *v = k + c.hidden;
  k_.add(q, layer.q_bias.data(), c.hidden);
  k_.add(k, layer.k_bias.data(), c.hidden);
  k_.add(v, layer.v_bias.data(), c.hidden);
  const int dim = c.head_dim(), width = c.head_width(), pages = (c.patches() + kPage - 1) / kPage;
  k_.scale_row(q, 1.0f / std::sqrt(float(dim)), c.hidden);
  float* whole = own_[size_t(thread)].row.data();
  uint16_t half[1024];
  std::fill(whole + dim, whole + width, 0.0f);
  for (int h = 0; h < c.heads; h++) {
    std::copy_n(q + h * dim, dim, q_.data() + (size_t(row) * size_t(c.heads) + size_t(h)) * size_t(width));
    const size_t page = (size_t(h) * size_t(pages) + size_t(row / kPage)) * size_t(width) * kPage;
    std::copy_n(k + h * dim, dim, whole);
    k_.to_half(whole, width, half);
    for (int d = 0; d < width; d++) keys_[page + size_t(d) * kPage + size_t(row % kPage)] = half[d];
    std::copy_n(v + h * dim, dim, whole);
    k_.to_half(whole, width, values_.data() + page + size_t(row % kPage) * size_t(width));
  }
}

// Every row sees every other.
void Vision::attend(Team::Walk& walk, int from, int n) {
  const VisionConfig& c = config_;
  const int width = c.head_width(), pages = (c.patches() + kPage - 1) / kPage, blocks = (n + kUnitRows - 1) / kUnitRows;
  walk.phase(c.heads * blocks, [&](int u) {
    const int h = u / blocks, end = std::min(n, (u % blocks + 1) * kUnitRows);
    const int begin = u % blocks * kUnitRows, count = end - begin;
    const float* q[kUnitRows];
    float* out[kUnitRows];
    int position[kUnitRows];
    for (int i = 0; i < count; i++) {
      q[i] = q_.data() + (size_t(from + begin + i) * size_t(c.heads) + size_t(h)) * size_t(width);
      out[i] = wide_.data() + (size_t(begin + i) * size_t(c.heads) + size_t(h)) * size_t(width);
      position[i] = c.patches() - 1;
    }
    k_.attend({q, position, nullptr, count, width, 0.0f, nullptr, key_pages_.data() + h * pages, value_pages_.data() + h * pages, 0,
               own_[size_t(walk.thread)].scores.data(), out});
  });
}

void Vision::feed_forward(Team::Walk& walk, const Layer& layer, int from, int n) {
  const VisionConfig& c = config_;
  const size_t hidden = size_t(c.hidden);
  const int dim = c.head_dim(), width = c.head_width();
  float* x = x_.data() + size_t(from) * hidden;
  rows(walk, n, [&](int r) {
    float* row = own_[size_t(walk.thread)].row.data();
    for (int h = 0; h < c.heads; h++)
      std::copy_n(wide_.data() + (size_t(r) * size_t(c.heads) + size_t(h)) * size_t(width), dim, row + h * dim);
    act_.put_row(row, c.hidden, in_, size_t(r));
  });
  give(walk, *layer.o, act_.view(in_, c.hidden), n, x, hidden, true);
  rows(walk, n, [&](int r) {
    float* row = own_[size_t(walk.thread)].row.data();
    k_.add(x + size_t(r) * hidden, layer.o_bias.data(), c.hidden);
    k_.layer_norm(x + size_t(r) * hidden, layer.ffn_norm.data(), layer.ffn_norm_bias.data(), c.hidden, c.norm_eps, row);
    act_.put_row(row, c.hidden, in_, size_t(r));
  });
  walk.phase(c.ffn_width() / 32, [&](int block) {
    float* up = own_[size_t(walk.thread)].row.data();
    float* one = up + kRowBlock * 32;
    std::fill_n(one, kRowBlock * 32, 1.0f);
    for (int r0 = 0; r0 < n; r0 += kRowBlock) {
      const int count = std::min(kRowBlock, n - r0);
      std::fill_n(up, 32 * count, 0.0f);
      const int tiles = std::min(2, layer.up->tiles() - 2 * block);
      act_.multiply(*layer.up, 2 * block, tiles, act_.view(in_, c.hidden, size_t(r0)), count, up, 32, false);
      for (int r = 0; r < count; r++) k_.add(up + 32 * r, layer.up_bias.data() + 32 * block, 32);
      k_.gelu_mul(up, one, 32 * count, up);
      act_.put_column(up, count, c.ffn_width(), block, ffn_, size_t(r0));
    }
  });
  give(walk, *layer.down, act_.view(ffn_, c.ffn_width()), n, x, hidden, true);
  rows(walk, n, [&](int r) { k_.add(x + size_t(r) * hidden, layer.down_bias.data(), c.hidden); });
}

// The normed rows of a token's patches, row by row of its square: side by side, or their mean, normed once more.
void Vision::merge(int token, int thread, int row) {
  const VisionConfig& c = config_;
  const int across = c.side() / c.scale, top = token / across * c.scale, left = token % across * c.scale;
  float* whole = own_[size_t(thread)].row.data();
  const bool mean = c.projector == Projector::gemma3;
  for (int i = 0; i < c.scale * c.scale; i++) {
    const size_t patch = size_t((top + i / c.scale) * c.side() + left + i % c.scale);
    float* to = whole + (mean ? (i ? c.hidden : 0) : i * c.hidden);
    k_.layer_norm(x_.data() + patch * size_t(c.hidden), post_norm_.data(), post_norm_bias_.data(), c.hidden, c.norm_eps, to);
    if (mean && i) k_.add(whole, to, c.hidden);
  }
  if (mean) {
    k_.scale_row(whole, 1.0f / float(c.scale * c.scale), c.hidden);
    k_.rms_norm(whole, pooled_norm_.data(), c.hidden, c.norm_eps, whole);
  }
  act_.put_row(whole, c.merged(), in_, size_t(row));
}

void Vision::project(Team::Walk& walk, int from, int n) {
  rows(walk, n, [&](int r) { merge(from + r, walk.thread, r); });
  const size_t out = size_t(config_.out);
  give(walk, *projection_, act_.view(in_, config_.merged()), n, out_.data() + size_t(from) * out, out, false);
}

}  // namespace quintet
