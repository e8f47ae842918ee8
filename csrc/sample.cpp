// How a token is chosen, in this order:
//
//   greedy     temperature below 1e-5, or not a number: the largest logit, ties by lower id. Such temperatures divide differences that
//              are within the rounding of the logits, so nothing is left to draw.
//   soften     mass(i) = exp((logit[i] - max) / temperature), not normalised
//   keep_top_p tokens ranked by logit, ties by lower id, are kept until the mass before a token reaches top_p of the whole; the first
//              always. Ranking by logit is ranking by probability, without the ties that rounding exp would make.
//   draw       the first token in id order whose cumulative mass, over the kept tokens, exceeds uniform * kept mass
//
// Masses are added in a fixed order: as floats in 16 lanes within a chunk of 512 tokens, then as doubles.
// Non-finite logits: -inf is never drawn while another token is finite. NaN counts as the smallest logit. A row whose maximum is not
// finite is chosen greedily. Whatever the row holds, the id is one of the row's.
#include "sample.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>
#include "scalar_math.h"

namespace quintet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kGreedyBelow = 1e-5f;
constexpr int kChunk = 512;   // tokens per call of the sum kernel
constexpr int kScan = 32;     // tokens per branch of the scans below: rarely taken, and the comparison vectorises

// ---- Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)

using Words = std::array<uint32_t, 4>;

constexpr Words philox(Words c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key1, uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The known answers published with Random123.
static_assert(philox({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
static_assert(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
static_assert(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u) ==
              Words{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});

// ---- scans

// Calls take(i) for the elements that pass; a block without any costs one vectorised comparison. `passes` may grow stricter.
template <class Passes, class Take> void scan(const float* x, int from, int n, Passes passes, Take take) {
  int i = from;
  for (; i + kScan <= n; i += kScan) {
    int any = 0;
    for (int j = 0; j < kScan; j++) any |= passes(x[i + j]);
    if (any == 0) continue;
    for (int j = i; j < i + kScan; j++) if (passes(x[j])) take(j);
  }
  for (; i < n; i++) if (passes(x[i])) take(i);
}

// The `count` largest values with their ids, largest first, ties by lower id; NaN counts as -inf. 0 < count <= n.
void largest(const float* x, int n, int count, int32_t* ids, float* values) {
  const auto insert = [&](int id, int used) {
    const float value = x[id] > -kInfinity ? x[id] : -kInfinity;
    int at = used;
    for (; at > 0 && values[at - 1] < value; at--) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
  };
  for (int i = 0; i < count; i++) insert(i, i);
  scan(x, count, n, [&](float v) { return v > values[count - 1]; }, [&](int i) { insert(i, count - 1); });
}

int32_t argmax(const float* x, int n) {
  int32_t id;
  float value;
  largest(x, n, 1, &id, &value);
  return id;
}

std::vector<float> chunk_masses(const Kernels& k, const float* logits, int vocab, float max, float scale) {
  std::vector<float> masses;
  masses.reserve(size_t(vocab / kChunk + 1));
  for (int i = 0; i < vocab; i += kChunk) masses.push_back(k.row_sum_exp(logits + i, std::min(kChunk, vocab - i), max, scale));
  return masses;
}

double sum(const std::vector<float>& masses) {
  double lanes[8] = {}, tail = 0.0;
  size_t i = 0;
  for (; i + 8 <= masses.size(); i += 8) for (size_t l = 0; l < 8; l++) lanes[l] += double(masses[i + l]);
  for (; i < masses.size(); i++) tail += double(masses[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])) + tail;
}

// Without the final rounding to float. A row without a finite maximum gives that maximum.
double log_sum_exp_exact(const Kernels& k, const float* logits, int vocab) {
  const float max = k.row_max(logits, vocab);
  if (!std::isfinite(max)) return double(max);
  const double total = sum(chunk_masses(k, logits, vocab, max, 1.0f));
  return double(max) + log_positive(std::max(total, 1.0));   // the maximum's own term is 1: no log-probability above 0
}

// ---- sampling

// Some tokens of a row, in id order.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<float> logits, masses;
  std::vector<uint32_t> keys;             // rank_key of each logit,
  uint32_t first_key = 0, last_key = 0;   // between these
  std::vector<uint32_t> members;          // scratch of last_within
};

// Kept from call to call for its memory alone: up to 20 bytes per token of the vocabulary, whose page faults would cost more than the
// work on it.
thread_local Candidates scratch;

// One row on its way through the steps.
struct Row {
  const Kernels& k;
  const float* logits;
  int vocab;
  float max = 0.0f, scale = 1.0f;
  std::vector<float> chunks = {};        // mass of each chunk of the whole row
  double total = 0.0;                    // and their sum
  const Candidates* kept = nullptr;      // the tokens still in play; null = the whole row
};

bool soften(Row& row, const SampleParams& p) {
  if (!(p.temperature >= kGreedyBelow && p.temperature < kInfinity)) return false;
  row.max = row.k.row_max(row.logits, row.vocab);
  row.scale = 1.0f / p.temperature;
  row.chunks = chunk_masses(row.k, row.logits, row.vocab, row.max, row.scale);
  row.total = sum(row.chunks);
  return std::isfinite(row.max) && std::isfinite(row.total) && row.total > 0.0;
}

// The ids of the logits of at least `low`, in id order. Blocks with any are written without a branch per token.
void ids_from(const float* logits, int vocab, float low, std::vector<int32_t>& ids) {
  size_t n = 0;
  for (int i = 0; i < vocab; i += kScan) {
    const int end = std::min(i + kScan, vocab);
    int any = 0;
    for (int j = i; j < end; j++) any |= logits[j] >= low;
    if (any == 0) continue;
    ids.resize(n + kScan);
    for (int j = i; j < end; j++) {
      ids[n] = j;
      n += logits[j] >= low;
    }
  }
  ids.resize(n);
}

// Larger floats have smaller keys; both zeros have the same.
uint32_t rank_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

// The tokens whose logit, after temperature, is within `width` of the maximum.
void within(const Row& row, double width, Candidates& out) {
  const float low = float(std::max(double(row.max) - width / double(row.scale), -double(kLargest)));
  ids_from(row.logits, row.vocab, low, out.ids);
  out.first_key = rank_key(row.max);
  out.last_key = rank_key(low);
  out.logits.resize(out.ids.size());
  out.masses.resize(out.ids.size());
  out.keys.resize(out.ids.size());
  for (size_t i = 0; i < out.ids.size(); i++) out.logits[i] = row.logits[out.ids[i]];
  std::transform(out.logits.begin(), out.logits.end(), out.keys.begin(), rank_key);
  row.k.row_exp(out.logits.data(), int(out.ids.size()), row.max, row.scale, out.masses.data());
}

// Bounded, so that a kernel with another idea of a row's maximum could not make this an index outside of the table.
uint32_t range_of(uint32_t key, uint32_t base, int shift) { return std::min((key - base) >> shift, 255u); }

// Masses of the members by 256 equal ranges of keys, and the range in which the mass runs out: the first whose end reaches `limit`,
// else the last with any mass. `before` becomes the mass before that range.
uint32_t range_reaching(const Candidates& c, uint32_t base, int shift, double limit, double& before) {
  std::array<double, 256> ranges = {};
  for (const uint32_t i : c.members) ranges[range_of(c.keys[i], base, shift)] += double(c.masses[i]);
  uint32_t found = 0;
  double skipped = 0.0;   // mass of `found`, added once a later range is found
  for (uint32_t r = 0; r < 256; r++) {
    if (!(ranges[r] > 0.0)) continue;
    before += skipped;
    found = r;
    skipped = ranges[r];
    if (before + skipped >= limit) break;
  }
  return found;
}

// Index of the last token kept when tokens in rank order are kept until the mass before a token reaches `limit`. The candidates' mass
// must reach it and not be 0. A radix selection: only the tokens of the range of keys in which the mass runs out are looked at again,
// until all that are left have one key; they stand in id order.
size_t last_within(Candidates& c, double limit) {
  c.members.resize(c.ids.size());
  std::iota(c.members.begin(), c.members.end(), 0u);
  uint32_t base = c.first_key, span = c.last_key - c.first_key;
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
  return last;
}

// Drops the candidates that rank below the one at `last`.
void cut_after(Candidates& c, size_t last) {
  const uint32_t key = c.keys[last];
  size_t n = 0;
  for (size_t i = 0; i < c.ids.size(); i++) {
    const bool keep = c.keys[i] < key || (c.keys[i] == key && i <= last);
    c.ids[n] = c.ids[i];
    c.masses[n] = c.masses[i];
    n += keep;
  }
  c.ids.resize(n);
  c.masses.resize(n);
}

bool keep_top_p(Row& row, const SampleParams& p) {
  if (!(p.top_p < 1.0f)) return true;
  const double top_p = std::max(0.0, double(p.top_p));
  const double limit = top_p * row.total;
  // Tokens further than `all` from the maximum hold less than half of the mass that may be dropped, even if there are vocab of them.
  const double all = std::min(87.0, log_positive(2.0 * double(row.vocab) / ((1.0 - top_p) * row.total)));
  for (const double width : {std::min(8.0, all), all}) {   // nearly always the first is enough
    within(row, width, scratch);
    const double mass = sum(scratch.masses);
    if (!(mass > 0.0 && mass >= limit)) continue;
    cut_after(scratch, last_within(scratch, limit));
    row.kept = &scratch;
    break;
  }
  return true;
}

// The ordered list. A control that changes logits (bias, penalties) goes before soften and points row.logits at its own copy; one that
// drops tokens (top_k, min_p) goes after it and narrows row.kept. A step returns false if there is nothing to draw: greedy it is.
using Step = bool (*)(Row&, const SampleParams&);
constexpr Step kSteps[] = {soften, keep_top_p};

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

std::optional<int32_t> draw_kept(const Candidates& c, float u) {
  const std::optional<int> at = walk(c.masses.data(), int(c.ids.size()), 0.0, double(u) * sum(c.masses));
  return at ? std::optional(c.ids[size_t(*at)]) : std::nullopt;
}

std::optional<int32_t> draw_whole(const Row& row, float u) {
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

float log_sum_exp(const Kernels& k, const float* logits, int vocab) { return float(log_sum_exp_exact(k, logits, vocab)); }

// The caller has checked 0 <= target < vocab and 0 <= top_k <= vocab.
void score_row(const Kernels& k, const float* logits, int vocab, int target, int top_k, float* chosen, int32_t* top_ids, float* top) {
  const double log_sum = log_sum_exp_exact(k, logits, vocab);
  *chosen = float(double(logits[target]) - log_sum);
  if (top_k < 1) return;
  largest(logits, vocab, top_k, top_ids, top);
  for (int i = 0; i < top_k; i++) top[i] = float(double(top[i]) - log_sum);
}

float uniform(uint64_t seed, uint64_t position) {
  const Words c = philox({uint32_t(position), uint32_t(position >> 32), 0, 0}, uint32_t(seed), uint32_t(seed >> 32));
  return float(c[0] >> 8) * 0x1p-24f;
}

int32_t sample_row(const Kernels& k, const float* logits, int vocab, const SampleParams& p) {
  Row row{k, logits, vocab};
  for (const Step step : kSteps) if (!step(row, p)) return argmax(row.logits, vocab);
  const float u = uniform(p.seed, p.position);
  const std::optional<int32_t> id = row.kept ? draw_kept(*row.kept, u) : draw_whole(row, u);
  return id ? *id : argmax(row.logits, vocab);
}

}  // namespace quintet
