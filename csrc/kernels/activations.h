// Rows of activations as the products read them: quantised, or floats where all weights are kept floats. Where the instruction set
// multiplies 16 rows at once (Kernels::gemm_panels), quantised rows are laid together in panels as well: those that threads put one by one
// by who multiplies them, those that are put 16 at a time at once, and then they lie there alone.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>
#include "kernels/kernels.h"

namespace quintet {

class Activations {
 public:
  using Panels = std::vector<Line>;
  struct Matrix {
    std::vector<uint8_t> rows;
    Panels panels;
    bool in_panels = false;  // whether rows are laid into them, too
  };
  // What a product reads: from some row on, the first of a panel if there are panels; and what it may fetch for later.
  struct View {
    const uint8_t *rows, *panels;
    Ahead* ahead = nullptr;
  };

  Activations(const Kernels& kernels, bool floats) : kernels_(kernels), floats_(floats) {}

  bool floats() const { return floats_; }
  size_t bytes(int k) const { return floats_ ? size_t(k) * sizeof(float) : activation_row_bytes(k); }
  // Rows that must begin at a multiple of this are those that a product begins with.
  int side() const { return in_panels() ? kPanelRows : 1; }
  // Whether so many go into panels: a tile of weights is made ready for them, which fewer do not repay.
  bool in_panels(size_t rows) const { return in_panels() && rows >= size_t(kPanelRows); }

  // Tiles that a product of so many rows takes at once.
  int side_by_side(Format format, int rows) const {
    return kernels_.gemm_pair && !floats_ && !in_panels(size_t(rows)) && kernels_.pairs(format, rows) ? 2 : 1;
  }

  // Room for so many rows of k, before they are put; few have no panels.
  void reserve(Matrix& m, size_t rows, int k) const {
    reserve_rows(m, rows, k);
    m.in_panels = in_panels(rows);
    reserve(m.panels, rows, k);
  }
  // Of rows that threads put one by one: they would wait for each other's lines if they put them into panels as well. Who reads them lays
  // his own.
  void reserve_rows(Matrix& m, size_t rows, int k) const {
    if (m.rows.size() < rows * bytes(k)) m.rows.resize(rows * bytes(k));
  }
  // None for few.
  void reserve(Panels& panels, size_t rows, int k) const {
    const size_t lines = !in_panels(rows) ? 0 : (rows + kPanelRows - 1) / kPanelRows * panel_bytes(k) / sizeof(Line);
    if (panels.size() < lines) panels.resize(lines);
  }

  void put_row(const float* x, int k, Matrix& to, size_t r) const { put_part(x, k / 32, k, 0, to, r); }
  // 32 values each into `count` blocks of a row, from block `first` on.
  void put_part(const float* x, int count, int k, int first, Matrix& to, size_t r) const {
    uint8_t* row = to.rows.data() + r * bytes(k);
    if (floats_) return void(std::memcpy(row + size_t(first) * 32 * sizeof(float), x, size_t(count) * 32 * sizeof(float)));
    kernels_.quantize_blocks(x, count, blocks(row, k, first));
    for (int b = first; to.in_panels && b < first + count; b++) lay(ActivationRow(row, k), b, panel(to.panels, k, r, b), r);
  }
  // 32 values each into block `block` of `count` rows from r on, which begin a panel if there are panels.
  void put_column(const float* x, int count, int k, int block, Matrix& to, size_t r) const {
    if (floats_) {
      for (int i = 0; i < count; i++) put_part(x + 32 * i, 1, k, block, to, r + size_t(i));
      return;
    }
    PanelBlock made;
    for (int i = 0, n; i < count; i += n, r += size_t(n)) {
      n = std::min(count - i, kPanelRows);
      PanelBlock& in = to.in_panels ? panel(to.panels, k, r, block) : made;
      kernels_.quantize_blocks(x + 32 * i, n, {in.q[0], in.scale, in.minimum, in.sum});
      for (int j = 0; j < n && (n < kPanelRows || !to.in_panels); j++)  // nobody reads rows of a whole panel
        copy(in.q[j], in.scale[j], in.minimum[j], in.sum[j], blocks(to.rows.data() + (r + size_t(j)) * bytes(k), k, block));
    }
  }
  // A row that is made already.
  void take_row(const uint8_t* from, int k, Matrix& to, size_t r) const {
    std::memcpy(to.rows.data() + r * bytes(k), from, bytes(k));
    if (to.in_panels) lay(from, k, to.panels, r);
  }

  View view(const Matrix& m, int k, size_t first = 0) const { return view_of(m.rows.data(), m.panels, k, first); }
  // n rows that are made already and lie one after the other; their panels, if there are any, go into `panels`.
  View view(const uint8_t* rows, int n, int k, Panels& panels) const {
    if (in_panels(size_t(n))) {
      reserve(panels, size_t(n), k);
      for (size_t r = 0; r < size_t(n); r++) lay(rows + r * bytes(k), k, panels, r);
    }
    return view_of(rows, panels, k, 0);
  }
  View from(const View& v, int k, size_t row) const {
    return {v.rows + row * bytes(k), v.panels ? v.panels + row / kPanelRows * panel_bytes(k) : nullptr, v.ahead};
  }

  // Kernels::gemm_tile of the first m rows of x with `count` tiles from `tile` on, whose columns are side by side in y: by panels and pairs
  // of tiles as far as that is faster.
  void multiply(const Packed& w, int tile, int count, const View& x, int m, float* y, size_t y_stride, bool accumulate) const {
    const int rest = m % kPanelRows, by_panels = !in_panels(size_t(m)) ? 0 : rest < kernels_.least_of_panel ? m - rest : m;
    for (int t = 0; by_panels && t < count; t++) kernels_.gemm_panels(w, tile + t, x.panels, by_panels, y + 16 * t, y_stride, accumulate);
    if (by_panels == m) return;
    const size_t done = size_t(by_panels), stride = bytes(w.cols);
    const int most = side_by_side(w.format, m - by_panels);
    for (int t = 0, n; t < count; t += n) {
      n = std::min(most, count - t);
      const auto gemm = n == 2 ? kernels_.gemm_pair : kernels_.gemm_tile;
      gemm(w, tile + t, x.rows + done * stride, stride, m - by_panels, y + done * y_stride + 16 * t, y_stride, accumulate, x.ahead);
    }
  }

 private:
  bool in_panels() const { return kernels_.gemm_panels && !floats_; }
  static PanelBlock& panel(Panels& panels, int k, size_t r, int block) {
    return *reinterpret_cast<PanelBlock*>(panels.data()->bytes + r / kPanelRows * panel_bytes(k) + size_t(block) * sizeof(PanelBlock));
  }
  View view_of(const uint8_t* rows, const Panels& panels, int k, size_t first) const {
    return from({rows, panels.empty() ? nullptr : panels.data()->bytes}, k, first);
  }
  // Of a row those from `first` on.
  static Blocks blocks(uint8_t* row, int k, int first) {
    float* scale = reinterpret_cast<float*>(row + k);
    return Blocks{row, scale, scale + k / 32, reinterpret_cast<Sums*>(scale + 2 * (k / 32))}.from(first);
  }
  static void copy(const uint8_t* q, float scale, float minimum, Sums sum, const Blocks& to) {  // one
    std::memcpy(to.q, q, 32);
    *to.scale = scale;
    *to.minimum = minimum;
    *to.sum = sum;
  }
  static void lay(const ActivationRow& row, int b, PanelBlock& to, size_t r) {
    r %= kPanelRows;
    copy(row.q + 32 * b, row.scale[b], row.minimum[b], row.sum[b], {to.q[r], to.scale + r, to.minimum + r, to.sum + r});
  }
  static void lay(const uint8_t* row, int k, Panels& panels, size_t r) {
    for (int b = 0; b < k / 32; b++) lay(ActivationRow(row, k), b, panel(panels, k, r, b), r);
  }

  const Kernels& kernels_;
  const bool floats_;
};

}  // namespace quintet
