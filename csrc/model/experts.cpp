// Model: a feed-forward part of many experts, of which each row takes a few.
//
//   route    per row: softmax of router * norm(x) over all experts; the largest `used`, ties to the lowest id
//   group    the (row, expert) pairs sorted by expert: each has a slot, an expert's one after the other, the first where a
//            product may begin
//   gather   slot <- row
//   compute  per expert that any row takes: ffn = q8(act(in * Wgate) * (in * Wup)), out = ffn * Wdown, for all its slots at once
//   combine  per row: its slots, weighted, in the order of their ranks
//
// An expert's weights are read once a step, and those that no row takes are never touched. A row's sums do not depend on who else took
// the same experts: the product is per row, and the order of the ranks is the row's own.
#include <algorithm>
#include "model/model.h"
#include "model/pass.h"

namespace quintet {

void Model::route(Pass& p, const Layer& layer, const float* row, int r, int thread) const {
  const ExpertConfig& e = layer.c.experts;
  float* scores = p.threads[size_t(thread)].scores.data();
  k_.dots(layer.router.data(), e.count, row, config_.hidden, scores);
  if (layer.c.ffn_bias)
    for (int i = 0; i < e.count; i++) scores[i] += layer.router_bias[size_t(i)];
  const float max = k_.row_max(scores, e.count), sum = k_.row_sum_exp(scores, e.count, max, 1.0f);
  k_.row_exp(scores, e.count, max, 1.0f, scores);
  int* chosen = p.chosen.data() + size_t(r) * size_t(e.used);
  float* weights = p.weights.data() + size_t(r) * size_t(e.used);
  float total = 0;
  for (int rank = 0; rank < e.used; rank++) {
    int best = 0;
    for (int i = 1; i < e.count; i++)
      if (scores[i] > scores[best]) best = i;
    chosen[rank] = best;
    weights[rank] = scores[best] / sum;
    total += weights[rank];
    scores[best] = -1;  // all others are from 0 up
  }
  if (e.normalise)
    for (int rank = 0; rank < e.used; rank++) weights[rank] /= total;
}

void Model::group(Pass& p, int l, int live) const {
  const ExpertConfig& e = layers_[size_t(l)].c.experts;
  const size_t pairs = size_t(live) * size_t(e.used);
  std::vector<int>& next = p.next_slot;
  next.assign(size_t(e.count), 0);
  for (size_t i = 0; i < pairs; i++) next[size_t(p.chosen[i])]++;
  std::vector<Pass::Group>& groups = p.groups[size_t(l)];
  groups.clear();
  const int side = act_.side();
  for (int expert = 0, from = 0; expert < e.count; expert++) {
    const int to = from + next[size_t(expert)];
    if (to > from) groups.push_back({expert, from, to});
    next[size_t(expert)] = from;
    from = (to + side - 1) / side * side;
  }
  for (size_t i = 0; i < pairs; i++) p.slots[i] = next[size_t(p.chosen[i])]++;
}

// Slots that so many pairs may need: where an expert's end short of a side, the next one's begin at it.
size_t Model::slots_of(const ExpertConfig& e, size_t pairs) const {
  return pairs + std::min(size_t(e.count), pairs) * size_t(act_.side() - 1);
}

void Model::run_experts(Pass& p, int l, int live, Team::Walk& walk) {
  const Layer& layer = layers_[size_t(l)];
  const ExpertConfig& e = layer.c.experts;
  const size_t hidden = size_t(config_.hidden);
  walk.phase(1, [&](int) { group(p, l, live); }, Work::experts);
  const auto spread = [&](int r) {
    for (int rank = 0; rank < e.used; rank++) {
      const int slot = p.slots[size_t(r) * size_t(e.used) + size_t(rank)];
      act_.take_row(p.in.rows.data() + size_t(r) * row_bytes(), config_.hidden, p.expert_in, size_t(slot));
    }
  };
  rows(walk, live, spread, Work::experts);
  const std::vector<Pass::Group>& groups = p.groups[size_t(l)];  // of this layer alone: a thread may come when others are layers ahead
  const int blocks = e.ffn / 32, pairs_out = config_.hidden / 32;
  const auto gated = [&](int u) {
    const Pass::Group& g = groups[size_t(u / blocks)];
    const Gated part{&*layer.gate_exps,     *layer.up_exps, layer.gate_exps_bias, layer.up_exps_bias,
                     g.expert * e.ffn / 16, e.ffn,          p.expert_ffn};
    const auto in = meanwhile(p, act_.view(p.expert_in, config_.hidden, size_t(g.from)), walk.thread);
    gated_block(p, layer, part, in, u % blocks, g.from, g.to, walk.thread);
  };
  tiles(walk, int(groups.size()) * blocks, gated, Work::experts);
  const auto down = [&](int u) {
    const Pass::Group& g = groups[size_t(u / pairs_out)];
    const int pair = u % pairs_out;
    const auto in = meanwhile(p, act_.view(p.expert_ffn, e.ffn, size_t(g.from)), walk.thread);
    act_.multiply(*layer.down_exps, 2 * (g.expert * pairs_out + pair), 2, in, g.to - g.from,
                  p.expert_out.data() + size_t(g.from) * hidden + 32 * size_t(pair), hidden, false);
  };
  tiles(walk, int(groups.size()) * pairs_out, down, Work::experts);
}

void Model::combine(Pass& p, const Layer& layer, int r) const {
  const ExpertConfig& e = layer.c.experts;
  const size_t hidden = size_t(config_.hidden), first = size_t(r) * size_t(e.used);
  float* branch = p.branch.data() + size_t(r) * hidden;
  if (!e.shared) std::fill_n(branch, hidden, 0.0f);
  for (size_t i = first; i < first + size_t(e.used); i++) {
    float* out = p.expert_out.data() + size_t(p.slots[i]) * hidden;
    if (layer.c.ffn_bias) k_.add(out, layer.down_exps_bias.data() + size_t(p.chosen[i]) * hidden, config_.hidden);
    k_.add_scaled(branch, out, p.weights[i], config_.hidden);
  }
}

}  // namespace quintet
