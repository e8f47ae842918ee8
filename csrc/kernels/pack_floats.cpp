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

// value = d * q + m
struct Line {
  Lanes d, m;
};

// Rounded to nearest even by adding 1.5 * 2^23, between 0 and 15. An inverse that is not finite comes with x = m.
inline float code_of(float x, float m, float inverse) {
  const float q = (x - m) * inverse + 0x1.8p23f - 0x1.8p23f;
  return q > float(kTop) ? float(kTop) : q > 0.0f ? q : 0.0f;
}

inline float inverse_of(float d) { return d > 0.0f ? 1.0f / d : 0.0f; }

// The line with the least sum of squared errors for the codes that `codes` gives the values, where one is determined; else `codes` itself.
Line fitted(const Lanes (&x)[kBlock], const Line& codes) {
  Lanes q1{}, q2{}, x1{}, xq{};
  const Lanes inverse = each([&](int l) { return inverse_of(codes.d.v[l]); });
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      const float q = code_of(value.v[l], codes.m.v[l], inverse.v[l]);
      q1.v[l] += q;
      q2.v[l] += q * q;
      x1.v[l] += value.v[l];
      xq.v[l] += value.v[l] * q;
    }
  }
  Line line;
  for (int l = 0; l < kLanes; l++) {
    const float n = float(kBlock), determinant = n * q2.v[l] - q1.v[l] * q1.v[l];  // exact: integers below 2^24
    const float d = (n * xq.v[l] - x1.v[l] * q1.v[l]) / determinant;
    const bool sound = determinant > 0.0f && d > 0.0f;
    line.d.v[l] = sound ? d : codes.d.v[l];
    line.m.v[l] = sound ? (x1.v[l] - d * q1.v[l]) / n : codes.m.v[l];
  }
  return line;
}

// What the file will hold: fp16, and so what the codes are chosen for.
Line stored(const Line& line) {
  return {each([&](int l) { return half_bits_to_float(float_to_half_bits(line.d.v[l])); }),
          each([&](int l) { return half_bits_to_float(float_to_half_bits(line.m.v[l])); })};
}

Lanes errors(const Lanes (&x)[kBlock], const Line& line) {
  Lanes sum{};
  const Lanes inverse = each([&](int l) { return inverse_of(line.d.v[l]); });
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      const float q = code_of(value.v[l], line.m.v[l], inverse.v[l]);
      const float error = line.d.v[l] * q + line.m.v[l] - value.v[l];
      sum.v[l] += error * error;
    }
  }
  return sum;
}

// From the line through the least and the largest value, and from flatter and steeper ones: codes, the line that fits them best, and once more.
// Values at the ends are few: a line that leaves them out may be nearer to all others.
constexpr float kSteps[] = {15.0f, 13.6f, 14.0f, 14.4f, 14.7f, 15.3f, 15.6f, 16.0f, 16.5f, 17.0f, 17.6f, 18.3f, 19.0f, 20.0f, 21.0f};

Line searched(const Lanes (&x)[kBlock]) {
  Lanes low = x[0], high = x[0];
  for (const Lanes& value : x) {
    for (int l = 0; l < kLanes; l++) {
      low.v[l] = value.v[l] < low.v[l] ? value.v[l] : low.v[l];
      high.v[l] = value.v[l] > high.v[l] ? value.v[l] : high.v[l];
    }
  }
  Line best;
  Lanes least = each([](int) { return std::numeric_limits<float>::infinity(); });
  for (const float steps : kSteps) {
    Line line;
    for (int l = 0; l < kLanes; l++) {
      const float d = (high.v[l] - low.v[l]) / steps;
      line.d.v[l] = d;
      line.m.v[l] = low.v[l] + (high.v[l] - low.v[l] - d * float(kTop)) / 2.0f;
    }
    if (steps != kSteps[0]) line = fitted(x, fitted(x, line));
    line = stored(line);
    const Lanes error = errors(x, line);
    for (int l = 0; l < kLanes; l++) {
      const bool better = error.v[l] < least.v[l];
      best.d.v[l] = better ? line.d.v[l] : best.d.v[l];
      best.m.v[l] = better ? line.m.v[l] : best.m.v[l];
      least.v[l] = better ? error.v[l] : least.v[l];
    }
  }
  return best;
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
    out[k] = w.format == Format::f16 ? half_bits_to_float(uint16_t(bits)) : std::bit_cast<float>(w.format == Format::bf16 ? bits << 16 : bits);
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
