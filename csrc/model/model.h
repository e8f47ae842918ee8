// A decoder-only transformer: weights, KV pages, and one forward pass over a ragged batch.
//
// What the numbers depend on: a row of the result is a fixed sequence of IEEE operations over the tokens of its own sequence up to that
// row. The batch, the chunking, the pages' places and the number of threads decide only where and when it is computed.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include "kernels/activations.h"
#include "kernels/kernels.h"
#include "kernels/row_passes.h"
#include "cpu.h"
#include "model/config.h"
#include "model/rope.h"

namespace quintet {

constexpr int kPage = 16;     // tokens per KV page = lanes of a register
constexpr int kMaxUsed = 64;  // experts of a row

struct Span {
  int32_t first, count;  // tokens of the batch; others of the span, before its segment, were computed earlier, together with these
};

struct Batch {
  const int32_t* tokens;   // [T]
  int total;               // T
  const int32_t* lengths;  // [S]
  const int32_t* starts;   // [S]
  int segments;            // S
  const int32_t* tables;   // [S, P]
  int table_width;         // P
  const int32_t* rows;     // [R] indexes into tokens
  int wanted;              // R
  // Of what is no text: tokens whose rows are given, in place of the embedding's, and spans of tokens that see each other both ways.
  const int32_t* given = nullptr;     // [G] indexes into tokens, ascending
  const float* embeddings = nullptr;  // [G, hidden]
  int givens = 0;                     // G
  const Span* spans = nullptr;        // [B], of one segment each, in order
  int span_count = 0;                 // B
};

class Model {
 public:
  // The model runs the team of `cpu`, in the turn of its caller.
  Model(const Config& config, Cpu& cpu);
  ~Model();  // where Pass and Scoring are known

  // Give one tensor, in the file's own type. Checks name, shape and length; throws std::invalid_argument. `floats`: what becomes of it if
  // it is a matrix of a float type.
  void set(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* raw, size_t size, Floats floats);
  // What `set` made of a tensor: a matrix's tiles, a vector's floats; valid until the model goes. Throws std::invalid_argument.
  std::span<const uint8_t> packed(const std::string& name);
  // In place of `set`: the tensor as another model of these bits has packed it. Tiles are not copied: they must outlive the model, and
  // begin at a multiple of 64. Checks what `set` does.
  void give(const std::string& name, const std::string& type, int rows, int cols, const uint8_t* data, size_t size, Floats floats);
  // All tensors are there; throws std::invalid_argument naming the missing ones.
  void finish();

  size_t row_bytes() const { return act_.bytes(config_.hidden); }
  size_t page_bytes() const;
  size_t weight_bytes() const;
  // Reserve KV memory; pages become resident when first written. Once.
  void allocate(int pages);
  void copy_page(int source, int target);
  // All keys and values of a page, page_bytes() of them, as they lie in memory.
  void read_page(int page, uint8_t* out) const;
  void write_page(int page, const uint8_t* data);
  // Have the memory of the pages from `first` up to, not with, `last` resident before they are written.
  void touch_pages(int first, int last);
  // Give the memory of `count` pages back, in ascending order; they hold zeros until they are written again.
  void drop_pages(const int32_t* pages, size_t count);

  // Throws std::invalid_argument, before anything is computed, for any id, length or index out of range. `out`: R rows of row_bytes().
  // `meanwhile`, if there is one: what the caller does first, while the other threads compute (Team::run).
  void forward(const Batch& batch, uint8_t* out, const std::function<void()>& meanwhile = nullptr);
  // rows: n hidden rows as forward gives them; out: n rows of vocab_stride() floats, of which the first `tokens`, from 1 to vocab, become
  // logits and the others nothing that is worth reading.
  void logits(const uint8_t* rows, int n, int tokens, float* out);
  // The same of one token per row: out[i] is what logits() gives for tokens[i], from 0 to vocab - 1, in rows[i].
  void logits_of(const uint8_t* rows, int n, const int32_t* tokens, float* out);
  // Log-softmax of n hidden rows without their logits ever being there at once: a block of rows at a time, in memory that is used again. Of
  // each row what score_row tells of its target, to the bit; `to` is the first row's, 0 <= to.top_k <= vocab.
  void score(const uint8_t* rows, int n, const int32_t* targets, const Scores& to);
  int vocab_stride() const { return (config_.vocab + 15) / 16 * 16; }
  const Config& config() const { return config_; }
  int pages() const { return pages_; }

 private:
  struct Layer {
    LayerConfig c;
    std::optional<Packed> q, k, v, o, gate, up, down;
    std::optional<Packed> gate_exps, up_exps, down_exps;  // of all experts, one after the other
    FloatLines router;                                    // [experts, hidden]
    FloatLines attn_norm, ffn_norm, post_attn_norm, post_ffn_norm, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias, sinks;
    FloatLines attn_norm_bias, ffn_norm_bias;
    FloatLines gate_bias, up_bias, down_bias;                              // of the part that every row takes,
    FloatLines router_bias, gate_exps_bias, up_exps_bias, down_exps_bias;  // and of the experts
    // What the blocks add must be normed, scaled or summed before it is added.
    bool attn_by_branch() const { return c.post_norm || c.residual_scale != 1.0f; }
    bool ffn_by_branch() const { return attn_by_branch() || c.experts.count; }
    // Width of the part that every row takes.
    int dense_ffn(const Config& all) const { return c.experts.count ? c.experts.shared : all.ffn; }
  };
  struct Unit {
    int segment, kv_head, head_from, head_to, row_from, row_to;  // rows: indexes into the live rows
  };
  // What enters a layer's products: rows that are normed, before attention and the feed-forward part, and what attention makes.
  enum class Part { attention, heads, ffn };
  struct Entry {
    int layer = -1;
    Part part = Part::attention;
    bool operator==(const Entry&) const = default;
  };
  // A gated part as rows of matrices that may hold several, and where its rows come from and go to.
  struct Gated {
    const Packed* gate;  // null: up alone
    const Packed& up;
    const FloatLines &gate_bias, &up_bias;
    int first_tile, ffn;
    Activations::Matrix& out;
  };
  struct Pass;     // the buffers and views of one forward: pass.h
  struct Scoring;  // and of score: scoring.h

  // weights.cpp
  std::optional<Packed>* matrix_slot(const std::string& name, int* rows, int* cols);
  FloatLines* vector_slot(const std::string& name, int* size);
  std::vector<int> rope_order(int heads) const;
  void pack_parallel(Packed& out, const std::string& type, const uint8_t* raw, const std::vector<int>& order);

  uint8_t* page(int index) const { return kv_->data() + page_bytes() * size_t(index); }
  // Of one head and page, its cells: keys, then values, then, if they have 8 bits, the scales of both.
  size_t head_page_bytes() const;
  template <class Cell> Cell* keys(int layer, int page, int kv_head) const {
    const size_t index = size_t(layer) * size_t(config_.kv_heads) + size_t(kv_head);
    return reinterpret_cast<Cell*>(this->page(page) + index * head_page_bytes());
  }
  template <class Cell> Cell* values(int layer, int page, int kv_head) const {
    return keys<Cell>(layer, page, kv_head) + config_.head_dim * kPage;
  }

  // attention.cpp
  std::vector<Unit> attention_units(const std::vector<int>& segments, int pages) const;
  void reserve_attention(Pass& p, int pages) const;
  // Of KV heads [first, last) and their query heads; of all, if norms are of whole rows.
  void rotate_and_store(Pass& p, int layer, int row, int first, int last);
  float rotate_for_cells(float* heads, int count) const;
  void store(int layer, int page, int slot, int first, int last, const float* keys, const float* values) const;
  void store8(int layer, int page, int slot, int first, int last, const float* keys, const float* values) const;
  // Whether a head is whole blocks of 32, and so is quantised by who computes it.
  bool whole_blocks() const { return config_.head_dim % 32 == 0; }
  void attend(Pass& p, int layer, const Unit& unit, int thread);
  // Have the products before a layer's attention fetch what a thread will begin that with.
  int64_t blocks_before(int layer) const;
  void look_ahead(Pass& p, int layer, const Team::Walk& walk) const;

  // experts.cpp
  void route(Pass& p, const Layer& layer, const float* row, int r, int thread) const;
  void group(Pass& p, int layer, int live) const;
  size_t slots_of(const ExpertConfig& e, size_t pairs) const;
  void run_experts(Pass& p, int layer, int live, Team::Walk& walk);
  void combine(Pass& p, const Layer& layer, int r) const;

  // model.cpp
  void check(const Batch& b) const;
  void check_spans(const Batch& b) const;
  void prepare(Pass& p, const Batch& b);
  void reserve(Pass& p, const Layer& layer, size_t t) const;
  void run_layers(Pass& p, Team::Walk& walk);
  void run_attention(Pass& p, int layer, bool last, int& live, Team::Walk& walk);
  // The row as it enters, as it was put into `to`, before that was quantised.
  const float* enter(Pass& p, const FloatLines& weight, const FloatLines& bias, int row, int thread, Activations::Matrix& to);
  const float* enter(Pass& p, const Entry& entry, int row, int thread, Activations::Matrix& to);
  bool each_enters(const Entry& entry, int live) const;
  // The rows for a thread that has a unit of the product. A few it makes itself, at its first: that is sooner done than waited for.
  const Activations::Matrix& entered(Pass& p, const Entry& entry, int live, int thread);
  int few_rows() const;
  // Rows [from, to) of an entry for a thread that multiplies them; in panels of its own, if products take such.
  Activations::View band(Pass& p, const Entry& entry, int live, int from, int to, int thread);
  // The same rows for a thread whose product of them is to fetch what it will read.
  static Activations::View meanwhile(Pass& p, Activations::View rows, int thread);
  template <class Row> void rows(Team::Walk& walk, int live, Row row, Work work);
  template <class Tile> void tiles(Team::Walk& walk, int count, Tile tile, Work work);
  template <class Some> void products(Team::Walk& walk, int live, int count, Some some, Work work);
  void project_qkv(Pass& p, int layer, Team::Walk& walk);
  void keep_wanted(Pass& p);
  void feed_forward(Pass& p, int layer, int live, Team::Walk& walk);
  void gated_block(Pass& p, const Layer& layer, const Gated& part, const Activations::View& in, int block, int from, int to,
                   int thread) const;
  // in(from, to): the view of these rows.
  template <class In> void give(Pass& p, bool by_branch, const Packed& w, In in, int live, Team::Walk& walk, Work work);
  void take(Pass& p, const Layer& layer, bool by_branch, const FloatLines& bias, const FloatLines& norm, int row);

  // logits.cpp
  const Packed& output_matrix() const;
  void finish_logits(float* logits, int n) const;

  // scoring.cpp
  void score_chunk(Scoring& s, const Activations::View& rows, int count, int chunk) const;

  Config config_;
  const Kernels& k_;
  Team& team_;
  const Activations act_;
  std::vector<RopeTable> ropes_;
  Arena weights_;
  std::optional<Packed> embed_, output_;
  FloatLines output_norm_, output_norm_bias_;
  std::vector<Layer> layers_;
  std::optional<Region> kv_;
  int pages_ = 0;
  int reach_ = 0;  // tokens that a token sees in any layer; 0: in one it sees all before it
  std::unique_ptr<Pass> pass_;
  std::unique_ptr<Scoring> scoring_;
  Activations::Panels panels_;  // of rows that logits and score are given
  bool finished_ = false;
};

}  // namespace quintet
