#include "model/rope.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace quintet {
namespace {

// Double-precision elementary functions as plain sequences of +, -, *, /: libm differs between machines, these do not.
// Each is good to about 1e-15, far below the float that is kept.

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kPi = 3.141592653589793238463;
constexpr int kRopeStep = 256;  // positions that are filled at a time

double log_d(double x) {
  int e;
  double m = std::frexp(x, &e);  // exact
  if (m < 0.70710678118654752440) {
    m *= 2;
    e--;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + double(e) * kLn2;
}

double exp_d(double x) {
  const double n = std::nearbyint(x / kLn2), r = x - n * kLn2;
  double sum = 1;
  for (int k = 18; k >= 1; k--) sum = 1 + sum * r / k;
  return std::ldexp(sum, int(n));  // exact
}

// pi/2 in three parts of 33 bits (fdlibm), so that n * part is exact for n < 2^20.
void sin_cos_d(double x, double* sine, double* cosine) {
  const double n = std::nearbyint(x * (2 / kPi));
  double r = x - n * 1.57079632673412561417e+00;
  r -= n * 6.07710050630396597660e-11;
  r -= n * 2.02226624879595063154e-21;
  const double r2 = r * r;
  double s = 1, c = 1;
  for (int k = 11; k >= 1; k--) {
    s = 1 - s * r2 / double((2 * k) * (2 * k + 1));
    c = 1 - c * r2 / double((2 * k - 1) * (2 * k));
  }
  s *= r;
  switch (int64_t(n) & 3) {
    case 0:
      *sine = s;
      *cosine = c;
      break;
    case 1:
      *sine = c;
      *cosine = -s;
      break;
    case 2:
      *sine = -s;
      *cosine = -c;
      break;
    default:
      *sine = -c;
      *cosine = s;
      break;
  }
}

// YaRN (Peng et al. 2023, arXiv 2309.00071, section 3.2): pairs that turn more than beta_fast times in the original context keep their
// frequency, those below beta_slow are interpolated, a linear ramp lies between; the rotation is scaled by 1 + 0.1 ln(factor).
struct Yarn {
  double low, high;
  explicit Yarn(const RopeParams& p) {
    auto pair_turning = [&](double turns) { return p.dim * log_d(p.original_context / (turns * 2 * kPi)) / (2 * log_d(p.base)); };
    const double first = pair_turning(p.beta_fast), last = pair_turning(p.beta_slow);
    low = std::fmax(0.0, p.truncate ? std::floor(first) : first);
    high = std::fmin(p.dim - 1.0, p.truncate ? std::ceil(last) : last);
  }
  double extrapolated(int pair) const { return 1 - std::fmin(1.0, std::fmax(0.0, (pair - low) / std::fmax(0.001, high - low))); }
};

std::vector<double> frequencies(const RopeParams& p) {
  const int half = p.dim / 2;
  std::vector<double> f(size_t(half), 0.0);
  const double step = log_d(p.base) * 2 / p.dim;
  for (int i = 0; i < half; i++) {
    double full = exp_d(-step * i);
    if (!p.freq_factors.empty()) full /= double(p.freq_factors[size_t(i)]);
    const double interpolated = full / p.factor;
    if (p.scaling == "none") f[size_t(i)] = full;
    else if (p.scaling == "linear") f[size_t(i)] = interpolated;
    else {
      const double mix = Yarn(p).extrapolated(i);
      f[size_t(i)] = interpolated * (1 - mix) + full * mix;
    }
  }
  return f;
}

void check(const RopeParams& p, int positions) {
  if (p.dim <= 0 || p.dim % 2 || positions <= 0 || positions > (1 << 22)) throw std::invalid_argument("rope: bad dimension or context");
  if (!(p.log_multiplier >= 0)) throw std::invalid_argument("rope: a multiplier below 0");
  if (!(p.base > 1) || !(p.factor > 0)) throw std::invalid_argument("rope: base must be above 1 and factor above 0");
  if (p.scaling != "none" && p.scaling != "linear" && p.scaling != "yarn")
    throw std::invalid_argument("rope: unknown scaling '" + p.scaling + "'");
  if (p.scaling == "yarn" && p.original_context <= 0) throw std::invalid_argument("rope: yarn needs the original context");
  if (!p.freq_factors.empty() && int(p.freq_factors.size()) != p.dim / 2)
    throw std::invalid_argument("rope: one frequency factor per pair");
}

}  // namespace

RopeTable::RopeTable(const RopeParams& p, int positions) : half_(p.dim / 2), most_(positions) {
  check(p, positions);
  frequencies_ = frequencies(p);
  scale_ = p.attn_factor;
  if (p.scaling == "yarn") scale_ *= (1 + 0.1 * log_d(p.factor)) / (1 + 0.1 * p.log_multiplier * log_d(p.factor));
  cos_.reserve(size_t(positions) * size_t(half_));
  sin_.reserve(cos_.capacity());
}

void RopeTable::reach(int positions) {
  const int goal = std::min(most_, (positions + kRopeStep - 1) / kRopeStep * kRopeStep);
  for (; filled_ < goal; filled_++) {
    for (int i = 0; i < half_; i++) {
      double s, c;
      sin_cos_d(filled_ * frequencies_[size_t(i)], &s, &c);
      cos_.push_back(float(c * scale_));
      sin_.push_back(float(s * scale_));
    }
  }
}

}  // namespace quintet
