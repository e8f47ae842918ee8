#include "sampling/sampler_filters.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include "sampling/philox.h"
#include "kernels/scalar_math.h"

namespace quintet {

void weigh(Row& row) {
  if (row.weighed) return;
  chunk_masses(row.k, row.logits, row.vocab, row.max, row.scale, row.chunks);
  row.total = sum(row.chunks);
  row.weighed = true;
}

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr double kZeroMass = 87.0;  // exp is 0 from here down
constexpr double kEnough = 8.0;     // nearly always what is sought lies within
constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// ---- tokens in play

float at_least_finite(double low) { return float(std::max(low, -double(kLargest))); }

void fill_masses(const Row& row, Candidates& c) {
  c.logits.resize(c.ids.size());
  c.masses.resize(c.ids.size());
  for (size_t i = 0; i < c.ids.size(); i++) c.logits[i] = row.logits[c.ids[i]];
  row.k.row_exp(c.logits.data(), int(c.ids.size()), row.max, row.scale, c.masses.data());
}

// Narrows the whole row to the logits of at least `low`.
void gather(Row& row, float low) {
  ids_from(row.logits, row.vocab, row.maxima, low, row.candidates.ids);
  fill_masses(row, row.candidates);
  row.whole = false;
}

// The logit that lies `width` below the maximum once temperature has been applied.
float below_max(const Row& row, double width) { return at_least_finite(double(row.max) - width / double(row.scale)); }

// Everything that has any mass.
void gather_all(Row& row) { gather(row, below_max(row, kZeroMass)); }

template <class Keep> void retain(Candidates& c, Keep keep) {
  size_t n = 0;
  for (size_t i = 0; i < c.ids.size(); i++) {
    const bool kept = keep(i);
    c.ids[n] = c.ids[i];
    c.logits[n] = c.logits[i];
    c.masses[n] = c.masses[i];
    n += kept;
  }
  c.ids.resize(n);
  c.logits.resize(n);
  c.masses.resize(n);
}

// ---- selection by mass

// Larger floats have smaller keys; both zeros have the same.
uint32_t rank_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

void rank_by_logit(Candidates& c) {
  c.keys.resize(c.ids.size());
  std::transform(c.logits.begin(), c.logits.end(), c.keys.begin(), rank_key);
}

// Bounded, so that no key could make this an index outside of the table.
uint32_t range_of(uint32_t key, uint32_t base, int shift) { return std::min((key - base) >> shift, 255u); }

// Masses of the members by 256 equal ranges of keys, and the range in which the mass runs out: the first whose end reaches `limit`,
// else the last with any mass. `before` becomes the mass before that range.
uint32_t range_reaching(const Candidates& c, uint32_t base, int shift, double limit, double& before) {
  std::array<double, 256> ranges = {};
  for (const uint32_t i : c.members) ranges[range_of(c.keys[i], base, shift)] += double(c.masses[i]);
  uint32_t found = 0;
  double skipped = 0.0;  // mass of `found`, added once a later range is found
  for (uint32_t r = 0; r < 256; r++) {
    if (!(ranges[r] > 0.0)) continue;
    before += skipped;
    found = r;
    skipped = ranges[r];
    if (before + skipped >= limit) break;
  }
  return found;
}

// Index of the last token kept when tokens in the order of their keys, ties by lower id, are kept until the mass before a token reaches
// `limit`, and the mass up to and with it, given that the candidates' mass does and is not 0. A radix selection: only the tokens of the
// range of keys in which the mass runs out are looked at again, until all that are left have one key; they stand in id order.
std::pair<size_t, double> last_within(Candidates& c, double limit) {
  c.members.resize(c.ids.size());
  std::iota(c.members.begin(), c.members.end(), 0u);
  const auto [first, final] = std::minmax_element(c.keys.begin(), c.keys.end());
  uint32_t base = *first, span = *final - *first;
  double before = 0.0;
  while (span > 0) {
    const int shift = std::max(0, int(std::bit_width(span)) - 8);
    const uint32_t range = range_reaching(c, base, shift, limit, before);
    size_t n = 0;
    for (const uint32_t i : c.members) {
      c.members[n] = i;
      n += range_of(c.keys[i], base, shift) == range;
    }
    c.members.resize(n);
    base += range << shift;
    span = (1u << shift) - 1;
  }
  uint32_t last = c.members[0];
  for (const uint32_t i : c.members) {
    if (i != last && before >= limit) break;
    before += double(c.masses[i]);
    last = i;
  }
  return {last, before};
}

// Keeps tokens until their mass reaches `limit`; with `under`, only as long as it does not exceed it. The first is kept whatever its mass.
void keep_within(Candidates& c, double limit, bool under = false) {
  const auto [last, mass] = last_within(c, limit);
  const uint32_t key = c.keys[last];
  const auto comes_before = [&, at = last](size_t i) { return c.keys[i] < key || (c.keys[i] == key && i < at); };
  const auto alone = [&] {
    for (size_t i = 0; i < c.ids.size(); i++)
      if (comes_before(i)) return false;
    return true;
  };
  const bool keeps_last = !under || mass <= limit || alone();
  retain(c, [&, at = last](size_t i) { return comes_before(i) || (keeps_last && i == at); });
}

// ---- parts of the steps

// Ids of at least the k largest logits, if so many are finite.
void ids_of_many(Row& row, int k) {
  const float low = reached_by(row.maxima, k);
  auto& ids = row.candidates.ids;
  if (low > -kLargest) return ids_from(row.logits, row.vocab, row.maxima, low, ids);
  for (const double width : {8.0, 24.0, std::numeric_limits<double>::infinity()}) {
    ids_from(row.logits, row.vocab, row.maxima, at_least_finite(double(row.max) - width), ids);
    if (ids.size() >= size_t(k)) return;
  }
}

// Leaves the k largest of more, ties by lower id; the ids stay in order.
void keep_largest(std::vector<int32_t>& ids, const float* logits, size_t k) {
  thread_local std::vector<float> values;
  values.resize(ids.size());
  for (size_t i = 0; i < ids.size(); i++) values[i] = logits[ids[i]];
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(k - 1), values.end(), std::greater<>());
  const float least = values[k - 1];
  size_t ties = k - size_t(std::count_if(values.begin(), values.begin() + ptrdiff_t(k), [least](float v) { return v > least; }));
  size_t n = 0;
  for (const int32_t id : ids) {
    const bool tie = logits[id] == least;
    const bool keep = logits[id] > least || (tie && ties > 0);
    ties -= tie && keep;
    ids[n] = id;
    n += keep;
  }
  ids.resize(k);
}

// Standard deviation of the logits that are not -infinity.
double deviation(const Row& row) {
  double sum = 0.0, squares = 0.0, count = 0.0;
  for (int from = 0; from < row.vocab; from += kChunk) {
    float m[3];
    row.k.row_moments(row.logits + from, std::min(kChunk, row.vocab - from), row.max, m);
    sum += double(m[0]), squares += double(m[1]), count += double(m[2]);
  }
  const double mean = sum / count;
  return std::sqrt(std::max(0.0, squares / count - mean * mean));
}

// How far below the maximum, after temperature, the tokens lie that hold all but less than half of the share `dropped` of the mass, even if
// there are vocab of them.
double width_of_all_but(const Row& row, double dropped) {
  return std::min(kZeroMass, log_positive(2.0 * double(row.vocab) / (dropped * row.total)));
}

// Gathers what a typical selection can keep of the whole row: these hold enough mass, and all others come after them, as they are further
// from the mean than the maximum is.
double gather_typical(Row& row, double p) {
  weigh(row);
  double weighted = 0.0;
  for (int from = 0; from < row.vocab; from += kChunk)
    weighted += double(row.k.row_sum_exp_times(row.logits + from, std::min(kChunk, row.vocab - from), row.max, row.scale));
  const double mean = weighted / row.total;
  const double all = width_of_all_but(row, 1.0 - p);
  for (const double width : {std::min(kEnough, all), all}) {
    gather(row, below_max(row, std::max(width, -2.0 * mean + 1e-3)));
    if (sum(row.candidates.masses) >= p * row.total) break;
  }
  return mean;
}

double mean_of(const Candidates& c, const Row& row) {
  double weighted = 0.0;
  for (size_t i = 0; i < c.ids.size(); i++) weighted += double(c.masses[i]) * (double(c.logits[i] - row.max) * double(row.scale));
  return weighted / sum(c.masses);
}

// Surely: tokens next to the threshold count too.
bool fewer_than_two_above(Row& row, float threshold) {
  weigh(row);
  const double mass = double(threshold) * row.total;
  if (!(mass > 1e-30)) return false;
  ids_from(row.logits, row.vocab, row.maxima, below_max(row, 1e-3 - log_positive(mass)), row.candidates.ids);
  return row.candidates.ids.size() < 2;
}

// First index whose cumulative mass from `before` exceeds `target`; if rounding keeps the end below it, the last with any mass.
std::optional<int> walk(const float* masses, int n, double before, double target) {
  std::optional<int> last;
  for (int i = 0; i < n; i++) {
    if (!(masses[i] > 0.0f)) continue;
    last = i;
    before += double(masses[i]);
    if (before > target) break;
  }
  return last;
}

std::optional<int32_t> draw_whole(Row& row, float u) {
  weigh(row);
  const double target = double(u) * row.total;
  double before = 0.0;
  size_t chunk = 0;
  while (chunk + 1 < row.chunks.size() && before + double(row.chunks[chunk]) <= target) before += double(row.chunks[chunk++]);
  const int first = int(chunk) * kChunk, n = std::min(kChunk, row.vocab - first);
  std::array<float, kChunk> masses;
  row.k.row_exp(row.logits + first, n, row.max, row.scale, masses.data());
  const std::optional<int> at = walk(masses.data(), n, before, target);
  return at ? std::optional(first + *at) : std::nullopt;
}

}  // namespace

// ---- the steps

void keep_unsurprising(Row& row) {
  if (!(row.sampler.controls().mirostat_target > 0.0f)) return;
  weigh(row);
  const double width = row.sampler.surprise_bound() * kLn2 - log_positive(row.total);
  gather(row, std::min(row.max, below_max(row, width)));
}

void keep_top_n_sigma(Row& row) {
  const double n = double(row.sampler.controls().top_n_sigma);
  if (n > 0.0) gather(row, at_least_finite(double(row.max) - n * deviation(row)));
}

void keep_top_k(Row& row) {
  const int k = row.sampler.controls().top_k;
  Candidates& c = row.candidates;
  if (k <= 0 || size_t(k) >= (row.whole ? size_t(row.vocab) : c.ids.size())) return;
  if (row.whole) ids_of_many(row, k);
  if (size_t(k) < c.ids.size()) keep_largest(c.ids, row.logits, size_t(k));
  fill_masses(row, c);
  row.whole = false;
}

// A token's surprise is a constant less x = (logit - max) / temperature, so |surprise - entropy| is |x - the mean of x|.
void keep_typical(Row& row) {
  const double p = double(row.sampler.controls().typical_p);
  if (!(p < 1.0)) return;
  Candidates& c = row.candidates;
  const bool whole = row.whole;
  const double mean = whole ? gather_typical(row, p) : mean_of(c, row);
  const double total = whole ? row.total : sum(c.masses);
  c.keys.resize(c.ids.size());
  for (size_t i = 0; i < c.ids.size(); i++)
    c.keys[i] = std::bit_cast<uint32_t>(float(std::fabs(double(c.logits[i] - row.max) * double(row.scale) - mean)));
  keep_within(c, p * total, row.sampler.controls().typical_within);
}

void keep_top_p(Row& row) {
  const double p = double(row.sampler.controls().top_p);
  if (!(p < 1.0)) return;
  Candidates& c = row.candidates;
  if (!row.whole) {
    rank_by_logit(c);
    return keep_within(c, p * sum(c.masses));
  }
  weigh(row);
  const double limit = p * row.total;
  const double all = width_of_all_but(row, 1.0 - p);
  for (const double width : {std::min(kEnough, all), all}) {
    gather(row, below_max(row, width));
    const double mass = sum(c.masses);
    if (!(mass > 0.0 && mass >= limit)) continue;
    rank_by_logit(c);
    return keep_within(c, limit);
  }
  row.whole = true;  // rounding: all of the row is needed
}

void keep_min_p(Row& row) {
  const double p = double(row.sampler.controls().min_p);
  if (!(p > 0.0)) return;
  const double width = -log_positive(p);
  if (row.whole) return gather(row, below_max(row, width));
  Candidates& c = row.candidates;
  const float best = *std::max_element(c.logits.begin(), c.logits.end());
  const float low = at_least_finite(double(best) - width / double(row.scale));
  retain(c, [&](size_t i) { return c.logits[i] >= low; });
}

void keep_probable(Row& row) {
  const double p = double(row.sampler.controls().min_probability);
  if (!(p > 0.0)) return;
  Candidates& c = row.candidates;
  if (row.whole) weigh(row);
  const double low = below_max(row, -log_positive(p * (row.whole ? row.total : sum(c.masses))));
  if (row.whole) return gather(row, float(std::min(double(row.max), low)));
  const float least = float(std::min(double(*std::max_element(c.logits.begin(), c.logits.end())), low));
  retain(c, [&](size_t i) { return c.logits[i] >= least; });
}

void exclude_top_choices(Row& row) {
  const Controls& controls = row.sampler.controls();
  if (!(uniform(controls.seed, row.position, Purpose::exclude_top_choices) < controls.xtc_probability)) return;
  if (row.whole && fewer_than_two_above(row, controls.xtc_threshold)) return;
  if (row.whole) gather_all(row);
  Candidates& c = row.candidates;
  const double threshold = double(controls.xtc_threshold) * sum(c.masses);
  // Without a mass a token is never drawn, so it is none that is left.
  const auto reaches = [&](size_t i) { return c.masses[i] > 0.0f && double(c.masses[i]) >= threshold; };
  std::optional<size_t> least;  // of the tokens that reach the threshold, ties to the higher id
  for (size_t i = 0; i < c.ids.size(); i++)
    if (reaches(i) && (!least || c.logits[i] <= c.logits[*least])) least = i;
  if (least) retain(c, [&, at = *least](size_t i) { return i == at || !reaches(i); });
}

// ---- the draw

std::optional<int32_t> draw(Row& row, float u) {
  if (row.whole) return draw_whole(row, u);
  const Candidates& c = row.candidates;
  const std::optional<int> at = walk(c.masses.data(), int(c.ids.size()), 0.0, double(u) * sum(c.masses));
  return at ? std::optional(c.ids[size_t(*at)]) : std::nullopt;
}

double surprise(Row& row, int32_t token) {
  weigh(row);
  return (log_positive(row.total) - double(row.logits[token] - row.max) * double(row.scale)) / kLn2;
}

}  // namespace quintet
