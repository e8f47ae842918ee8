// The Python face of scoring and sampling: every length checked here or below, the GIL released around all work.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <memory>
#include <mutex>
#include "bindings/bindings_sampling.h"

using namespace nanobind::literals;

namespace quintet {
namespace {

// Fewer logits than this are done before a helper would have woken.
constexpr size_t kWorthHelp = size_t(1) << 17;

// Rows of logits, which any model or none may have made.
template <class Row> void over_rows(Cpu& cpu, int rows, int vocab, Row row) {
  if (rows < 2 || size_t(rows) * size_t(vocab) < kWorthHelp) {
    for (int r = 0; r < rows; r++) row(r);
    return;
  }
  const std::lock_guard lock(cpu.turn);
  cpu.team.parallel(rows, row, Work::sampling);
}

const float* logits_row(const Logits& l, int r) { return l.data() + int64_t(r) * l.stride(0); }

nb::tuple score(Cpu& cpu, const Logits& logits, In<int32_t, 1> targets, int k) {
  const int vocab = check_logits(logits);
  const size_t n = logits.shape(0);
  require_targets(targets, n, k, vocab);
  Scored s(n, size_t(k));
  const Scores to = s.rows();
  {
    nb::gil_scoped_release release;
    over_rows(cpu, int(n), vocab,
              [&](int r) { score_row(cpu.kernels, logits_row(logits, r), vocab, targets.data()[r], to.row(size_t(r))); });
  }
  return s.tuple();
}

Controls controls_from(const nb::dict& d) {
  Controls c;
  c.temperature = field<float>(d, "temperature");
  c.top_p = field<float>(d, "top_p");
  c.seed = field<uint64_t>(d, "seed");
  c.top_k = field<int>(d, "top_k");
  c.min_p = field<float>(d, "min_p");
  c.min_probability = field<float>(d, "min_probability");
  c.typical_p = field<float>(d, "typical_p");
  c.typical_within = field<bool>(d, "typical_within");
  c.top_n_sigma = field<float>(d, "top_n_sigma");
  c.xtc_probability = field<float>(d, "xtc_probability");
  c.xtc_threshold = field<float>(d, "xtc_threshold");
  c.repetition_penalty = field<float>(d, "repetition_penalty");
  c.frequency_penalty = field<float>(d, "frequency_penalty");
  c.presence_penalty = field<float>(d, "presence_penalty");
  c.dry.multiplier = field<float>(d, "dry_multiplier");
  c.dry.base = field<float>(d, "dry_base");
  c.dry.allowed_length = field<int>(d, "dry_allowed_length");
  c.dry.range = field<int>(d, "dry_range");
  for (const nb::bytes& breaker : field<std::vector<nb::bytes>>(d, "dry_breakers"))
    c.dry.breakers.emplace_back(breaker.c_str(), breaker.size());
  c.mirostat_target = field<float>(d, "mirostat_target");
  c.mirostat_lr = field<float>(d, "mirostat_lr");
  c.logit_bias = field<std::vector<std::pair<int32_t, float>>>(d, "logit_bias");
  c.allowed_token_ids = field<std::vector<int32_t>>(d, "allowed_token_ids");
  c.bad_words = field<std::vector<std::vector<int32_t>>>(d, "bad_words");
  c.min_tokens = field<int>(d, "min_tokens");
  c.eos_ids = field<std::vector<int32_t>>(d, "eos_ids");
  c.stop_token_ids = field<std::vector<int32_t>>(d, "stop_token_ids");
  return c;
}

std::shared_ptr<Pieces> pieces_from(const std::vector<nb::bytes>& given) {
  std::vector<std::string> pieces;
  for (const nb::bytes& piece : given) pieces.emplace_back(piece.c_str(), piece.size());
  return std::make_shared<Pieces>(pieces);
}

// Rows of logits of sequences, one after the other.
struct Runs {
  std::vector<int> firsts;      // row of each sequence, and the number of rows
  std::vector<int32_t> drafts;  // per row

  int first(size_t s) const { return firsts[s]; }
  int rows(size_t s) const { return firsts[s + 1] - firsts[s]; }
};

using Drafts = std::optional<std::pair<In<int32_t, 1>, In<int32_t, 1>>>;
Runs runs_from(const Drafts& given, size_t sequences, size_t rows) {
  Runs runs;
  runs.drafts.assign(rows, -1);
  if (!given) {
    require(sequences == rows, "draw: one sampler and position per row");
    for (size_t r = 0; r <= rows; r++) runs.firsts.push_back(int(r));
    return runs;
  }
  const auto& [lengths, drafts] = *given;
  require(lengths.size() == sequences && drafts.size() == rows, "draw: one length per sequence and one draft per row");
  std::copy(drafts.data(), drafts.data() + rows, runs.drafts.begin());
  runs.firsts.push_back(0);
  for (size_t s = 0; s < sequences; s++) {
    const int32_t length = lengths.data()[s], left = int32_t(rows) - runs.firsts.back();
    require(length >= 1 && length <= left, "draw: lengths must be at least 1 and sum to the rows");
    runs.firsts.push_back(runs.firsts.back() + length);
    runs.drafts[size_t(runs.firsts.back()) - 1] = -1;
  }
  require(size_t(runs.firsts.back()) == rows, "draw: lengths must be at least 1 and sum to the rows");
  return runs;
}

// Of rows that are scored as they are drawn from: how many alternatives each wants, below 0 = no log-probabilities.
using Alternatives = std::optional<In<int32_t, 1>>;

// Where those of each row go; `scored` gets what they are part of, with room for the most that a row wants.
std::vector<Scores> scores_of(const Alternatives& given, size_t rows, int vocab, std::optional<Scored>& scored) {
  if (!given) return std::vector<Scores>(rows);
  require(given->size() == rows, "draw: one number of alternatives per row");
  int most = 0;
  for (size_t r = 0; r < rows; r++) most = std::max(most, int(given->data()[r]));
  require(most <= vocab, "draw: more alternatives than tokens");
  scored.emplace(rows, size_t(most));
  const Scores all = scored->rows();
  std::fill_n(all.chosen, rows, 0.0f);  // of what nobody asked for: 0
  std::fill_n(all.ids, rows * size_t(most), 0);
  std::fill_n(all.top, rows * size_t(most), 0.0f);
  std::fill_n(all.log_sum, rows, 0.0);
  std::vector<Scores> to;
  for (size_t r = 0; r < rows; r++) {
    to.push_back(all.row(r));
    to.back().top_k = given->data()[r];
  }
  return to;
}

nb::tuple draw(Cpu& cpu, const Logits& logits, const std::vector<nb::object>& samplers, In<uint64_t, 1> positions, Masks masks,
               Drafts drafts, Alternatives alternatives) {
  const int vocab = check_logits(logits);
  const size_t n = logits.shape(0), sequences = samplers.size();
  require(positions.size() == sequences, "draw: one position per sampler");
  check_masks(masks, n, vocab);
  const Runs runs = runs_from(drafts, sequences, n);
  std::vector<PySampler*> of;
  for (const nb::object& sampler : samplers) of.push_back(&nb::cast<PySampler&>(sampler));
  for (const PySampler* sampler : of) require(sampler->sampler.vocab() == vocab, "draw: a sampler for another vocabulary");
  auto out = fresh<int32_t, 1>({n});
  std::optional<Scored> scored;
  const std::vector<Scores> to = scores_of(alternatives, n, vocab, scored);
  std::vector<std::unique_ptr<Use>> uses;
  for (PySampler* sampler : of) uses.push_back(std::make_unique<Use>(*sampler));
  {
    nb::gil_scoped_release release;
    over_rows(cpu, int(sequences), vocab, [&](int s) {
      const int first = runs.first(size_t(s));
      draw_drafted(cpu.kernels, logits_row(logits, first), logits.stride(0), runs.rows(size_t(s)), of[size_t(s)]->sampler,
                   positions.data()[s], runs.drafts.data() + first, masks_row(masks, size_t(first)), out.data() + first, to.data() + first);
    });
  }
  return nb::make_tuple(out, scored ? nb::object(scored->tuple()) : nb::none());
}

}  // namespace

void bind_sampling(nb::module_& m, nb::class_<Cpu>& cpu) {
  cpu.def("score", &score, "logits"_a, "targets"_a, "k"_a);
  cpu.def("draw", &draw, "logits"_a, "samplers"_a, "positions"_a, "masks"_a.none(), "drafts"_a = nb::none(), "alternatives"_a = nb::none());
  nb::class_<Pieces>(m, "Pieces").def(nb::new_(&pieces_from), "pieces"_a);
  nb::class_<PySampler>(m, "Sampler")
      .def(
          "__init__",
          [](PySampler* self, const nb::dict& controls, std::shared_ptr<Pieces> pieces, In<int32_t, 1> prompt) {
            new (self) PySampler{Sampler(controls_from(controls), std::move(pieces), prompt.data(), prompt.size())};
          },
          "controls"_a, "pieces"_a, "prompt"_a)
      .def(
          "accept",
          [](PySampler& self, int32_t token) {
            const Use use(self);
            self.sampler.accept(token);
          },
          "token"_a)
      .def("copy",
           [](PySampler& self) {
             const Use use(self);
             return PySampler{self.sampler};
           })
      .def(
          "fork",
          [](PySampler& self, uint64_t seed) {
            const Use use(self);
            return PySampler{self.sampler.fork(seed)};
          },
          "seed"_a)
      .def_prop_ro("accepted", [](const PySampler& self) { return self.sampler.accepted(); });
  nb::dict outcomes;
  for (const auto& [name, outcome] : kOutcomes) outcomes[name] = int(outcome);
  m.attr("OUTCOMES") = outcomes;
}

}  // namespace quintet
