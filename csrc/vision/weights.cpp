// Vision: what can be computed, and taking tensors in, by name.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include "model/model.h"
#include "model/tensor_name.h"
#include "vision/vision.h"

namespace quintet {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

bool within(int value, int most) { return value >= 1 && value <= most; }

// As many zeros after each row as make it `width` elements; only float types have rows that are not whole blocks.
std::vector<uint8_t> padded(const std::string& type, const uint8_t* raw, int rows, int cols, int width) {
  const size_t size = raw_bytes(type, 1, cols), wide = raw_bytes(type, 1, width);
  std::vector<uint8_t> out(size_t(rows) * wide);
  for (int r = 0; r < rows; r++) std::memcpy(out.data() + size_t(r) * wide, raw + size_t(r) * size, size);
  return out;
}

std::vector<uint8_t> transposed(const std::string& type, const uint8_t* raw, int rows, int cols) {
  std::vector<float> row(static_cast<size_t>(cols)), turned(size_t(rows) * size_t(cols));
  for (int r = 0; r < rows; r++) {
    dequantize_row(type, raw, r, cols, row.data());
    for (int c = 0; c < cols; c++) turned[size_t(c) * size_t(rows) + size_t(r)] = row[size_t(c)];
  }
  std::vector<uint8_t> out(turned.size() * sizeof(float));
  std::memcpy(out.data(), turned.data(), out.size());
  return out;
}

}  // namespace

const VisionConfig& checked(const VisionConfig& c) {
  require(within(c.image, 1 << 13) && within(c.patch, std::min(c.image, 1 << 8)) && c.side() <= 128,
          "vision: an image or patch size is out of range");
  require(
      within(c.hidden, 1 << 14) && within(c.heads, 1 << 10) && within(c.ffn, 1 << 17) && within(c.layers, 1 << 9) && within(c.out, 1 << 20),
      "vision: a size is out of range");
  require(c.hidden % 32 == 0 && c.out % 32 == 0, "vision: hidden and out must be multiples of 32");
  require(c.hidden % c.heads == 0 && c.head_dim() <= kMaxHeadDim, "vision: heads must divide hidden");
  require(within(c.scale, c.side()) && c.side() % c.scale == 0, "vision: scale must divide the patches of a side");
  require(std::isfinite(c.norm_eps) && c.norm_eps > 0, "vision: norm_eps is out of range");
  for (int i = 0; i < 3; i++)
    require(std::isfinite(c.mean[i]) && std::isfinite(c.std[i]) && c.std[i] > 1e-3f,
            "vision: a mean or standard deviation is out of range");
  return c;
}

std::optional<Packed>* Vision::matrix_slot(const std::string& name, int* rows, int* cols) {
  const VisionConfig& c = config_;
  auto slot = [&](std::optional<Packed>& p, int n, int k) {
    *rows = n, *cols = k;
    return &p;
  };
  if (name == "patch") return slot(patch_, c.hidden, 3 * c.patch * c.patch);
  if (name == "projection") return slot(projection_, c.out, c.merged());
  std::string part;
  const int l = split_layer(name, c.layers, &part);
  if (l < 0) return nullptr;
  Layer& y = layers_[size_t(l)];
  if (part == "q") return slot(y.q, c.hidden, c.hidden);
  if (part == "k") return slot(y.k, c.hidden, c.hidden);
  if (part == "v") return slot(y.v, c.hidden, c.hidden);
  if (part == "o") return slot(y.o, c.hidden, c.hidden);
  if (part == "up") return slot(y.up, c.ffn, c.hidden);
  if (part == "down") return slot(y.down, c.hidden, c.ffn);
  return nullptr;
}

FloatLines* Vision::vector_slot(const std::string& name, int* size) {
  const VisionConfig& c = config_;
  auto slot = [&](FloatLines& v, int n) {
    *size = n;
    return &v;
  };
  if (name == "patch_bias") return slot(patch_bias_, c.hidden);
  if (name == "positions") return slot(positions_, c.patches() * c.hidden);
  if (name == "post_norm") return slot(post_norm_, c.hidden);
  if (name == "post_norm_bias") return slot(post_norm_bias_, c.hidden);
  if (name == "pooled_norm" && c.projector == Projector::gemma3) return slot(pooled_norm_, c.hidden);
  std::string part;
  const int l = split_layer(name, c.layers, &part);
  if (l < 0) return nullptr;
  Layer& y = layers_[size_t(l)];
  if (part == "attn_norm") return slot(y.attn_norm, c.hidden);
  if (part == "attn_norm_bias") return slot(y.attn_norm_bias, c.hidden);
  if (part == "ffn_norm") return slot(y.ffn_norm, c.hidden);
  if (part == "ffn_norm_bias") return slot(y.ffn_norm_bias, c.hidden);
  if (part == "q_bias") return slot(y.q_bias, c.hidden);
  if (part == "k_bias") return slot(y.k_bias, c.hidden);
  if (part == "v_bias") return slot(y.v_bias, c.hidden);
  if (part == "o_bias") return slot(y.o_bias, c.hidden);
  if (part == "up_bias") return slot(y.up_bias, c.ffn);
  if (part == "down_bias") return slot(y.down_bias, c.hidden);
  return nullptr;
}

void Vision::pack(std::optional<Packed>& slot, const std::string& type, const std::vector<uint8_t>& raw, int rows, int cols,
                  Floats floats) {
  slot = pack_empty(type, rows, cols, floats, weights_);
  require(act_.floats() == is_float(slot->format), "floats are kept where all matrices are, got " + type);
  const int tiles = slot->tiles(), chunk = 8, units = (tiles + chunk - 1) / chunk;
  team_.parallel(units, [&](int u) { pack_tiles(*slot, type, raw.data(), {}, u * chunk, std::min(tiles, (u + 1) * chunk)); });
}

// Gemma 3's projection is stored with its inputs as rows; it is turned here.
void Vision::set(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* raw, size_t size, Floats floats) {
  const std::string tensor = "tensor '" + name + "'";
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == size, tensor + ": length does not match its type and shape");
  int n = 0, k = 0;
  if (auto* slot = matrix_slot(name, &n, &k)) {
    const bool turned = name == "projection" && config_.projector == Projector::gemma3;
    require(turned ? rows == k && cols == n : rows == n && cols == k, tensor + ": wrong shape");
    require(!*slot, tensor + ": given twice");
    const int width = (k + 31) / 32 * 32;
    if (turned) pack(*slot, "F32", transposed(type, raw, rows, cols), n, k, floats);
    else pack(*slot, type, padded(type, raw, rows, cols, width), n, width, floats);
    return;
  }
  auto* vec = vector_slot(name, &n);
  require(vec != nullptr, "vision: unknown " + tensor);
  require(int64_t(rows) * cols == n, tensor + ": wrong shape");
  FloatLines values(static_cast<size_t>(n));
  for (int r = 0; r < rows; r++) dequantize_row(type, raw, r, cols, values.data() + size_t(r) * size_t(cols));
  *vec = std::move(values);
}

void Vision::finish() {
  auto need = [](bool there, const std::string& name) { require(there, "vision: missing " + name); };
  need(patch_ && projection_, "patch or projection");
  need(!patch_bias_.empty() && !positions_.empty() && !post_norm_.empty() && !post_norm_bias_.empty(), "patch_bias, positions or a norm");
  need(config_.projector != Projector::gemma3 || !pooled_norm_.empty(), "pooled_norm");
  for (size_t l = 0; l < layers_.size(); l++) {
    Layer& y = layers_[l];
    const FloatLines* vectors[] = {&y.attn_norm, &y.attn_norm_bias, &y.ffn_norm, &y.ffn_norm_bias, &y.q_bias,
                                   &y.k_bias,    &y.v_bias,         &y.o_bias,   &y.up_bias,       &y.down_bias};
    const bool all = std::none_of(std::begin(vectors), std::end(vectors), [](auto* v) { return v->empty(); });
    need(all && y.q && y.k && y.v && y.o && y.up && y.down, "a tensor of layer " + std::to_string(l));
    y.up_bias.resize(size_t(config_.ffn_width()));  // of columns that are not there: 0, and gelu(0) is 0
  }
  finished_ = true;
}

size_t Vision::weight_bytes() const {
  size_t sum = 0;
  auto add = [&](const std::optional<Packed>& p) { sum += p ? p->bytes() : 0; };
  add(patch_);
  add(projection_);
  for (const Layer& y : layers_)
    for (const auto* p : {&y.q, &y.k, &y.v, &y.o, &y.up, &y.down}) add(*p);
  return sum + positions_.size() * sizeof(float);
}

}  // namespace quintet
