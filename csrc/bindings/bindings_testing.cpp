// _core_testing: what only tests ask of the core. Built with the tests at hand (QUINTET_TESTING), and in no wheel.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include "bindings/bindings_sampling.h"
#include "checksum.h"
#include "cpu.h"
#include "kernels/pack.h"

using namespace nanobind::literals;

namespace quintet {
namespace {

Out<float, 2> dequantize(const std::string& type, int rows, int cols, In<uint8_t, 1> raw) {
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == raw.size(), "dequantize: length does not match type and shape");
  auto out = fresh<float, 2>({size_t(rows), size_t(cols)});
  for (int r = 0; r < rows; r++) dequantize_row(type, raw.data(), r, cols, out.data() + size_t(r) * size_t(cols));
  return out;
}

Out<float, 2> pack_roundtrip(const std::string& type, int rows, int cols, In<uint8_t, 1> raw, const std::vector<int>& row_order,
                             const std::string& quantize) {
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == raw.size(), "pack: length does not match type and shape");
  require(row_order.empty() || int(row_order.size()) == rows, "pack: one source row per row");
  for (int r : row_order) require(r >= 0 && r < rows, "pack: source row out of range");
  auto out = fresh<float, 2>({size_t(rows), size_t(cols)});
  Arena arena;
  Packed w = pack_empty(type, rows, cols, floats_from(quantize), arena);
  pack_tiles(w, type, raw.data(), row_order, 0, w.tiles());
  for (int r = 0; r < rows; r++) unpack_row(w, r, out.data() + size_t(r) * size_t(cols));
  return out;
}

// x [M, K] times a float matrix [N, K] that is kept: [M, N], all rows in one call for each tile.
Out<float, 2> product(Cpu& cpu, const std::string& type, int rows, int cols, In<uint8_t, 1> raw, In<float, 2> x) {
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == raw.size(), "product: length does not match type and shape");
  require(x.shape(1) == size_t(cols), "product: rows of another width");
  Arena arena;
  Packed w = pack_empty(type, rows, cols, Floats::kept, arena);
  require(is_float(w.format), "product: not a float type");
  pack_tiles(w, type, raw.data(), {}, 0, w.tiles());
  const size_t m = x.shape(0), stride = 16 * size_t(w.tiles());
  std::vector<float> y(m * stride);
  for (int t = 0; t < w.tiles(); t++)
    cpu.kernels.gemm_tile(w, t, reinterpret_cast<const uint8_t*>(x.data()), size_t(cols) * 4, int(m), y.data() + 16 * t, stride, false,
                          nullptr);
  auto out = fresh<float, 2>({m, size_t(rows)});
  for (size_t r = 0; r < m; r++) std::copy_n(y.data() + r * stride, rows, out.data() + r * size_t(rows));
  return out;
}

nb::tuple distribution_of(Cpu& cpu, PySampler& self, const Logits& logits, uint64_t position, Masks masks) {
  require(check_logits(logits) == self.sampler.vocab() && logits.shape(0) == 1, "distribution: one row of the vocabulary");
  check_masks(masks, 1, self.sampler.vocab());
  const Use use(self);
  const auto kept = distribution(cpu.kernels, logits.data(), self.sampler, position, masks_row(masks, 0));
  auto ids = fresh<int32_t, 1>({kept.size()});
  auto probabilities = fresh<float, 1>({kept.size()});
  for (size_t i = 0; i < kept.size(); i++) ids.data()[i] = kept[i].first, probabilities.data()[i] = kept[i].second;
  return nb::make_tuple(ids, probabilities);
}

float uniform_of(uint64_t seed, uint64_t position, int word) {
  require(word >= 0 && word < 4, "uniform: a block has four words");
  return uniform(seed, position, Purpose(word));
}

}  // namespace
}  // namespace quintet

NB_MODULE(_core_testing, m) {
  using namespace quintet;
  nb::module_::import_("quintet._core");  // its types
  m.def("dequantize", &dequantize, "type"_a, "rows"_a, "cols"_a, "raw"_a);
  m.def("tensor_types", &tensor_types);
  m.def("pack_roundtrip", &pack_roundtrip, "type"_a, "rows"_a, "cols"_a, "raw"_a, "row_order"_a = std::vector<int>{}, "quantize"_a = "q8");
  m.def("product", &product, "cpu"_a, "type"_a, "rows"_a, "cols"_a, "raw"_a, "x"_a);
  m.def("checksum_portable", [](In<uint8_t, 1> data) { return checksum_portable(data.data(), data.size()); }, "data"_a);
  m.def("uniform", &uniform_of, "seed"_a, "position"_a, "word"_a);
  m.def("distribution", &distribution_of, "cpu"_a, "sampler"_a, "logits"_a, "position"_a, "masks"_a.none());
  m.def("surprise_bound", [](const PySampler& s) { return s.sampler.surprise_bound(); }, "sampler"_a);
}
