// Prints a digest of every kernel's bits and of a small model's logits and draws, for each instruction set that this build can run, and
// exits with 1 if two instruction sets differ. Run on two architectures (or under an emulator), the output must be the same text:
// this is how NEON is compared with x86, and AVX-512 with AVX2, on machines that lack one of them.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include "model/model.h"
#include "sampling/sample.h"
#include "tests/digest_attention.h"
#include "tests/digest_codes.h"
#include "tests/digest_models.h"
#include "tests/digest_vision.h"
#include "tests/tiles_held.h"

using namespace quintet;

namespace {

// Weights that are kept, in each of the float types: whole and odd numbers of rows side by side.
void float_gemm(const Kernels& k, Results& out) {
  const int n = 40, cols = 96, stride = 48;
  for (const char* type : {"F32", "F16", "BF16"}) {
    Random r;
    const auto raw = std::string(type) == "F32" ? raw_f32(r.floats(size_t(n) * cols, 0.3f)) : raw_halves(r, size_t(n) * cols);
    Arena arena;
    Packed w = pack_empty(type, n, cols, Floats::kept, arena);
    pack_tiles(w, type, raw.data(), {}, 0, w.tiles());
    Digest d;
    for (int m = 1; m <= 27; m++) {
      const auto x = raw_f32(r.floats(size_t(m) * cols, 3.0f));
      auto y = r.floats(size_t(m) * stride, 1.0f);
      for (int t = 0; t < w.tiles(); t++) k.gemm_tile(w, t, x.data(), size_t(cols) * 4, m, y.data() + 16 * t, stride, m % 2 == 0, nullptr);
      d.add(y);
    }
    out[std::string("gemm of kept ") + type] = d.h;
  }
}

void gemm(const Kernels& k, Results& out) {
  const Activations act(k, false);
  const int n = 41, cols = 96, stride = 48;
  for (const char* type : {"Q4_1", "F32"}) {
    Random r;
    const auto raw = type[0] == 'F' ? raw_f32(r.floats(size_t(n) * cols, 0.3f)) : raw_q4_1(r, n, cols);
    Arena arena;
    Packed w = pack_empty(type, n, cols, Floats::q8, arena);
    pack_tiles(w, type, raw.data(), {}, 0, w.tiles());
    Digest d;
    for (int m = 1; m <= kMostRows; m++) {
      Activations::Matrix x;
      act.reserve(x, size_t(m), cols);
      for (int i = 0; i < m; i++) act.put_row(r.floats(size_t(cols), i == 2 ? 1e-37f : 3.0f).data(), cols, x, size_t(i));
      d.add(x.rows);
      auto y = r.floats(size_t(m) * stride, 1.0f);
      Ahead ahead;  // fetched or not, they do not count
      for (int i = 0; i < m % 5; i++) ahead.pieces.push_back({raw.data() + i, raw.data() + 300 * (i + 1)});
      Activations::View in = act.view(x, cols);
      in.ahead = &ahead;
      act.multiply(w, 0, w.tiles(), in, m, y.data(), stride, m % 2 == 0);
      d.add(y);
    }
    out[std::string("gemm ") + type] = d.h;
  }
}

// A row with a value that is not finite, wherever it is, is NaN in all its products; rows beside it have the bits that they have beside
// sound ones.
void unsound(const Kernels& k, Results& out) {
  const Activations act(k, false);
  const int n = 16, cols = 192;
  Random r;
  Arena arena;
  Packed w = pack_empty("Q4_1", n, cols, Floats::q8, arena);
  const auto raw = raw_q4_1(r, n, cols);
  pack_tiles(w, "Q4_1", raw.data(), {}, 0, w.tiles());
  Digest d;
  for (int m : {1, 2, 3, 4, 5, 8, 17, 64})
    for (float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
      auto x = r.floats(size_t(m) * cols, 3.0f);
      const auto products = [&] {
        Activations::Matrix in;
        act.reserve(in, size_t(m), cols);
        for (int i = 0; i < m; i++) act.put_row(x.data() + i * cols, cols, in, size_t(i));
        d.add(in.rows);
        std::vector<float> y(size_t(m) * n);
        act.multiply(w, 0, w.tiles(), act.view(in, cols), m, y.data(), n, false);
        return y;
      };
      const auto sound = products();
      d.add(sound);
      const int row = r.below(m);
      x[size_t(row * cols + r.below(cols))] = bad;
      const auto y = products();
      for (int i = 0; i < m * n; i++)
        if (i / n == row ? !std::isnan(y[size_t(i)]) : std::memcmp(&y[size_t(i)], &sound[size_t(i)], 4) != 0) {
          std::printf("FAIL %s: row %d of %d where row %d is not finite\n", k.name, i / n, m, row);
          std::exit(1);
        }
    }
  out["gemm of what is not finite"] = d.h;
}

void rows(const Kernels& k, Results& out) {
  Random r;
  Digest norm, layer, silu, gelu, oai, cap, rope, half, cells, reduce;
  for (int n : {32, 160, 576}) {
    const auto x = r.floats(size_t(n), 4.0f), w = r.floats(size_t(n), 1.0f);
    std::vector<float> y(static_cast<size_t>(n));
    k.rms_norm(x.data(), w.data(), n, 1e-5f, y.data());
    norm.add(y);
    k.layer_norm(x.data(), w.data(), x.data(), n, 1e-5f, y.data());
    layer.add(y);
    auto gate = r.floats(size_t(n), 120.0f);
    k.silu_mul(gate.data(), w.data(), n, y.data());
    silu.add(y);
    k.gelu_mul(gate.data(), w.data(), n, y.data());
    gelu.add(y);
    k.swiglu_oai_mul(x.data(), gate.data(), n, y.data());
    oai.add(y);
    k.soft_cap(gate.data(), 30.0f, n);
    cap.add(gate);
    y = x;
    k.add(y.data(), w.data(), n);
    k.scale_row(y.data(), 0.3f, n);
    k.rope(y.data(), x.data(), w.data(), n == 160 ? 80 : n);
    rope.add(y);
    std::vector<uint16_t> h(static_cast<size_t>(n));
    k.to_half(x.data(), n, h.data());
    half.add(h);
    std::vector<int8_t> q(static_cast<size_t>(n)), others(static_cast<size_t>(n));
    const std::vector<float> other = r.floats(static_cast<size_t>(n), 1.0f);
    const auto add_cells = [&] {  // beside another row, on either side
      uint16_t scales[2];
      for (int at = 0; at < 2; at++) {
        const float* const rows[] = {at ? other.data() : y.data(), at ? y.data() : other.data()};
        int8_t* const out[] = {at ? others.data() : q.data(), at ? q.data() : others.data()};
        k.quantize_cells(rows, n, out, scales);
        cells.add(&scales[at], 2);
        cells.add(q);
      }
      cells.add(others);
    };
    for (float size : {1.0f, 1e-7f, 0.0f}) {  // a scale that fp16 holds, one that it hardly does, none
      y = x;
      k.scale_row(y.data(), size, n);
      add_cells();
    }
    for (float bad : {INFINITY, NAN}) {
      y[size_t(n) - 1] = bad;
      add_cells();
    }
    y = x;
    k.hadamard(y.data(), n & -n);
    cells.add(y);
  }
  for (int n : {1, 15, 16, 17, 1000}) {
    const auto x = r.floats(size_t(n), 40.0f);
    const float max = k.row_max(x.data(), n), sum = k.row_sum_exp(x.data(), n, max, 0.7f);
    std::vector<float> e(static_cast<size_t>(n));
    k.row_exp(x.data(), n, max, 1.3f, e.data());
    reduce.add(&max, 4);
    reduce.add(&sum, 4);
    reduce.add(e);
  }
  out["rms_norm"] = norm.h;
  out["layer_norm"] = layer.h;
  out["silu_mul"] = silu.h;
  out["gelu_mul"] = gelu.h;
  out["swiglu_oai_mul"] = oai.h;
  out["soft_cap"] = cap.h;
  out["rope"] = rope.h;
  out["to_half"] = half.h;
  out["cells"] = cells.h;
  out["row sums"] = reduce.h;
}

}  // namespace

int main() {
  const auto all = available_kernels();
  Results first;
  bool same = true;
  for (const Kernels* k : all) {
    Results r;
    gemm(*k, r);
    unsound(*k, r);
    codes(*k, r);
    float_gemm(*k, r);
    rows(*k, r);
    attention16(*k, r);
    attention8(*k, r);
    whole_model(*k, "model", small(), r);
    whole_model(*k, "elaborate model", elaborate(), r);
    wide_model(*k, "elaborate model, many rows", elaborate(), r);
    Config floats = elaborate();
    floats.float_activations = true;
    whole_model(*k, "model of floats", floats, r);
    Config bytes = elaborate();
    bytes.kv_type = KvType::q8;
    whole_model(*k, "model of 8-bit keys", bytes, r);
    vision(*k, r);
    if (first.empty()) first = r;
    for (const auto& [name, digest] : r)
      if (first[name] != digest) {
        std::fprintf(stderr, "DIFFERS %s: %s\n", k->name, name.c_str());
        same = false;
      }
    std::fprintf(stderr, "%s: %zu digests, %lld products of tiles\n", k->name, r.size(), static_cast<long long>(tile_products.exchange(0)));
  }
  for (const auto& [name, digest] : first) std::printf("%-28s %016llx\n", name.c_str(), static_cast<unsigned long long>(digest));
  return same ? 0 : 1;
}
