// Passes over a row of logits as wide as the vocabulary, in chunks whose maxima are kept so that later passes can skip most of them.
// Masses are added in a fixed order: as floats in 16 lanes within a chunk, then as doubles.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#include "kernels/kernels.h"

namespace quintet {

constexpr int kChunk = 512;  // tokens per call of a kernel

inline int chunks_of(int n) { return (n + kChunk - 1) / kChunk; }

// The maximum of a chunk of a row of n, NaN left out. False if a value is NaN or +infinity.
bool chunk_maximum(const Kernels& k, const float* x, int n, int chunk, float& maximum);
// Of each chunk. False if one is.
bool chunk_maxima(const Kernels& k, const float* x, int n, std::vector<float>& maxima);

float row_max(const std::vector<float>& maxima);

// The sum of exp((x - max) * scale) over each chunk of a row of n.
void chunk_masses(const Kernels& k, const float* x, int n, float max, float scale, std::vector<float>& masses);

double sum(const std::vector<float>& masses);

// log(sum(exp(x))) of a row by its masses with scale 1, without the final rounding to float; `max` where that is not finite.
double log_sum_exp(const std::vector<float>& masses, float max);

// The ids of the values of at least `low`, in id order.
void ids_from(const float* x, int n, const std::vector<float>& maxima, float low, std::vector<int32_t>& ids);

// The lowest id of the largest value; `max` is the largest of the maxima and not NaN.
int32_t first_of(const float* x, int n, const std::vector<float>& maxima, float max);

// A value that at least `count` values reach, or -infinity if the maxima do not tell one.
float reached_by(const std::vector<float>& maxima, int count);

// The `count` largest values with their ids, largest first, ties by lower id; NaN counts as -infinity. 0 < count <= n.
void largest(const float* x, int n, const std::vector<float>& maxima, int count, int32_t* ids, float* values);

// Where a row's log-probabilities go: of one token, and of the top_k most likely ones, most likely first, ties by lower id. A token's is
// its logit less the log-sum-exp, rounded once; NaN where the row is not finite. Below 0, top_k says that none are wanted.
struct Scores {
  int top_k = -1;  // <= n
  float* chosen = nullptr;
  int32_t* ids = nullptr;  // [top_k], as is `top`
  float* top = nullptr;
  double* log_sum = nullptr;

  // Of row r, if these are of the first of many, one after the other.
  Scores row(size_t r) const { return {top_k, chosen + r, ids + r * size_t(top_k), top + r * size_t(top_k), log_sum + r}; }
};

// A row's scores by its maxima, `sound` as they tell. `masses` are those at scale 1 if the row is `weighed`, else memory for them.
void score_with(const Kernels& k, const float* x, int n, const std::vector<float>& maxima, bool sound, int target,
                std::vector<float>& masses, bool weighed, const Scores& to);

}  // namespace quintet
