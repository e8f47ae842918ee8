#include "model/config.h"
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include "model/model.h"

namespace quintet {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

bool within(int v, int max) { return v > 0 && v <= max; }

bool sane(float v) { return std::isfinite(v) && v >= 0; }

void check(const ExpertConfig& e) {
  require(within(e.count, 4096) && within(e.used, std::min(e.count, kMaxUsed)) && within(e.ffn, 1 << 22) && e.ffn % 32 == 0,
          "model: a number or width of experts is out of range");
  require(e.shared >= 0 && e.shared <= 1 << 22 && e.shared % 32 == 0, "model: a shared expert is out of range");
}

void check(const LayerConfig& l, const Config& c) {
  if (l.experts.count) {
    check(l.experts);
    require(l.gated, "model: experts without gates");
    require(int64_t(l.experts.count) * std::max(l.experts.ffn, c.hidden) < 1 << 30, "model: experts of too many rows");
  }
  require(l.rope >= -1 && l.rope < int(c.ropes.size()), "model: a layer's rotation is not there");
  require(l.window >= 0, "model: a window is out of range");
  require(sane(l.temperature) && (l.temperature == 0.0f || l.temperature_length > 0), "model: an attention temperature is out of range");
  require(sane(l.attn_scale) && sane(l.attn_cap) && sane(l.residual_scale), "model: a factor is out of range");
}

}  // namespace

const Config& checked(const Config& c) {
  require(within(int(c.layers.size()), 1024) && within(c.hidden, 1 << 20) && within(c.heads, 4096) && within(c.kv_heads, 4096) &&
              within(c.head_dim, kMaxHeadDim) && within(c.ffn, 1 << 22) && within(c.vocab, 1 << 24) && within(c.context, 1 << 22),
          "model: a size is out of range");
  require(c.hidden % 32 == 0 && c.ffn % 32 == 0 && c.head_dim % 16 == 0 && c.heads * c.head_dim % 32 == 0,
          "model: hidden, ffn and heads * head_dim must be multiples of 32, head_dim of 16");
  require(c.heads % c.kv_heads == 0, "model: heads must be a multiple of kv_heads");
  require(sane(c.embed_scale) && sane(c.logit_scale) && sane(c.logit_cap), "model: a factor is out of range");
  for (const LayerConfig& l : c.layers) check(l, c);
  for (const RopeParams& r : c.ropes)
    require(r.dim <= c.head_dim && r.dim == c.ropes[0].dim, "model: rotations of more dimensions than a head has, or of different ones");
  return c;
}

}  // namespace quintet
