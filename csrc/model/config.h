// A decoder-only transformer as data. Python's ModelSpec (models/spec.py) says the same of a file, name by name.
#pragma once
#include <vector>
#include "model/rope.h"

namespace quintet {

enum class QkNorm { none, head, full };  // of q and k before the rotation: each head by itself, or all heads as one vector
// Of the gate: gelu in its tanh form; swiglu_oai is gpt-oss's silu of clamped values (kernels_impl.h).
enum class Activation { silu, gelu, swiglu_oai };

// Cells of keys and values: fp16, or 8 bits with a scale for each token and head, of keys and of values.
enum class KvType { f16, q8 };

// A feed-forward part of which each row takes a few: those with the largest softmax of a product with the row.
struct ExpertConfig {
  int count = 0, used = 0, ffn = 0;  // count 0: there are none
  int shared = 0;                    // width of one more, which every row takes
  bool normalise = true;             // the weights of those that are used sum to 1
};

struct LayerConfig {
  bool pre_norm = true;    // RMS norms of what goes into attention and feed-forward,
  bool post_norm = false;  // and of what comes out, before it is added
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;  // after the products of q, k and v;
  bool o_bias = false;    // of attention's output;
  bool ffn_bias = false;  // of the feed-forward part, and of the choice of experts
  bool gated = true;      // the feed-forward part is act(gate) * up, else act(up)
  bool sinks = false;     // each head's softmax has one learned logit more, which nothing is weighed by
  int rope = 0;           // of Config::ropes; -1: heads are not rotated
  int window = 0;         // tokens that a token sees, itself the last; 0 = all before it
  float attn_scale = 0;   // on q times k; 0 = 1 / sqrt(head_dim)
  float temperature = 0;  // and from position p on, on q: 1 + temperature * ln(1 + floor(p / temperature_length)); 0 = nothing
  int temperature_length = 0;
  float attn_cap = 0;        // scores s become cap * tanh(s / cap); 0 = they stay
  float residual_scale = 1;  // on what attention and feed-forward add
  Activation activation = Activation::silu;
  ExpertConfig experts;
};

struct Config {
  int context = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  float norm_eps = 0;
  bool layer_norm = false;         // norms before blocks and of the output are LayerNorms with biases, else RMS norms
  bool tied = false;               // the embedding is also the output matrix
  bool interleaved = false;        // the file's q and k rows are in rope pairs (2i, 2i+1): reordered to (i, i + dim/2) when packed
  float embed_scale = 1;           // on the embedding's rows
  float logit_scale = 1;           // on the logits,
  float logit_cap = 0;             // and then as attn_cap
  bool float_activations = false;  // rows stay floats, for a model whose matrices are all kept floats
  KvType kv_type = KvType::f16;
  std::vector<RopeParams> ropes;
  std::vector<LayerConfig> layers;
};

// `config`, which can be computed. Throws std::invalid_argument.
const Config& checked(const Config& config);

}  // namespace quintet
