// Digests of small models: what their layers may do, their logits, scores and draws.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
#include "model/model.h"
#include "sampling/sample.h"
#include "tests/digest.h"
#include "tests/tiles_held.h"

namespace quintet {
namespace {

Config small() {
  Config c;
  c.context = 128;
  c.hidden = 96;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 48;
  c.ffn = 160;
  c.vocab = 77;
  c.norm_eps = 1e-5f;
  c.tied = false;
  c.interleaved = true;
  RopeParams rope;
  rope.dim = 40;
  rope.base = 10000;
  rope.scaling = "yarn";
  rope.factor = 4;
  rope.original_context = 32;
  c.ropes = {rope};
  c.layers.resize(2);
  for (LayerConfig& l : c.layers) l.qkv_bias = true;
  return c;
}

// The same with all else that a layer may do: norms everywhere, windows, caps, scales, two rotations and none.
Config elaborate() {
  Config c = small();
  RopeParams plain;
  plain.dim = 40;
  c.ropes[0].log_multiplier = 0.6;
  c.ropes[0].truncate = false;
  c.ropes.push_back(plain);
  c.interleaved = false;
  c.layer_norm = true;
  c.embed_scale = 9.8f;
  c.logit_scale = 0.7f;
  c.logit_cap = 30;
  c.layers.resize(5);
  for (size_t i = 0; i < c.layers.size(); i++) {
    LayerConfig& l = c.layers[i];
    l.qkv_bias = i == 0;
    l.pre_norm = i != 2;
    l.post_norm = i != 3;
    l.qk_norm = i == 1 ? QkNorm::full : QkNorm::head;
    l.rope = int(i) % 3 - 1;
    l.window = i % 2 ? 0 : 21;
    l.attn_scale = i == 1 ? 0.2f : 0.0f;
    l.temperature = i == 1 ? 0.3f : 0.0f;
    l.temperature_length = 16;
    l.attn_cap = i < 2 ? 20.0f : 0.0f;
    l.residual_scale = i == 3 ? 0.3f : 1.0f;
    l.activation = i == 0 ? Activation::silu : i == 3 ? Activation::swiglu_oai : Activation::gelu;
    l.o_bias = i == 2;
    l.ffn_bias = i == 0 || i == 3;
    l.gated = i > 0;
    l.sinks = i > 1;
    if (i == 2 || i == 3) l.experts = {.count = 7, .used = 2, .ffn = 64, .shared = i == 2 ? 32 : 0, .normalise = i == 2};
  }
  return c;
}

void fill(Model& m, const Config& c) {
  Random r;
  const Floats floats = c.float_activations ? Floats::kept : Floats::q8;
  auto vec = [&](const std::string& name, int n) {
    const auto raw = raw_f32(r.floats(size_t(n), 1.0f));
    m.set(name, "F32", 1, n, raw.data(), raw.size(), floats);
  };
  auto mat = [&](const std::string& name, int n, int k, bool q4) {
    const bool half = q4 && c.float_activations;
    const auto raw = half ? raw_halves(r, size_t(n) * size_t(k)) : q4 ? raw_q4_1(r, n, k) : raw_f32(r.floats(size_t(n) * size_t(k), 0.2f));
    m.set(name, half ? r.below(2) ? "BF16" : "F16" : q4 ? "Q4_1" : "F32", n, k, raw.data(), raw.size(), floats);
  };
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  mat("embed", c.vocab, c.hidden, false);
  mat("output", c.vocab, c.hidden, false);
  vec("output_norm", c.hidden);
  if (c.layer_norm) vec("output_norm_bias", c.hidden);
  for (size_t l = 0; l < c.layers.size(); l++) {
    const std::string p = std::to_string(l) + ".";
    const LayerConfig& layer = c.layers[l];
    auto vecs = [&](bool there, int n, std::initializer_list<const char*> names) {
      for (const char* name : names)
        if (there) vec(p + name, n);
    };
    vecs(layer.pre_norm, c.hidden, {"attn_norm", "ffn_norm"});
    vecs(layer.pre_norm && c.layer_norm, c.hidden, {"attn_norm_bias", "ffn_norm_bias"});
    vecs(layer.post_norm, c.hidden, {"post_attn_norm", "post_ffn_norm"});
    if (layer.qk_norm != QkNorm::none) {
      vec(p + "q_norm", layer.qk_norm == QkNorm::full ? q : c.head_dim);
      vec(p + "k_norm", layer.qk_norm == QkNorm::full ? kv : c.head_dim);
    }
    vecs(layer.qkv_bias, q, {"q_bias"});
    vecs(layer.qkv_bias, kv, {"k_bias", "v_bias"});
    vecs(layer.o_bias, c.hidden, {"o_bias"});
    vecs(layer.sinks, c.heads, {"sinks"});
    mat(p + "q", q, c.hidden, true);
    mat(p + "k", kv, c.hidden, false);
    mat(p + "v", kv, c.hidden, true);
    mat(p + "o", c.hidden, q, true);
    const ExpertConfig& e = layer.experts;
    if (const int ffn = e.count ? e.shared : c.ffn) {
      if (layer.gated) mat(p + "gate", ffn, c.hidden, true);
      mat(p + "up", ffn, c.hidden, false);
      mat(p + "down", c.hidden, ffn, true);
      vecs(layer.ffn_bias && layer.gated, ffn, {"gate_bias"});
      vecs(layer.ffn_bias, ffn, {"up_bias"});
      vecs(layer.ffn_bias, c.hidden, {"down_bias"});
    }
    if (e.count) {
      mat(p + "router", e.count, c.hidden, false);
      mat(p + "gate_exps", e.count * e.ffn, c.hidden, true);
      mat(p + "up_exps", e.count * e.ffn, c.hidden, false);
      mat(p + "down_exps", e.count * c.hidden, e.ffn, true);
      vecs(layer.ffn_bias, e.count, {"router_bias"});
      vecs(layer.ffn_bias, e.count * e.ffn, {"gate_exps_bias", "up_exps_bias"});
      vecs(layer.ffn_bias, e.count * c.hidden, {"down_exps_bias"});
    }
  }
  m.finish();
}

// Greedy, and each control that decides by probabilities.
std::vector<Sampler> all_samplers(int vocab) {
  const auto pieces = std::make_shared<Pieces>(std::vector<std::string>(size_t(vocab), "x"));
  std::vector<Controls> all(9);
  for (Controls& c : all) {
    c.temperature = 0.8f;
    c.seed = 7;
  }
  all[0].temperature = 0.0f;
  all[1].top_p = 0.9f;
  all[2].top_n_sigma = 1.0f;
  all[3].top_k = 9;
  all[4].typical_p = 0.9f;
  all[5].min_p = 0.2f;
  all[6].xtc_probability = 0.5f;
  all[7].mirostat_target = 3.0f;
  all[8].dry.multiplier = 0.8f;
  all[8].repetition_penalty = 1.2f;
  all[8].frequency_penalty = 0.3f;
  all[8].presence_penalty = 0.2f;
  std::vector<Sampler> samplers;
  for (Controls& c : all) samplers.emplace_back(c, pieces, nullptr, 0);
  return samplers;
}

// One sequence of 70 tokens: whole, and in chunks among others with other threads; both must give the same rows.
void whole_model(const Kernels& k, const std::string& name, const Config& c, Results& out) {
  Random r;
  std::vector<int32_t> tokens, all;
  for (int i = 0; i < 70; i++) {
    tokens.push_back(r.below(c.vocab));
    all.push_back(i);
  }
  std::vector<std::vector<uint8_t>> seen;
  for (int threads : {1, 3}) {
    Cpu cpu(k.name, threads);
    Model m(c, cpu);
    fill(m, c);
    m.allocate(16);
    const size_t row = m.row_bytes();
    std::vector<uint8_t> hidden(row * tokens.size());
    const int32_t table[] = {9, 3, 12, 1, 7, 5, 6, 8, 10, 11}, length = 70, zero = 0;
    if (threads == 1) {
      m.forward({tokens.data(), 70, &length, &zero, 1, table, 5, all.data(), 70}, hidden.data());
    } else {
      for (int at = 0; at < 70;) {
        const int n = std::min(70 - at, 1 + r.below(20));
        std::vector<int32_t> both(tokens.begin() + at, tokens.begin() + at + n);  // this chunk, and another sequence beside it
        for (int i = 0; i < 3; i++) both.push_back(r.below(c.vocab));
        const int32_t lengths[] = {n, 3}, starts[] = {at, 0};
        m.forward({both.data(), n + 3, lengths, starts, 2, table, 5, all.data(), n}, hidden.data() + row * size_t(at));
        at += n;
      }
    }
    std::vector<float> logits(size_t(m.vocab_stride()) * 70);
    m.logits(hidden.data(), 70, m.config().vocab, logits.data());
    std::vector<Sampler> samplers = all_samplers(c.vocab);
    float chosens[70], tops[70][5];
    double log_sums[70];
    int32_t likeliest[70][5];
    m.score(hidden.data(), 70, tokens.data(), {5, chosens, likeliest[0], tops[0], log_sums});
    Digest d, draws;
    d.add(hidden);
    for (int i = 0; i < 70; i++) {
      const float* l = logits.data() + size_t(m.vocab_stride()) * size_t(i);
      d.add(l, size_t(c.vocab) * 4);
      float chosen, top[5];
      double log_sum;
      int32_t ids[5];
      score_row(k, l, c.vocab, tokens[size_t(i)], {5, &chosen, ids, top, &log_sum});
      if (std::memcmp(&chosen, chosens + i, 4) || std::memcmp(ids, likeliest[i], 20) || std::memcmp(top, tops[i], 20) ||
          std::memcmp(&log_sum, log_sums + i, 8)) {
        std::printf("FAIL %s: row %d scored in a block has other bits than alone\n", k.name, i);
        std::exit(1);
      }
      draws.add(&chosen, 4);
      draws.add(ids, 20);
      draws.add(top, 20);
      for (Sampler& s : samplers) {
        const int32_t id = draw_row(k, l, s, uint64_t(i), nullptr);
        draws.add(&id, 4);
        s.accept(id);
      }
    }
    out[name + (threads == 1 ? ", whole" : ", chunked, 3 threads")] = d.h;
    out[name + ", scores and draws"] = draws.h;
    seen.push_back(hidden);
  }
  if (seen[0] != seen[1]) {
    std::printf("FAIL %s: chunking or threads changed the bits\n", k.name);
    std::exit(1);
  }
  if (tiles_held) {
    std::printf("FAIL %s: a thread has kept its tiles\n", k.name);
    std::exit(1);
  }
}

// 300 tokens at once, which many threads divide into bands of rows, as one alone computes them.
void wide_model(const Kernels& k, const std::string& name, Config c, Results& out) {
  constexpr int count = 300, pages = 19;  // more than a band of one thread
  c.context = 16 * pages;
  Random r;
  std::vector<int32_t> tokens, all, table;
  for (int i = 0; i < count; i++) tokens.push_back(r.below(c.vocab)), all.push_back(i);
  for (int i = 0; i < pages; i++) table.push_back(pages - 1 - i);
  std::vector<std::vector<uint8_t>> seen;
  for (int threads : {1, 2, 3}) {
    Cpu cpu(k.name, threads);
    Model m(c, cpu);
    fill(m, c);
    m.allocate(pages);
    std::vector<uint8_t>& rows = seen.emplace_back(m.row_bytes() * count);
    const int32_t length = count, zero = 0;
    m.forward({tokens.data(), count, &length, &zero, 1, table.data(), pages, all.data(), count}, rows.data());
    if (rows != seen[0]) {
      std::printf("FAIL %s: %d threads changed the bits of %d rows\n", k.name, threads, count);
      std::exit(1);
    }
  }
  Digest d;
  d.add(seen[0]);
  out[name] = d.h;
}

}  // namespace
}  // namespace quintet
