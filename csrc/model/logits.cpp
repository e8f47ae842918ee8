// Model: the output matrix, of all tokens or of one for each row. With log-softmax: scoring.cpp.
#include <algorithm>
#include <stdexcept>
#include "model/model.h"

namespace quintet {

const Packed& Model::output_matrix() const {
  if (!finished_) throw std::invalid_argument("logits: the model is not complete");
  return config_.tied ? *embed_ : *output_;
}

// 16 logits, as the product gives them.
void Model::finish_logits(float* logits, int n) const {
  if (config_.logit_scale != 1.0f) k_.scale_row(logits, config_.logit_scale, n);
  if (config_.logit_cap != 0.0f) k_.soft_cap(logits, config_.logit_cap, n);
}

void Model::logits_of(const uint8_t* rows, int n, const int32_t* tokens, float* out) {
  const Packed& w = output_matrix();
  const auto one = [&](int i) {
    float tile[16];
    k_.gemm_tile(w, tokens[i] / 16, rows + size_t(i) * row_bytes(), row_bytes(), 1, tile, 16, false, nullptr);
    finish_logits(tile, 16);
    out[i] = tile[tokens[i] % 16];
  };
  team_.parallel(n, one, Work::scoring);
}

void Model::logits(const uint8_t* rows, int n, int tokens, float* out) {
  const Packed& w = output_matrix();
  const size_t stride = size_t(vocab_stride());
  const int tiles = (tokens + 15) / 16, chunk = 4, units = (tiles + chunk - 1) / chunk;
  const Activations::View in = act_.view(rows, n, config_.hidden, panels_);
  const auto some = [&](int u) {
    const int from = u * chunk, to = std::min(tiles, from + chunk);
    act_.multiply(w, from, to - from, in, n, out + 16 * from, stride, false);
    for (int r = 0; r < n; r++) finish_logits(out + size_t(r) * stride + 16 * from, 16 * (to - from));
  };
  team_.parallel(units, some, Work::logits);
}

}  // namespace quintet
