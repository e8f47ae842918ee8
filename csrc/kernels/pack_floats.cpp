#include "kernels/pack_floats.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include "kernels/half.h"

namespace quintet {
namespace {

constexpr int kLanes = 16, kBlock = 32, kTop = 15;
constexpr float kLargest = 65504.0f;  // of fp16

size_t element_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

// Where feature k of a lane lies within its tile, in elements.
size_t place(Format format, int k, int lane) {
  return format == Format::bf16 ? size_t(k / 2 * 2 * kLanes + 2 * lane + k % 2) : size_t(k * kLanes + lane);
}

// ---- to 4 bits: a block of each of the 16 rows of a tile at once, so that every sum is one lane's own, in the order of the columns

struct Lanes {
  float v[kLanes];
};

template <class Op> Lanes each(Op op) {
  Lanes r;
  for (int l = 0; l < kLanes; l++) r.v[l] = op(l);
  return r;
}

// value = d * q + m, and the sum of squared errors
struct Line {
  Lanes d, m, error;
};

// Rounded to nearest even by adding 1.5 * 2^23, between 0 and 15; 0 if it is no number.
inline float code_of(float x, float m, float inverse) {
  const float q = (x - m) * inverse + 0x1.8p23f - 0x1.8p23f;
  return q > float(kTop) ? float(kTop) : q > 0.0f ? q : 0.0f;
}

inline float inverse_of(float d) { return d > 0.0f ? 1.0f / d : 0.0f; }

// The line with the least sum of squared errors for the codes that another line gives the values; where the codes determine none, NaN.
// Values count from `base`, which keeps the sums small.
Line fitted(const Lanes (&x)[kBlock], const Lanes& base, const Lanes& d, const Lanes& m) {
  Lanes q1{}, q2{}, x1{}, x2{}, xq{};
  const Lanes inverse = each([&](int l) { return inverse_of(d.v[l]); });
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      const float q = code_of(value.v[l], m.v[l], inverse.v[l]), v = value.v[l] - base.v[l];
      q1.v[l] += q;
      q2.v[l] += q * q;
      x1.v[l] += v;
      x2.v[l] += v * v;
      xq.v[l] += v * q;
    }
  }
  Line line;
  for (int l = 0; l < kLanes; l++) {
    constexpr float n = float(kBlock);
    const float slope = (n * xq.v[l] - x1.v[l] * q1.v[l]) / (n * q2.v[l] - q1.v[l] * q1.v[l]);
    const float least = (x1.v[l] - slope * q1.v[l]) / n;
    line.d.v[l] = slope;
    line.m.v[l] = least + base.v[l];
    line.error.v[l] = x2.v[l] - slope * xq.v[l] - least * x1.v[l];
  }
  return line;
}

Lanes errors(const Lanes (&x)[kBlock], const Lanes& d, const Lanes& m) {
  Lanes sum{};
  const Lanes inverse = each([&](int l) { return inverse_of(d.v[l]); });
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      const float error = d.v[l] * code_of(value.v[l], m.v[l], inverse.v[l]) + m.v[l] - value.v[l];
      sum.v[l] += error * error;
    }
  }
  return sum;
}

Lanes rounded(const Lanes& x) {
  return each([&](int l) { return half_bits_to_float(float_to_half_bits(x.v[l])); });
}

// From the line through the least and the largest value, and from flatter and steeper ones: codes, and the line that fits them best. Values
// at the ends are few: a line that leaves them out may be nearer to all others. The best of them is fitted twice more, as its codes change,
// and what is left of it in fp16 counts against the first line.
constexpr float kSteps[] = {13.5f, 14.2f, 14.8f, 15.4f, 16.0f, 16.7f, 17.5f, 18.5f, 20.0f};

Line searched(const Lanes (&x)[kBlock]) {
  Lanes low = x[0], high = x[0];
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      low.v[l] = value.v[l] < low.v[l] ? value.v[l] : low.v[l];
      high.v[l] = value.v[l] > high.v[l] ? value.v[l] : high.v[l];
    }
  }
  Line best{each([&](int l) { return (high.v[l] - low.v[l]) / float(kTop); }), low, {}};
  Line line{rounded(best.d), rounded(low), {}};
  line.error = errors(x, line.d, line.m);
  best.error = each([](int) { return std::numeric_limits<float>::infinity(); });
  auto keep_better = [](Line& of, const Line& other) {
    for (int l = 0; l < kLanes; l++) {
      const bool better = other.error.v[l] < of.error.v[l] && other.d.v[l] > 0.0f;
      of.d.v[l] = better ? other.d.v[l] : of.d.v[l];
      of.m.v[l] = better ? other.m.v[l] : of.m.v[l];
      of.error.v[l] = better ? other.error.v[l] : of.error.v[l];
    }
  };
  for (const float steps : kSteps) {
    const Lanes d = each([&](int l) { return (high.v[l] - low.v[l]) / steps; });
    const Lanes m = each([&](int l) { return low.v[l] + (high.v[l] - low.v[l] - d.v[l] * float(kTop)) / 2.0f; });
    keep_better(best, fitted(x, low, d, m));
  }
  for (int again = 0; again < 2; again++) keep_better(best, fitted(x, low, best.d, best.m));
  best.d = rounded(best.d), best.m = rounded(best.m);
  best.error = errors(x, best.d, best.m);
  keep_better(line, best);
  return line;
}

void pack_block_q4(const Lanes (&x)[kBlock], int count, uint8_t* block) {
  const Line line = searched(x);
  for (int l = 0; l < count; l++) {
    bool fits = true;
    for (const Lanes& value : x) fits = fits && value.v[l] >= -kLargest && value.v[l] <= kLargest;
    const uint16_t d = fits ? float_to_half_bits(line.d.v[l]) : 0x7e00, m = fits ? float_to_half_bits(line.m.v[l]) : 0;
    const float inverse = inverse_of(line.d.v[l]);
    for (int i = 0; i < kBlock / 2 && fits; i++) {
      const int lower = int(code_of(x[i].v[l], line.m.v[l], inverse)), upper = int(code_of(x[16 + i].v[l], line.m.v[l], inverse));
      block[64 * (i / 4) + 4 * l + i % 4] = uint8_t(lower | upper << 4);
    }
    std::memcpy(block + 256 + 2 * l, &d, 2);
    std::memcpy(block + 288 + 2 * l, &m, 2);
  }
}

}  // namespace

size_t float_tile_bytes(Format format, int cols) { return size_t(cols) * kLanes * element_bytes(format); }

void pack_tile_floats(Format format, const uint8_t* const* rows, int count, int cols, uint8_t* tile) {
  const size_t size = element_bytes(format);
  for (int lane = 0; lane < count; lane++)
    for (int k = 0; k < cols; k++) std::memcpy(tile + size * place(format, k, lane), rows[lane] + size * size_t(k), size);
}

void unpack_float_row(const Packed& w, int row, float* out) {
  const uint8_t* tile = w.tile(row / kLanes);
  const size_t size = element_bytes(w.format);
  for (int k = 0; k < w.cols; k++) {
    uint32_t bits = 0;
    std::memcpy(&bits, tile + size * place(w.format, k, row % kLanes), size);
    out[k] =
        w.format == Format::f16 ? half_bits_to_float(uint16_t(bits)) : std::bit_cast<float>(w.format == Format::bf16 ? bits << 16 : bits);
  }
}

void pack_tile_to_q4(DecodeBlock decode, const uint8_t* const* rows, int count, int blocks, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, tile += 320) {
    Lanes x[kBlock] = {};
    for (int lane = 0; lane < count; lane++) {
      float values[kBlock];
      decode(rows[lane], b, values);
      for (int i = 0; i < kBlock; i++) x[i].v[lane] = values[i];
    }
    pack_block_q4(x, count, tile);
  }
}

}  // namespace quintet
