// Model: taking tensors in, by name, and reserving KV memory.
#include <algorithm>
#include <stdexcept>
#include <utility>
#include "model/model.h"
#include "model/tensor_name.h"

namespace quintet {
namespace {

void fail(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

int split_layer(const std::string& name, int layers, std::string* rest) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos || dot == 0 || dot > 5) {
    *rest = name;
    return -1;
  }
  int layer = 0;
  for (size_t i = 0; i < dot; i++) {
    if (name[i] < '0' || name[i] > '9') fail("model: unknown tensor '" + name + "'");
    layer = layer * 10 + (name[i] - '0');
  }
  if (layer >= layers) fail("model: tensor '" + name + "' is past the last layer");
  *rest = name.substr(dot + 1);
  return layer;
}

std::optional<Packed>* Model::matrix_slot(const std::string& name, int* rows, int* cols) {
  const Config& c = config_;
  std::string part;
  const int l = split_layer(name, int(layers_.size()), &part);
  auto slot = [&](std::optional<Packed>& p, int n, int k) {
    *rows = n;
    *cols = k;
    return &p;
  };
  if (l < 0) {
    if (part == "embed") return slot(embed_, c.vocab, c.hidden);
    if (part == "output" && !c.tied) return slot(output_, c.vocab, c.hidden);
    return nullptr;
  }
  Layer& y = layers_[size_t(l)];
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  if (part == "q") return slot(y.q, q, c.hidden);
  if (part == "k") return slot(y.k, kv, c.hidden);
  if (part == "v") return slot(y.v, kv, c.hidden);
  if (part == "o") return slot(y.o, c.hidden, q);
  const int dense = y.dense_ffn(c), count = y.c.experts.count, ffn = y.c.experts.ffn;
  if (part == "gate" && dense && y.c.gated) return slot(y.gate, dense, c.hidden);
  if (part == "up" && dense) return slot(y.up, dense, c.hidden);
  if (part == "down" && dense) return slot(y.down, c.hidden, dense);
  if (part == "gate_exps" && count) return slot(y.gate_exps, count * ffn, c.hidden);
  if (part == "up_exps" && count) return slot(y.up_exps, count * ffn, c.hidden);
  if (part == "down_exps" && count) return slot(y.down_exps, count * c.hidden, ffn);
  return nullptr;
}

FloatLines* Model::vector_slot(const std::string& name, int* size) {
  const Config& c = config_;
  std::string part;
  const int l = split_layer(name, int(layers_.size()), &part);
  auto slot = [&](FloatLines& v, int n) {
    *size = n;
    return &v;
  };
  if (l < 0 && part == "output_norm_bias" && c.layer_norm) return slot(output_norm_bias_, c.hidden);
  if (l < 0) return part == "output_norm" ? slot(output_norm_, c.hidden) : nullptr;
  Layer& y = layers_[size_t(l)];
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const bool pre = y.c.pre_norm, post = y.c.post_norm, qk = y.c.qk_norm != QkNorm::none, whole = y.c.qk_norm == QkNorm::full;
  const int count = y.c.experts.count, ffn = y.c.experts.ffn, dense = y.c.ffn_bias ? y.dense_ffn(c) : 0;
  if (part == "attn_norm" && pre) return slot(y.attn_norm, c.hidden);
  if (part == "ffn_norm" && pre) return slot(y.ffn_norm, c.hidden);
  if (part == "attn_norm_bias" && pre && c.layer_norm) return slot(y.attn_norm_bias, c.hidden);
  if (part == "ffn_norm_bias" && pre && c.layer_norm) return slot(y.ffn_norm_bias, c.hidden);
  if (part == "post_attn_norm" && post) return slot(y.post_attn_norm, c.hidden);
  if (part == "post_ffn_norm" && post) return slot(y.post_ffn_norm, c.hidden);
  if (part == "q_norm" && qk) return slot(y.q_norm, whole ? q : c.head_dim);
  if (part == "k_norm" && qk) return slot(y.k_norm, whole ? kv : c.head_dim);
  if (part == "router" && count) return slot(y.router, count * c.hidden);
  if (part == "q_bias" && y.c.qkv_bias) return slot(y.q_bias, q);
  if (part == "k_bias" && y.c.qkv_bias) return slot(y.k_bias, kv);
  if (part == "v_bias" && y.c.qkv_bias) return slot(y.v_bias, kv);
  if (part == "o_bias" && y.c.o_bias) return slot(y.o_bias, c.hidden);
  if (part == "sinks" && y.c.sinks) return slot(y.sinks, c.heads);
  if (part == "gate_bias" && dense && y.c.gated) return slot(y.gate_bias, dense);
  if (part == "up_bias" && dense) return slot(y.up_bias, dense);
  if (part == "down_bias" && dense) return slot(y.down_bias, c.hidden);
  if (!y.c.ffn_bias || !count) return nullptr;
  if (part == "router_bias") return slot(y.router_bias, count);
  if (part == "gate_exps_bias") return slot(y.gate_exps_bias, count * ffn);
  if (part == "up_exps_bias") return slot(y.up_exps_bias, count * ffn);
  if (part == "down_exps_bias") return slot(y.down_exps_bias, count * c.hidden);
  return nullptr;
}

// Source row of each packed row: pairs (2i, 2i+1) of the rotated dimensions become (i, i + dim/2).
std::vector<int> Model::rope_order(int heads) const {
  const int dim = config_.ropes.empty() ? 0 : config_.ropes[0].dim, half = dim / 2;
  std::vector<int> order(size_t(heads) * size_t(config_.head_dim));
  for (int h = 0; h < heads; h++) {
    const int base = h * config_.head_dim;
    for (int i = 0; i < config_.head_dim; i++) order[size_t(base + i)] = base + (i < half ? 2 * i : i < dim ? 2 * (i - half) + 1 : i);
  }
  return order;
}

void Model::pack_parallel(Packed& out, const std::string& type, const uint8_t* raw, const std::vector<int>& order) {
  const int tiles = out.tiles(), chunk = 8, units = (tiles + chunk - 1) / chunk;
  team_.parallel(units, [&](int u) { pack_tiles(out, type, raw, order, u * chunk, std::min(tiles, (u + 1) * chunk)); });
}

void Model::set(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* raw, size_t size, Floats floats) {
  const std::string tensor = "tensor '" + name + "'";
  if (rows <= 0 || cols <= 0 || raw_bytes(type, rows, cols) != size) fail(tensor + ": length does not match its type and shape");
  const bool rotated =
      config_.interleaved && (name.ends_with(".q") || name.ends_with(".k") || name.ends_with(".q_bias") || name.ends_with(".k_bias"));
  int n = 0, k = 0;
  if (auto* slot = matrix_slot(name, &n, &k)) {
    if (rows != n || cols != k) fail(tensor + ": wrong shape");
    if (*slot) fail(tensor + ": given twice");
    *slot = pack_empty(type, rows, cols, floats, weights_);
    if (act_.floats() != is_float((*slot)->format)) fail(tensor + ": floats are kept where all matrices are, got " + type);
    pack_parallel(**slot, type, raw, rotated ? rope_order(n / config_.head_dim) : std::vector<int>{});
    return;
  }
  auto* vec = vector_slot(name, &n);
  if (!vec) fail("model: unknown " + tensor);
  if (int64_t(rows) * cols != n || (rows != 1 && !name.ends_with(".router") && !name.ends_with("_exps_bias")))
    fail(tensor + ": wrong shape");
  FloatLines values(static_cast<size_t>(n));
  dequantize_row(type, raw, 0, n, values.data());
  if (rotated) {
    const auto order = rope_order(n / config_.head_dim);
    vec->resize(size_t(n));
    for (int i = 0; i < n; i++) (*vec)[size_t(i)] = values[size_t(order[size_t(i)])];
  } else {
    *vec = std::move(values);
  }
}

void Model::finish() {
  std::string missing;
  auto need = [&](bool there, const std::string& name) {
    if (!there) missing += (missing.empty() ? "" : ", ") + name;
  };
  need(embed_.has_value(), "embed");
  need(config_.tied || output_.has_value(), "output");
  need(!output_norm_.empty(), "output_norm");
  need(!config_.layer_norm || !output_norm_bias_.empty(), "output_norm_bias");
  for (size_t l = 0; l < layers_.size(); l++) {
    const Layer& y = layers_[l];
    const bool pre = y.c.pre_norm, post = y.c.post_norm, qk = y.c.qk_norm != QkNorm::none, bias = y.c.qkv_bias;
    const bool dense_bias = y.c.ffn_bias && y.dense_ffn(config_), experts_bias = y.c.ffn_bias && y.c.experts.count;
    const bool biases = !y.router_bias.empty() && !y.gate_exps_bias.empty() && !y.up_exps_bias.empty() && !y.down_exps_bias.empty();
    const std::pair<bool, bool> norms[] = {{pre, !y.attn_norm.empty() && !y.ffn_norm.empty()},
                                           {post, !y.post_attn_norm.empty() && !y.post_ffn_norm.empty()},
                                           {qk, !y.q_norm.empty() && !y.k_norm.empty()},
                                           {y.c.experts.count, !y.router.empty()},
                                           {y.c.o_bias, !y.o_bias.empty()},
                                           {y.c.sinks, !y.sinks.empty()},
                                           {pre && config_.layer_norm, !y.attn_norm_bias.empty() && !y.ffn_norm_bias.empty()},
                                           {dense_bias && y.c.gated, !y.gate_bias.empty()},
                                           {dense_bias, !y.up_bias.empty() && !y.down_bias.empty()},
                                           {experts_bias, biases},
                                           {bias, !y.q_bias.empty() && !y.k_bias.empty() && !y.v_bias.empty()}};
    const bool vectors = std::all_of(std::begin(norms), std::end(norms), [](auto& one) { return !one.first || one.second; });
    const bool dense = !y.dense_ffn(config_) || ((y.gate || !y.c.gated) && y.up && y.down);
    const bool experts = !y.c.experts.count || (y.gate_exps && y.up_exps && y.down_exps);
    need(y.q && y.k && y.v && y.o && dense && experts && vectors, "a tensor of layer " + std::to_string(l));
  }
  if (!missing.empty()) fail("model: missing " + missing);
  finished_ = true;
}

size_t Model::weight_bytes() const {
  size_t sum = 0;
  auto add = [&](const std::optional<Packed>& p) {
    if (p) sum += p->bytes();
  };
  add(embed_);
  add(output_);
  for (const Layer& y : layers_)
    for (const auto* p : {&y.q, &y.k, &y.v, &y.o, &y.gate, &y.up, &y.down, &y.gate_exps, &y.up_exps, &y.down_exps}) add(*p);
  return sum;
}

size_t Model::page_bytes() const { return layers_.size() * size_t(config_.kv_heads) * head_page_bytes(); }

void Model::allocate(int pages) {
  if (kv_) fail("model: KV memory is allocated once");
  if (pages <= 0) fail("model: at least one KV page");
  kv_.emplace(page_bytes() * size_t(pages));
  pages_ = pages;
}

void Model::copy_page(int source, int target) {
  if (source < 0 || source >= pages_ || target < 0 || target >= pages_) fail("model: page out of range");
  if (source != target) std::copy_n(page(source), page_bytes(), page(target));
}

void Model::read_page(int from, uint8_t* out) const {
  if (from < 0 || from >= pages_) fail("model: page out of range");
  std::copy_n(page(from), page_bytes(), out);
}

void Model::write_page(int to, const uint8_t* data) {
  if (to < 0 || to >= pages_) fail("model: page out of range");
  std::copy_n(data, page_bytes(), page(to));
}

void Model::touch_pages(int first, int last) {
  if (first < 0 || last < first || last > pages_) fail("model: pages out of range or order");
  const size_t from = page_bytes() * size_t(first), to = page_bytes() * size_t(last), unit = size_t(1) << 20;
  team_.parallel(int((to - from + unit - 1) / unit), [&](int u) {
    const size_t begin = from + unit * size_t(u);
    kv_->touch(begin, std::min(to, begin + unit));
  });
}

void Model::drop_pages(const int32_t* pages, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (pages[i] < 0 || pages[i] >= pages_ || (i && pages[i] <= pages[i - 1])) fail("model: pages out of range or order");
  for (size_t first = 0, last; first < count; first = last) {  // neighbours together: a page need not be whole system pages
    for (last = first + 1; last < count && pages[last] == pages[last - 1] + 1;) last++;
    kv_->drop(page_bytes() * size_t(pages[first]), page_bytes() * size_t(pages[last - 1] + 1));
  }
}

size_t Model::head_page_bytes() const {
  const size_t cells = 2 * size_t(kPage) * size_t(config_.head_dim), scales = 2 * size_t(kPage);
  return config_.kv_type == KvType::f16 ? cells * sizeof(uint16_t) : cells + scales * sizeof(uint16_t);
}

}  // namespace quintet
