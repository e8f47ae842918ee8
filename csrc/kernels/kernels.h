// The kernels of one instruction set, as a table of functions. Every table computes the same bits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "kernels/pack.h"

namespace quintet {

// Activations of M rows x K features, quantised per row and block of 32: value = scale * q, scale = amax/127.
// Layout per row: K bytes of q, then K/32 floats of scale, K/32 floats of scale * sum(q) (for minima) and K/32 sums of q
// (for products of unsigned bytes, and for the minima of formats with one per 16).
inline size_t activation_row_bytes(int k) { return size_t(k) + size_t(k / 32) * 12; }

constexpr int kMaxHeadDim = 1024;

struct Sums {
  int16_t all, first;  // of the block's 32, and of the first 16
  int half(int i) const { return i ? all - first : first; }
};

struct ActivationRow {
  const uint8_t* q;
  const float* scale;
  const float* minimum;
  const Sums* sum;
  ActivationRow(const uint8_t* row, int k)
      : q(row), scale(reinterpret_cast<const float*>(row + k)), minimum(scale + k / 32),
        sum(reinterpret_cast<const Sums*>(minimum + k / 32)) {}
};

struct alignas(64) Line {
  uint8_t bytes[64];
};

// The same, 16 rows side by side, so that every load is of whole lines: a panel is K/32 of these. Of a panel that is not full the last rows
// are anything.
constexpr int kPanelRows = 16;
struct alignas(64) PanelBlock {
  uint8_t q[kPanelRows][32];
  float scale[kPanelRows], minimum[kPanelRows];
  Sums sum[kPanelRows];
};
// Where blocks of 32 go, of the rows or of a panel: each of the four one after the other.
struct Blocks {
  uint8_t* q;
  float *scale, *minimum;
  Sums* sum;
  Blocks from(int at) const { return {q + 32 * at, scale + at, minimum + at, sum + at}; }
};
inline size_t panel_bytes(int k) { return size_t(k / 32) * sizeof(PanelBlock); }

// Rows that share keys and values: R query rows of one KV head of one sequence. Cells of keys and values are fp16, or bytes (the layouts of
// both: below) with a scale for each token: then a page's values come right after its keys, and after these 16 scales of keys and 16 of
// values, fp16.
template <class Cell> struct AttendOver {
  const float* const* q;  // R pointers to head_dim floats, rotated and scaled
  const int* position;    // R positions; row r sees tokens first[r]..position[r]
  const int* first;       // null: all from 0
  int rows;               // R
  int head_dim;           // multiple of 16
  float cap;              // as soft_cap on the scores; 0 = none
  const float* sink;      // null, or R logits that take part in the softmax and weigh nothing
  const Cell* const* k;   // per page: fp16 [head_dim][16], bytes [head_dim / 4][16][4]
  const Cell* const* v;   // per page: fp16 [16][head_dim], bytes [4][head_dim][4]: four tokens are together
  int lead;               // pages of the sequence that come before the first of these; what adds up blocks of pages has to know it
  float* scratch;         // attend_scratch or attend8_scratch(R, pages up to the last position's, head_dim) floats, which begin a line
  float* const* out;      // R pointers to head_dim floats
};

// Pages whose keys or values are floats at a time, when there are many rows: a multiple of four. As floats they stay in the first-level
// cache.
constexpr int kAttendPages = 8;  // at most
int attend_block_pages(int head_dim);
// Floats of a row of scores over so many pages: an odd number of lines, so that the same token's of several rows are not all in the same
// few sets of the first-level cache.
inline size_t attend_stride(int pages) { return (size_t((pages + kAttendPages - 1) / kAttendPages) * kAttendPages + 1) * 16; }
// Scores, then keys or values, then 16 numbers and one for each row.
inline size_t attend_scratch(int rows, int pages, int head_dim) {
  return size_t(rows) * (attend_stride(pages) + 17) + size_t(kAttendPages) * 16 * size_t(head_dim);
}
// Floats of a query in two bytes a dimension, with two numbers, in whole lines.
inline size_t attend8_query(int head_dim) { return (size_t(head_dim) / 2 + 2 + 15) / 16 * 16; }
// Scores, scales of keys and values, then of each row its query and a number.
inline size_t attend8_scratch(int rows, int pages, int head_dim) {
  return size_t(rows + 2) * attend_stride(pages) + size_t(rows) * (attend8_query(head_dim) + 1);
}

// What will be read after some products, which may fetch it while they multiply (fetch_ahead.h).
struct Ahead {
  struct Piece {
    const uint8_t *from, *to;
  };
  std::vector<Piece> pieces;  // in the order of reading; what is fetched is no longer of its piece
  size_t next = 0;            // pieces before it are empty
  size_t wait = 0;            // lines that products could fetch before they begin to
};
// Of a row and a block of a tile, for a line that they fetch: they take about as long as memory needs for it.
constexpr int kProductsOfLine = 2;

struct Kernels {
  const char* name;
  // The 16 columns of one weight tile for M rows of quantised activations: y[m*y_stride + lane], or added to what is there. `ahead`: or
  // null.
  void (*gemm_tile)(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate,
                    Ahead* ahead);
  void (*quantize_blocks)(const float* x, int n, const Blocks& to);  // n blocks of 32 floats, one after the other
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps, float* out);
  void (*attend)(const AttendOver<uint16_t>& a);
  void (*attend8)(const AttendOver<uint8_t>& a);
  void (*hadamard)(float* x, int n);  // not scaled; n a power of two, from 16 to kMaxHeadDim
  void (*quantize_cells)(const float* const x[2], int n, int8_t* const out[2], uint16_t scales[2]);  // two rows; n a multiple of 16; fp16
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);         // out = silu(gate) * up, n a multiple of 16
  void (*gelu_mul)(const float* gate, const float* up, int n, float* out);         // out = gelu(gate) * up, in gelu's tanh form
  void (*swiglu_oai_mul)(const float* gate, const float* up, int n, float* out);   // see there
  void (*soft_cap)(float* x, float cap, int n);                                    // x = cap * tanh(x / cap), n a multiple of 16
  void (*add)(float* x, const float* y, int n);                                    // x += y
  void (*add_scaled)(float* x, const float* y, float s, int n);                    // x += s * y
  void (*dots)(const float* matrix, int rows, const float* x, int n, float* out);  // out = matrix * x, n a multiple of 16
  void (*scale_row)(float* x, float s, int n);                                     // x *= s
  void (*rope)(float* x, const float* cos, const float* sin, int dim);             // pairs (i, i + dim/2)
  void (*to_half)(const float* x, int n, uint16_t* out);
  // Rows of logits; any n. The sum runs in 16 lanes and a fixed tree.
  float (*row_max)(const float* x, int n);
  float (*row_max_checked)(const float* x, int n);                             // NaN if a value is NaN or +infinity
  float (*row_sum_exp)(const float* x, int n, float max, float scale);         // sum of exp((x - max) * scale)
  float (*row_sum_exp_times)(const float* x, int n, float max, float scale);   // sum of exp(y) * y, y = (x - max) * scale > -87
  void (*row_moments)(const float* x, int n, float max, float* out);           // of d = x - max > -infinity: sums of d, d * d and 1
  void (*row_exp)(const float* x, int n, float max, float scale, float* out);  // exp((x - max) * scale)

  // If there is one: as gemm_tile for rows in panels, of weights that are no floats. What is left of m rows over whole panels, of which
  // there is one at least, is its, too, from `least_of_panel` on.
  void (*gemm_panels)(const Packed& w, int tile, const uint8_t* panels, int m, float* y, size_t y_stride, bool accumulate) = nullptr;
  int least_of_panel = 0;

  // If there is one: as gemm_tile for two neighbouring tiles at once, 32 columns, of weights that are no floats. Worth it where `pairs`
  // says so.
  decltype(gemm_tile) gemm_pair = nullptr;
  bool (*pairs)(Format format, int rows) = nullptr;

  int attend_pairs = 48;  // of row and query head that share keys and values, at most: more make floats of them fewer times

  int least_ahead = 0;  // rows from which gemm_tile fetches what is ahead, if it ever does

  void (*leave)() = nullptr;  // if there is one: a thread's last call of a run, gives back what it would otherwise hold while it sleeps
};

// Instruction sets that this build has and this CPU runs, best first; "portable" is always last.
std::vector<const Kernels*> available_kernels();
// By name; empty = QUINTET_ISA from the environment, else the best. Throws std::invalid_argument if it cannot run here.
const Kernels& find_kernels(const std::string& name);

}  // namespace quintet
