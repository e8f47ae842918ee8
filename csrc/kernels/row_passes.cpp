#include "kernels/row_passes.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include "kernels/scalar_math.h"

namespace quintet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kScan = 32;  // tokens per branch of the scans below: rarely taken, and the comparison vectorises

// All values, one after the other: for rows whose maxima cannot bound the search.
void largest_of_all(const float* x, int n, int count, int32_t* ids, float* values) {
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
  for (int i = count; i < n; i++)
    if (x[i] > values[count - 1]) insert(i, count - 1);
}

}  // namespace

bool chunk_maximum(const Kernels& k, const float* x, int n, int chunk, float& maximum) {
  const float* from = x + chunk * kChunk;
  const int size = std::min(kChunk, n - chunk * kChunk);
  maximum = k.row_max_checked(from, size);
  if (!std::isnan(maximum)) return true;
  maximum = k.row_max(from, size);
  return false;
}

bool chunk_maxima(const Kernels& k, const float* x, int n, std::vector<float>& maxima) {
  maxima.resize(size_t(chunks_of(n)));
  bool sound = true;
  for (int c = 0; c < chunks_of(n); c++) sound = chunk_maximum(k, x, n, c, maxima[size_t(c)]) && sound;
  return sound;
}

float row_max(const std::vector<float>& maxima) { return *std::max_element(maxima.begin(), maxima.end()); }

void chunk_masses(const Kernels& k, const float* x, int n, float max, float scale, std::vector<float>& masses) {
  masses.resize(size_t(chunks_of(n)));
  for (int c = 0; c < chunks_of(n); c++) masses[size_t(c)] = k.row_sum_exp(x + c * kChunk, std::min(kChunk, n - c * kChunk), max, scale);
}

double sum(const std::vector<float>& masses) {
  double lanes[8] = {}, tail = 0.0;
  size_t i = 0;
  for (; i + 8 <= masses.size(); i += 8)
    for (size_t l = 0; l < 8; l++) lanes[l] += double(masses[i + l]);
  for (; i < masses.size(); i++) tail += double(masses[i]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7])) + tail;
}

double log_sum_exp(const std::vector<float>& masses, float max) {
  if (!std::isfinite(max)) return double(max);
  return double(max) + log_positive(std::max(sum(masses), 1.0));  // the maximum's own term is 1: no log-probability above 0
}

// Blocks with any are written without a branch per token.
void ids_from(const float* x, int n, const std::vector<float>& maxima, float low, std::vector<int32_t>& ids) {
  size_t found = 0;
  for (int i = 0; i < n; i += kScan) {
    if (i % kChunk == 0 && maxima[size_t(i / kChunk)] < low) {
      i += kChunk - kScan;
      continue;
    }
    const int end = std::min(i + kScan, n);
    int any = 0;
    for (int j = i; j < end; j++) any |= x[j] >= low;
    if (any == 0) continue;
    ids.resize(found + kScan);
    for (int j = i; j < end; j++) {
      ids[found] = j;
      found += x[j] >= low;
    }
  }
  ids.resize(found);
}

int32_t first_of(const float* x, int n, const std::vector<float>& maxima, float max) {
  const auto chunk = std::find(maxima.begin(), maxima.end(), max) - maxima.begin();
  const float* from = x + chunk * kChunk;
  const float* found = std::find(from, x + n, max);
  return found == x + n ? 0 : int32_t(found - x);  // only a row of NaN has no such value
}

float reached_by(const std::vector<float>& maxima, int count) {
  if (size_t(count) > maxima.size()) return -kInfinity;
  thread_local std::vector<float> sorted;
  sorted = maxima;
  std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
  return sorted[size_t(count - 1)];
}

void largest(const float* x, int n, const std::vector<float>& maxima, int count, int32_t* ids, float* values) {
  const float low = reached_by(maxima, count);
  if (!(low > -kInfinity)) return largest_of_all(x, n, count, ids, values);
  thread_local std::vector<int32_t> found;
  ids_from(x, n, maxima, low, found);
  const auto before = [&](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  std::partial_sort(found.begin(), found.begin() + count, found.end(), before);
  for (int i = 0; i < count; i++) {
    ids[i] = found[size_t(i)];
    values[i] = x[ids[i]];
  }
}

void score_with(const Kernels& k, const float* x, int n, const std::vector<float>& maxima, bool sound, int target,
                std::vector<float>& masses, bool weighed, const Scores& to) {
  const float max = row_max(maxima);
  if (!weighed && std::isfinite(max)) chunk_masses(k, x, n, max, 1.0f, masses);
  const double log_sum = sound ? log_sum_exp(masses, max) : std::numeric_limits<double>::quiet_NaN();
  *to.log_sum = log_sum;
  *to.chosen = float(double(x[target]) - log_sum);
  if (to.top_k < 1) return;
  largest(x, n, maxima, to.top_k, to.ids, to.top);
  for (int i = 0; i < to.top_k; i++) to.top[i] = float(double(to.top[i]) - log_sum);
}

}  // namespace quintet
