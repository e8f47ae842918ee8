// The Python face of the core: small, every length checked here or below, the GIL released around all work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include "model.h"
#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quintet {
namespace {

template <class T, size_t N> using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N> using Out = nb::ndarray<nb::numpy, T, nb::ndim<N>>;

template <class T, size_t N> Out<T, N> fresh(std::initializer_list<size_t> shape) {
  size_t n = 1;
  for (size_t s : shape) n *= s;
  T* data = new T[std::max<size_t>(n, 1)];
  return Out<T, N>(data, shape, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
}

void require(bool ok, const char* what) { if (!ok) throw std::invalid_argument(what); }

// Threads for row-wise work on logits, which any model or none may have made.
Team& rows_team() {
  static Team team(int(std::clamp(std::thread::hardware_concurrency(), 1u, 8u)), 1);
  return team;
}
std::mutex rows_mutex;

const Kernels& best_kernels() {
  static const Kernels& best = find_kernels("");
  return best;
}

template <class Row> void over_rows(int rows, Row row) {
  const std::lock_guard lock(rows_mutex);
  if (rows < 2) { for (int r = 0; r < rows; r++) row(r); return; }
  rows_team().parallel(rows, row);
}

template <class T> T field(const nb::dict& d, const char* name) {
  require(d.contains(name), (std::string("config: missing ") + name).c_str());
  return nb::cast<T>(d[name]);
}

Config config_from(const nb::dict& d) {
  Config c;
  c.context = field<int>(d, "context"); c.layers = field<int>(d, "layers"); c.hidden = field<int>(d, "hidden");
  c.heads = field<int>(d, "heads"); c.kv_heads = field<int>(d, "kv_heads"); c.head_dim = field<int>(d, "head_dim");
  c.ffn = field<int>(d, "ffn"); c.vocab = field<int>(d, "vocab"); c.norm_eps = field<float>(d, "norm_eps");
  c.qkv_bias = field<bool>(d, "qkv_bias"); c.tied = field<bool>(d, "tied"); c.interleaved = field<bool>(d, "interleaved");
  RopeParams& r = c.rope;
  r.dim = field<int>(d, "rope_dim"); r.base = field<double>(d, "rope_base"); r.scaling = field<std::string>(d, "rope_scaling");
  r.factor = field<double>(d, "rope_factor"); r.original_context = field<int>(d, "rope_original_context");
  r.attn_factor = field<double>(d, "rope_attn_factor"); r.beta_fast = field<double>(d, "rope_beta_fast");
  r.beta_slow = field<double>(d, "rope_beta_slow"); r.freq_factors = field<std::vector<float>>(d, "rope_freq_factors");
  return c;
}

// A model and the buffer of logits that its callers read; one caller at a time, checked.
class PyModel {
  using Buffer = std::shared_ptr<std::vector<float>>;

 public:
  PyModel(const nb::dict& config, const std::string& isa, int threads) : model_(config_from(config), find_kernels(isa), std::clamp(threads, 1, 256)) {}

  void set(const std::string& name, const std::string& type, int rows, int cols, In<uint8_t, 1> data) {
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    model_.set(name, type, rows, cols, data.data(), data.size());
  }

  Out<uint8_t, 2> forward(In<int32_t, 1> tokens, In<int32_t, 1> lengths, In<int32_t, 1> starts, In<int32_t, 2> tables, In<int32_t, 1> rows) {
    require(lengths.size() == starts.size() && tables.shape(0) == lengths.size(), "forward: lengths, starts and tables differ in number");
    require(tokens.size() < (1u << 24) && rows.size() < (1u << 24) && tables.shape(1) < (1u << 24), "forward: too large");
    auto out = fresh<uint8_t, 2>({rows.size(), model_.row_bytes()});
    const Batch b{tokens.data(), int(tokens.size()), lengths.data(), starts.data(), int(lengths.size()),
                  tables.data(), int(tables.shape(1)), rows.data(), int(rows.size())};
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    model_.forward(b, out.data());
    return out;
  }

  // A view of a buffer that the next call overwrites; it lives as long as any view of it.
  Out<float, 2> logits(In<uint8_t, 2> rows) {
    require(rows.shape(1) == model_.row_bytes(), "logits: rows of another model");
    const size_t n = rows.shape(0), stride = size_t(model_.vocab_stride());
    Buffer buffer;
    {
      nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      if (logits_->size() < n * stride) logits_ = std::make_shared<std::vector<float>>(n * stride);
      buffer = logits_;
      model_.logits(rows.data(), int(n), buffer->data());
    }
    float* data = buffer->data();
    nb::capsule owner(new Buffer(std::move(buffer)), [](void* p) noexcept { delete static_cast<Buffer*>(p); });
    return {data, {n, size_t(model_.config().vocab)}, owner, {int64_t(stride), 1}};
  }

  Model& model() { return model_; }

 private:
  Model model_;
  std::mutex mutex_;
  Buffer logits_ = std::make_shared<std::vector<float>>();
};

// Logits may be a view with padded rows: unit stride within a row, any stride between rows.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
int check_logits(const Logits& l) {
  require(l.stride(1) == 1 || l.shape(1) <= 1, "logits: rows must be contiguous");
  require(l.shape(1) > 0 && l.shape(1) < (1u << 24), "logits: bad vocabulary");
  return int(l.shape(1));
}

nb::tuple score(const Logits& logits, In<int32_t, 1> targets, int k) {
  const int vocab = check_logits(logits);
  const size_t n = logits.shape(0);
  require(targets.size() == n, "score: one target per row");
  require(k >= 0 && k <= vocab, "score: k out of range");
  for (size_t r = 0; r < n; r++) require(targets.data()[r] >= 0 && targets.data()[r] < vocab, "score: target out of range");
  auto chosen = fresh<float, 1>({n});
  auto ids = fresh<int32_t, 2>({n, size_t(k)});
  auto top = fresh<float, 2>({n, size_t(k)});
  {
    nb::gil_scoped_release release;
    over_rows(int(n), [&](int r) {
      score_row(best_kernels(), logits.data() + int64_t(r) * logits.stride(0), vocab, targets.data()[r], k, chosen.data() + r,
                ids.data() + size_t(r) * size_t(k), top.data() + size_t(r) * size_t(k));
    });
  }
  return nb::make_tuple(chosen, ids, top);
}

Out<int32_t, 1> sample(const Logits& logits, In<float, 1> temperature, In<float, 1> top_p, In<uint64_t, 1> seeds, In<uint64_t, 1> positions) {
  const int vocab = check_logits(logits);
  const size_t n = logits.shape(0);
  require(temperature.size() == n && top_p.size() == n && seeds.size() == n && positions.size() == n, "sample: one of each parameter per row");
  auto out = fresh<int32_t, 1>({n});
  nb::gil_scoped_release release;
  over_rows(int(n), [&](int r) {
    const SampleParams p{temperature.data()[r], top_p.data()[r], seeds.data()[r], positions.data()[r]};
    out.data()[r] = sample_row(best_kernels(), logits.data() + int64_t(r) * logits.stride(0), vocab, p);
  });
  return out;
}

Out<float, 2> dequantize(const std::string& type, int rows, int cols, In<uint8_t, 1> raw) {
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == raw.size(), "dequantize: length does not match type and shape");
  auto out = fresh<float, 2>({size_t(rows), size_t(cols)});
  for (int r = 0; r < rows; r++) dequantize_row(type, raw.data(), r, cols, out.data() + size_t(r) * size_t(cols));
  return out;
}

Out<float, 2> pack_roundtrip(const std::string& type, int rows, int cols, In<uint8_t, 1> raw, const std::vector<int>& row_order) {
  require(rows > 0 && cols > 0 && raw_bytes(type, rows, cols) == raw.size(), "pack: length does not match type and shape");
  require(row_order.empty() || int(row_order.size()) == rows, "pack: one source row per row");
  for (int r : row_order) require(r >= 0 && r < rows, "pack: source row out of range");
  auto out = fresh<float, 2>({size_t(rows), size_t(cols)});
  Packed w = pack_empty(type, rows, cols);
  pack_tiles(w, type, raw.data(), row_order, 0, w.tiles());
  for (int r = 0; r < rows; r++) unpack_row(w, r, out.data() + size_t(r) * size_t(cols));
  return out;
}

}  // namespace
}  // namespace quintet

NB_MODULE(_core, m) {
  using namespace quintet;
  m.def("isas", [] { std::vector<std::string> names; for (auto* k : available_kernels()) names.push_back(k->name); return names; });
  m.def("score", &score, "logits"_a, "targets"_a, "k"_a);
  m.def("sample", &sample, "logits"_a, "temperature"_a, "top_p"_a, "seeds"_a, "positions"_a);
  m.def("uniform", &uniform, "seed"_a, "position"_a);
  m.def("dequantize", &dequantize, "type"_a, "rows"_a, "cols"_a, "raw"_a);
  m.def("pack_roundtrip", &pack_roundtrip, "type"_a, "rows"_a, "cols"_a, "raw"_a, "row_order"_a = std::vector<int>{});
  nb::class_<PyModel>(m, "Model")
      .def(nb::init<const nb::dict&, const std::string&, int>(), "config"_a, "isa"_a, "threads"_a)
      .def("set", &PyModel::set, "name"_a, "type"_a, "rows"_a, "cols"_a, "data"_a)
      .def("finish", [](PyModel& p) { p.model().finish(); })
      .def("allocate", [](PyModel& p, int pages) { p.model().allocate(pages); }, "pages"_a)
      .def("copy_page", [](PyModel& p, int source, int target) { p.model().copy_page(source, target); }, "source"_a, "target"_a)
      .def("forward", &PyModel::forward, "tokens"_a, "lengths"_a, "starts"_a, "tables"_a, "rows"_a)
      .def("logits", &PyModel::logits, "rows"_a)
      .def_prop_ro("isa", [](PyModel& p) { return p.model().kernels().name; })
      .def_prop_ro("row_bytes", [](PyModel& p) { return p.model().row_bytes(); })
      .def_prop_ro("page_bytes", [](PyModel& p) { return p.model().page_bytes(); })
      .def_prop_ro("weight_bytes", [](PyModel& p) { return p.model().weight_bytes(); });
}
