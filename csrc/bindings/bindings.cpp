// The Python face of the core: small, every length checked here or below, the GIL released around all work.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include "bindings/bindings.h"
#include "memory.h"
#include "model/model.h"

using namespace nanobind::literals;

namespace quintet {
namespace {

RopeParams rope_from(const nb::dict& d) {
  RopeParams r;
  r.dim = field<int>(d, "dim");
  r.base = field<double>(d, "base");
  r.scaling = field<std::string>(d, "scaling");
  r.factor = field<double>(d, "factor");
  r.original_context = field<int>(d, "original_context");
  r.attn_factor = field<double>(d, "attn_factor");
  r.beta_fast = field<double>(d, "beta_fast");
  r.beta_slow = field<double>(d, "beta_slow");
  r.log_multiplier = field<double>(d, "log_multiplier");
  r.truncate = field<bool>(d, "truncate");
  r.freq_factors = field<std::vector<float>>(d, "freq_factors");
  return r;
}

ExpertConfig experts_from(const nb::dict& d) {
  ExpertConfig e;
  e.count = field<int>(d, "count");
  e.used = field<int>(d, "used");
  e.ffn = field<int>(d, "ffn");
  e.shared = field<int>(d, "shared");
  e.normalise = field<bool>(d, "normalise");
  return e;
}

LayerConfig layer_from(const nb::dict& d) {
  LayerConfig l;
  l.pre_norm = field<bool>(d, "pre_norm");
  l.post_norm = field<bool>(d, "post_norm");
  l.qk_norm = choice<QkNorm>(d, "qk_norm", {{"none", QkNorm::none}, {"head", QkNorm::head}, {"full", QkNorm::full}});
  l.qkv_bias = field<bool>(d, "qkv_bias");
  l.o_bias = field<bool>(d, "o_bias");
  l.ffn_bias = field<bool>(d, "ffn_bias");
  l.gated = field<bool>(d, "gated");
  l.sinks = field<bool>(d, "sinks");
  l.rope = field<int>(d, "rope");
  l.window = field<int>(d, "window");
  l.attn_scale = field<float>(d, "attn_scale");
  l.temperature = field<float>(d, "temperature");
  l.temperature_length = field<int>(d, "temperature_length");
  l.attn_cap = field<float>(d, "attn_cap");
  l.residual_scale = field<float>(d, "residual_scale");
  l.activation =
      choice<Activation>(d, "activation", {{"silu", Activation::silu}, {"gelu", Activation::gelu}, {"swiglu_oai", Activation::swiglu_oai}});
  if (!d["experts"].is_none()) l.experts = experts_from(field<nb::dict>(d, "experts"));
  return l;
}

Config config_from(const nb::dict& d) {
  Config c;
  c.context = field<int>(d, "context");
  c.hidden = field<int>(d, "hidden");
  c.heads = field<int>(d, "heads");
  c.kv_heads = field<int>(d, "kv_heads");
  c.head_dim = field<int>(d, "head_dim");
  c.ffn = field<int>(d, "ffn");
  c.vocab = field<int>(d, "vocab");
  c.norm_eps = field<float>(d, "norm_eps");
  c.layer_norm = field<bool>(d, "layer_norm");
  c.tied = field<bool>(d, "tied");
  c.interleaved = field<bool>(d, "interleaved");
  c.embed_scale = field<float>(d, "embed_scale");
  c.logit_scale = field<float>(d, "logit_scale");
  c.logit_cap = field<float>(d, "logit_cap");
  c.float_activations = field<bool>(d, "float_activations");
  c.kv_type = choice<KvType>(d, "kv_type", {{"f16", KvType::f16}, {"q8", KvType::q8}});
  for (nb::handle rope : field<nb::list>(d, "ropes")) c.ropes.push_back(rope_from(nb::cast<nb::dict>(rope)));
  for (nb::handle layer : field<nb::list>(d, "layers")) c.layers.push_back(layer_from(nb::cast<nb::dict>(layer)));
  return c;
}

// What Python does while the other threads compute. An exception of it is raised when all is done, and what was computed is lost.
class Meanwhile {
 public:
  explicit Meanwhile(nb::object task) : task_(std::move(task)) {}
  std::function<void()> task() {
    if (task_.is_none()) return nullptr;
    return [this] {
      const nb::gil_scoped_acquire acquire;
      try {
        task_();
      } catch (nb::python_error& error) { error_.emplace(std::move(error)); }
    };
  }
  void finish() {
    if (error_) throw nb::python_error(std::move(*error_));
  }

 private:
  nb::object task_;
  std::optional<nb::python_error> error_;
};

using View = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

// A model and the buffer of logits that its callers read; one caller at a time, checked.
class PyModel {
  using Buffer = std::shared_ptr<FloatLines>;

 public:
  PyModel(const nb::dict& config, std::shared_ptr<Cpu> cpu) : cpu_(std::move(cpu)), model_(config_from(config), *cpu_) {}

  void set(const std::string& name, const std::string& type, int rows, int cols, In<uint8_t, 1> data, const std::string& quantize) {
    nb::gil_scoped_release release;
    const std::lock_guard lock(cpu_->turn);
    model_.set(name, type, rows, cols, data.data(), data.size(), floats_from(quantize));
  }

  void touch_pages(int first, int last) {
    nb::gil_scoped_release release;
    const std::lock_guard lock(cpu_->turn);
    model_.touch_pages(first, last);
  }

  // A view of what the model keeps; it must not outlive the model.
  std::span<const uint8_t> packed(const std::string& name) { return model_.packed(name); }

  void give(const std::string& name, const std::string& type, int rows, int cols, In<uint8_t, 1> data, const std::string& quantize) {
    model_.give(name, type, rows, cols, data.data(), data.size(), floats_from(quantize));
    given_.push_back(std::move(data));
  }

  // given, embeddings, spans: all empty, or as in Batch; spans: [B, 2].
  Out<uint8_t, 2> forward(In<int32_t, 1> tokens, In<int32_t, 1> lengths, In<int32_t, 1> starts, In<int32_t, 2> tables, In<int32_t, 1> rows,
                          In<int32_t, 1> given, In<float, 2> embeddings, In<int32_t, 2> spans, nb::object meanwhile) {
    require(lengths.size() == starts.size() && tables.shape(0) == lengths.size(), "forward: lengths, starts and tables differ in number");
    require(tokens.size() < (1u << 24) && rows.size() < (1u << 24) && tables.shape(1) < (1u << 24), "forward: too large");
    auto out = fresh<uint8_t, 2>({rows.size(), model_.row_bytes()});
    require(given.size() <= tokens.size() && embeddings.shape(0) == given.size() &&
                (!given.size() || embeddings.shape(1) == size_t(model_.config().hidden)),
            "forward: one row of the embedding's width for each given one");
    require(spans.shape(1) == 2 && spans.shape(0) <= tokens.size(), "forward: two numbers for each span");
    static_assert(sizeof(Span) == 2 * sizeof(int32_t));
    const Batch b{tokens.data(),
                  int(tokens.size()),
                  lengths.data(),
                  starts.data(),
                  int(lengths.size()),
                  tables.data(),
                  int(tables.shape(1)),
                  rows.data(),
                  int(rows.size()),
                  given.data(),
                  embeddings.data(),
                  int(given.size()),
                  reinterpret_cast<const Span*>(spans.data()),
                  int(spans.shape(0))};
    Meanwhile call(meanwhile);
    {
      nb::gil_scoped_release release;
      const std::lock_guard lock(cpu_->turn);
      model_.forward(b, out.data(), call.task());
    }
    call.finish();
    return out;
  }

  // Of the first `tokens`. A view of a buffer that the next call overwrites; it lives as long as any view of it.
  Out<float, 2> logits(In<uint8_t, 2> rows, int tokens) {
    require(rows.shape(1) == model_.row_bytes(), "logits: rows of another model");
    require(tokens > 0 && tokens <= model_.config().vocab, "logits: tokens that there are not");
    const size_t n = rows.shape(0), stride = size_t(model_.vocab_stride());
    Buffer buffer;
    {
      nb::gil_scoped_release release;
      const std::lock_guard lock(cpu_->turn);
      if (logits_->size() < n * stride) logits_ = std::make_shared<FloatLines>(n * stride);
      buffer = logits_;
      model_.logits(rows.data(), int(n), tokens, buffer->data());
    }
    float* data = buffer->data();
    nb::capsule owner(new Buffer(std::move(buffer)), [](void* p) noexcept { delete static_cast<Buffer*>(p); });
    return {data, {n, size_t(tokens)}, owner, {int64_t(stride), 1}};
  }

  Out<float, 1> logits_of(In<uint8_t, 2> rows, In<int32_t, 1> tokens) {
    require(rows.shape(1) == model_.row_bytes(), "logits_of: rows of another model");
    require(rows.shape(0) == tokens.size() && tokens.size() < (1u << 24), "logits_of: one token per row");
    for (size_t i = 0; i < tokens.size(); i++)
      require(tokens.data()[i] >= 0 && tokens.data()[i] < model_.config().vocab, "logits_of: token out of range");
    auto out = fresh<float, 1>({tokens.size()});
    nb::gil_scoped_release release;
    const std::lock_guard lock(cpu_->turn);
    model_.logits_of(rows.data(), int(tokens.size()), tokens.data(), out.data());
    return out;
  }

  nb::tuple score(In<uint8_t, 2> rows, In<int32_t, 1> targets, int k) {
    const size_t n = rows.shape(0);
    const int vocab = model_.config().vocab;
    require(rows.shape(1) == model_.row_bytes(), "score: rows of another model");
    require(n < (1u << 24), "score: one target per row");
    require_targets(targets, n, k, vocab);
    Scored s(n, size_t(k));
    {
      nb::gil_scoped_release release;
      const std::lock_guard lock(cpu_->turn);
      model_.score(rows.data(), int(n), targets.data(), s.rows());
    }
    return s.tuple();
  }

  Model& model() { return model_; }

 private:
  std::shared_ptr<Cpu> cpu_;
  std::vector<In<uint8_t, 1>> given_;  // what the model reads, and others own
  Model model_;
  Buffer logits_ = std::make_shared<FloatLines>();
};

void begin_counting(Cpu& cpu) {
  const nb::gil_scoped_release release;  // whoever has the turn may ask for the interpreter
  const std::lock_guard lock(cpu.turn);
  cpu.team.begin_counting();
}

nb::list end_counting(Cpu& cpu) {
  std::vector<Spent::Seconds> counted;
  {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(cpu.turn);
    counted = cpu.team.end_counting();
  }
  nb::list threads;
  for (const Spent::Seconds& seconds : counted) {
    nb::dict spent;
    for (size_t i = 0; i < seconds.size(); i++) spent[kWorks[i]] = seconds[i];
    threads.append(spent);
  }
  return threads;
}

}  // namespace
}  // namespace quintet

NB_MODULE(_core, m) {
  using namespace quintet;
  nb::set_leak_warnings(false);  // a cache may hold a Cpu when the interpreter ends: nothing to tell a user
  m.def("isas", [] {
    std::vector<std::string> names;
    for (auto* k : available_kernels()) names.push_back(k->name);
    return names;
  });
  nb::class_<Cpu> cpu(m, "Cpu");
  cpu.def(nb::init<const std::string&, int>(), "isa"_a = "", "threads"_a = 1)
      .def_prop_ro("isa", [](Cpu& c) { return c.kernels.name; })
      .def("begin_counting", &begin_counting)
      .def("end_counting", &end_counting);
  bind_packs(m);
  bind_sampling(m, cpu);
  bind_vision(m);
  bind_tokens(m);
  nb::class_<PyModel>(m, "Model")
      .def(nb::init<const nb::dict&, std::shared_ptr<Cpu>>(), "config"_a, "cpu"_a)
      .def("set", &PyModel::set, "name"_a, "type"_a, "rows"_a, "cols"_a, "data"_a, "quantize"_a)
      .def(
          "packed",
          [](nb::handle_t<PyModel> self, const std::string& name) {
            const auto found = nb::cast<PyModel&>(self).packed(name);
            return View(found.data(), {found.size()}, self);
          },
          "name"_a)
      .def("give", &PyModel::give, "name"_a, "type"_a, "rows"_a, "cols"_a, "data"_a, "quantize"_a)
      .def("finish", [](PyModel& p) { p.model().finish(); })
      .def(
          "allocate", [](PyModel& p, int pages) { p.model().allocate(pages); }, "pages"_a)
      .def(
          "copy_page", [](PyModel& p, int source, int target) { p.model().copy_page(source, target); }, "source"_a, "target"_a)
      .def(
          "read_page",
          [](PyModel& p, int page) {
            auto out = fresh<uint8_t, 1>({p.model().page_bytes()});
            p.model().read_page(page, out.data());
            return out;
          },
          "page"_a)
      .def(
          "write_page",
          [](PyModel& p, int page, In<uint8_t, 1> data) {
            require(data.size() == p.model().page_bytes(), "write_page: as many bytes as a page has");
            p.model().write_page(page, data.data());
          },
          "page"_a, "data"_a)
      .def("touch_pages", &PyModel::touch_pages, "first"_a, "last"_a)
      .def(
          "drop_pages", [](PyModel& p, In<int32_t, 1> pages) { p.model().drop_pages(pages.data(), pages.size()); }, "pages"_a)
      .def("forward", &PyModel::forward, "tokens"_a, "lengths"_a, "starts"_a, "tables"_a, "rows"_a, "given"_a, "embeddings"_a, "spans"_a,
           "meanwhile"_a = nb::none())
      .def("logits", &PyModel::logits, "rows"_a, "tokens"_a)
      .def("logits_of", &PyModel::logits_of, "rows"_a, "tokens"_a)
      .def("score", &PyModel::score, "rows"_a, "targets"_a, "k"_a)
      .def_prop_ro("row_bytes", [](PyModel& p) { return p.model().row_bytes(); })
      .def_prop_ro("page_bytes", [](PyModel& p) { return p.model().page_bytes(); })
      .def_prop_ro("weight_bytes", [](PyModel& p) { return p.model().weight_bytes(); });
}
