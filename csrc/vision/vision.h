// An image encoder (SigLIP) and its projector: pixels of a tile -> rows that stand where a language model's embedding rows do.
//
// What the numbers depend on: a tile's pixels and the weights. A row is a fixed sequence of IEEE operations; threads and pieces decide only
// where and when it is computed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "cpu.h"
#include "kernels/activations.h"
#include "kernels/pack.h"
#include "memory.h"
#include "vision/config.h"

namespace quintet {

class Vision {
 public:
  // It runs the team of `cpu`, in the turn of its caller.
  Vision(const VisionConfig& config, Cpu& cpu);
  Vision(const Vision&) = delete;

  // Give one tensor, in the file's own type. Checks name, shape and length; throws std::invalid_argument. `floats`: as for Model::set.
  void set(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* raw, size_t size, Floats floats);
  // All tensors are there; throws std::invalid_argument naming a missing one.
  void finish();
  size_t weight_bytes() const;
  const VisionConfig& config() const { return config_; }

  // Begin with a tile, [image, image, 3] bytes of red, green and blue; one that was begun before is given up.
  void begin(const uint8_t* pixels);
  // Go on for about `work` multiply-adds, and at least a few rows of a layer. True: all rows are there.
  bool advance(int64_t work);
  // Of a whole tile.
  int64_t tile_work() const;
  // The rows, [tokens, out]; throws std::invalid_argument before they are there.
  void take(float* out) const;

 private:
  struct Layer {
    std::optional<Packed> q, k, v, o, up, down;
    FloatLines attn_norm, attn_norm_bias, ffn_norm, ffn_norm_bias, q_bias, k_bias, v_bias, o_bias, up_bias, down_bias;
  };

  // weights.cpp
  std::optional<Packed>* matrix_slot(const std::string& name, int* rows, int* cols);
  FloatLines* vector_slot(const std::string& name, int* size);
  void pack(std::optional<Packed>& slot, const std::string& type, const std::vector<uint8_t>& raw, int rows, int cols, Floats floats);

  // vision.cpp: rows [from, from + n) of a stage: the embedding, two for each layer, and the projection.
  int stages() const { return 2 * config_.layers + 2; }
  int stage_rows(int stage) const { return stage + 1 == stages() ? config_.tokens() : config_.patches(); }
  int64_t row_work(int stage) const;
  void run(int stage, int from, int n);
  void embed(Team::Walk& walk, int from, int n);
  void project_qkv(Team::Walk& walk, const Layer& layer, int from, int n);
  void attend(Team::Walk& walk, int from, int n);
  void feed_forward(Team::Walk& walk, const Layer& layer, int from, int n);
  void project(Team::Walk& walk, int from, int n);

  void patch_row(int patch, float* row) const;
  void store(const Layer& layer, int row, float* qkv, int thread);
  void merge(int token, int thread, int row);
  void give_pair(const Packed& w, int pair, const Activations::View& in, int n, float* to, size_t width, bool accumulate) const;
  void give(Team::Walk& walk, const Packed& w, const Activations::View& in, int n, float* to, size_t width, bool accumulate) const;
  template <class Row> void rows(Team::Walk& walk, int n, Row row);

  VisionConfig config_;
  const Kernels& k_;
  Team& team_;
  const Activations act_;
  Arena weights_;
  std::optional<Packed> patch_, projection_;
  FloatLines patch_bias_, positions_, post_norm_, post_norm_bias_, pooled_norm_;
  std::vector<Layer> layers_;
  FloatLines levels_;  // [3, 256]: what a byte of each colour is to the encoder
  bool finished_ = false;

  // The tile: where it stands, its rows, and a layer's queries, keys and values as attention reads them.
  int stage_ = -1, row_ = 0;
  std::vector<uint8_t> pixels_;
  FloatLines x_, q_, out_;                                // [patches, hidden], [patches, heads, head_width], [tokens, out]
  std::vector<uint16_t> keys_, values_;                   // [heads, pages, head_width, 16], [heads, pages, 16, head_width]
  std::vector<const uint16_t*> key_pages_, value_pages_;  // [heads, pages]
  // Of a piece: rows for products, what they give, and each thread's own.
  Activations::Matrix in_, ffn_;
  FloatLines wide_;  // [rows, 3 hidden], or [rows, heads, head_width]
  struct Own {
    FloatLines row, scores;
  };
  std::vector<Own> own_;
};

}  // namespace quintet
