// GGUF tensor types, read block by block (ggml.h), written as tiles.
//
// Non-finite input is never undefined behaviour and never hidden. A scale or minimum that is kept keeps its infinity or NaN, and one
// that fp16 cannot hold becomes infinity. A block that is quantised here and holds a NaN, an infinity or a magnitude above 127 * 65504
// gets d = NaN, so all 32 values unpack to NaN.
// A Q8_0 value of -128, which no quantiser writes, is packed as -127: kernels rely on the symmetric range.
#include "kernels/pack.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include "kernels/ggml_iq.h"
#include "kernels/ggml_k.h"
#include "kernels/half.h"
#include "kernels/pack_codes.h"
#include "kernels/pack_floats.h"

namespace quintet {
namespace {

constexpr int kLanes = 16;
constexpr size_t kQ4Bytes = 320, kQ8Bytes = 512;

// The smallest fp16 d with magnitude / d <= 127: chosen before the values are quantised, so that they are rounded against the scale
// that will be used.
uint16_t scale_for(float magnitude) {
  if (!(magnitude <= 127.0f * 65504.0f)) return 0x7e00;  // NaN
  const uint16_t d = float_to_half_bits(magnitude / 127.0f);
  return uint16_t(half_bits_to_float(d) * 127.0f < magnitude ? d + 1 : d);
}

void quantize(const float* x, Q8Block& out) {
  int32_t largest = 0;  // magnitudes compared as bits: the order of floats, with NaN above infinity
  for (int i = 0; i < kBlock; i++) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  out.d = scale_for(std::bit_cast<float>(largest));
  const float d = half_bits_to_float(out.d);
  if (!(d > 0.0f)) {
    std::memset(out.q, 0, sizeof out.q);
    return;
  }
  // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
  for (int i = 0; i < kBlock; i++) out.q[i] = int8_t(std::bit_cast<int32_t>(x[i] / d + 0x1.8p23f) & 0xff);
}

template <class T> constexpr bool is_q4 = requires(Q4Block b) { T::load(nullptr, 0, b); };
template <class T> constexpr bool keeps_q8 = requires(Q8Block b) { T::load(nullptr, 0, b); };
template <class T> constexpr Format format_of() {
  if constexpr (is_q4<T>) return Format::q4;
  else if constexpr (requires { T::packed; }) return T::packed;
  else return Format::q8;
}
template <class T> constexpr Format kept_as = Format::f32;
template <> constexpr Format kept_as<F16> = Format::f16;
template <> constexpr Format kept_as<BF16> = Format::bf16;

// `rows`: the `count` source rows that are the lanes of this tile.
template <class T> void pack_tile_q4(const uint8_t* const* rows, int count, int blocks, uint8_t* tile) {
  for (int b = 0; b < blocks; b++, tile += kQ4Bytes) {
    for (int lane = 0; lane < count; lane++) {
      Q4Block block;
      T::load(rows[lane], b, block);
      for (int g = 0; g < 4; g++) std::memcpy(tile + 64 * g + 4 * lane, block.q + 4 * g, 4);
      std::memcpy(tile + 256 + 2 * lane, &block.d, 2);
      std::memcpy(tile + 288 + 2 * lane, &block.m, 2);
    }
  }
}

template <class T> void load_q8(const uint8_t* row, int b, Q8Block& block) {
  if constexpr (keeps_q8<T>) {
    T::load(row, b, block);
  } else if constexpr (has_integers<T>) {
    const Integers v = T::read(row, b);
    std::memcpy(block.q, v.q, sizeof block.q);
    block.d = float_to_half_bits(v.d[0]);
  } else {
    float values[kBlock];
    decode<T>(row, b, values);
    quantize(values, block);
  }
}

template <class T> void pack_tile_q8(const uint8_t* const* rows, int count, int blocks, uint8_t* tile) {
  uint8_t* scales = tile + kQ8Bytes * size_t(blocks);
  for (int b = 0; b < blocks; b++, tile += kQ8Bytes, scales += 2 * kLanes) {
    for (int lane = 0; lane < count; lane++) {
      Q8Block block;
      load_q8<T>(rows[lane], b, block);
      for (int g = 0; g < 8; g++) std::memcpy(tile + 64 * g + 4 * lane, block.q + 4 * g, 4);
      std::memcpy(scales + 2 * lane, &block.d, 2);
    }
  }
}

// Only the float types may have a last block that is not whole; it is read through a copy, never past the row's end.
template <class T> void dequantize(const uint8_t* row, int cols, float* out) {
  const int whole = cols / kBlock, rest = cols % kBlock;
  for (int b = 0; b < whole; b++) decode<T>(row, b, out + size_t(b) * kBlock);
  if constexpr (T::values == 1) {
    uint8_t padded[kBlock * T::bytes] = {};
    float values[kBlock];
    std::memcpy(padded, row + size_t(whole) * sizeof padded, size_t(rest) * T::bytes);
    T::decode(padded, 0, values);
    std::copy_n(values, rest, out + size_t(whole) * kBlock);
  }
}

struct Type {
  const char* name;
  int values, bytes;
  Format format;
  void (*pack_tile)(const uint8_t* const* rows, int count, int blocks, uint8_t* tile);
  void (*dequantize)(const uint8_t* row, int cols, float* out);
  DecodeBlock decode;
  Format kept = Format::q8;  // of a float type, the format that holds its values as they are
  bool is_float_type() const { return values == 1; }
  Format packed_as(Floats floats) const {
    const bool wide = format == Format::q8 || format == Format::q8h || format == Format::q6 || format == Format::q5;
    if (floats == Floats::least) return wide ? Format::q4 : format;
    return !is_float_type() || floats == Floats::q8 ? format : floats == Floats::q4 ? Format::q4 : kept;
  }
  size_t row_bytes(int cols) const { return size_t(cols / values) * size_t(bytes); }
};

template <class T> constexpr Type type_of(const char* name) {
  constexpr Format format = format_of<T>();
  if constexpr (T::values == 1) return {name, T::values, T::bytes, Format::q8, pack_tile_q8<T>, dequantize<T>, decode<T>, kept_as<T>};
  else if constexpr (format == Format::q4) return {name, T::values, T::bytes, format, pack_tile_q4<T>, dequantize<T>, decode<T>};
  else if constexpr (format == Format::q8) return {name, T::values, T::bytes, format, pack_tile_q8<T>, dequantize<T>, decode<T>};
  else return {name, T::values, T::bytes, format, pack_tile_codes<T>, dequantize<T>, decode<T>};
}

constexpr Type kTypes[] = {
    type_of<F32>("F32"),         type_of<F16>("F16"),       type_of<BF16>("BF16"),   type_of<Q4_0>("Q4_0"),       type_of<Q4_1>("Q4_1"),
    type_of<Q5_0>("Q5_0"),       type_of<Q5_1>("Q5_1"),     type_of<Q8_0>("Q8_0"),   type_of<Q2_K>("Q2_K"),       type_of<Q3_K>("Q3_K"),
    type_of<Q4_K>("Q4_K"),       type_of<Q5_K>("Q5_K"),     type_of<Q6_K>("Q6_K"),   type_of<IQ1_S>("IQ1_S"),     type_of<IQ1_M>("IQ1_M"),
    type_of<IQ2_XXS>("IQ2_XXS"), type_of<IQ2_XS>("IQ2_XS"), type_of<IQ2_S>("IQ2_S"), type_of<IQ3_XXS>("IQ3_XXS"), type_of<IQ3_S>("IQ3_S"),
    type_of<IQ4_NL>("IQ4_NL"),   type_of<IQ4_XS>("IQ4_XS"), type_of<TQ1_0>("TQ1_0"), type_of<TQ2_0>("TQ2_0"),     type_of<MXFP4>("MXFP4"),
    type_of<NVFP4>("NVFP4"),     type_of<Q1_0>("Q1_0"),
};

const Type& find_type(const std::string& name, int cols) {
  for (const Type& type : kTypes) {
    if (name != type.name) continue;
    if (cols < 1 || cols % type.values != 0)
      throw std::invalid_argument("columns of a " + name + " tensor must be a positive multiple of " + std::to_string(type.values) +
                                  ", got " + std::to_string(cols));
    return type;
  }
  std::string names;
  for (const std::string& known : tensor_types()) names += " " + known;
  throw std::invalid_argument("tensor type must be one of" + names + ", got '" + name + "'");
}

void require(bool holds, const std::string& rule) {
  if (!holds) throw std::invalid_argument(rule);
}

}  // namespace

std::vector<std::string> tensor_types() {
  std::vector<std::string> names;
  for (const Type& type : kTypes) names.emplace_back(type.name);
  return names;
}

size_t raw_bytes(const std::string& type, int rows, int cols) {
  const Type& t = find_type(type, cols);
  require(rows >= 1, "rows must be at least 1, got " + std::to_string(rows));
  return t.row_bytes(cols) * size_t(rows);
}

Packed packed_shape(const std::string& type, int rows, int cols, Floats floats) {
  raw_bytes(type, rows, cols);  // checks the shape
  require(cols % kBlock == 0, "columns of a packed matrix must be a multiple of 32, got " + std::to_string(cols));
  Packed out{find_type(type, cols).packed_as(floats), rows, cols, 0, nullptr};
  const size_t blocks = size_t(out.blocks());
  if (is_float(out.format)) out.tile_bytes = float_tile_bytes(out.format, cols);
  else if (is_coded(out.format)) out.tile_bytes = coding(out.format).tile(blocks);
  else out.tile_bytes = out.format == Format::q4 ? blocks * kQ4Bytes : (blocks * (kQ8Bytes + 2 * kLanes) + 63) / 64 * 64;
  return out;
}

Packed pack_empty(const std::string& type, int rows, int cols, Floats floats, Arena& arena) {
  Packed out = packed_shape(type, rows, cols, floats);
  out.data = arena.take(out.bytes());
  return out;
}

void pack_tiles(Packed& out, const std::string& type, const uint8_t* raw, const std::vector<int>& row_order, int tile0, int tile1) {
  const Type& t = find_type(type, out.cols);
  require(t.format == out.format || out.format == t.packed_as(Floats::least) || (t.is_float_type() && out.format == t.kept),
          "type " + type + " does not have the format of the packed matrix");
  require(row_order.empty() || row_order.size() == size_t(out.rows), "row_order must name every row");
  require(0 <= tile0 && tile0 <= tile1 && tile1 <= out.tiles(), "tiles must lie within the packed matrix");
  for (int tile = tile0; tile < tile1; tile++) {
    const int first = tile * kLanes, count = std::min(kLanes, out.rows - first);
    const uint8_t* rows[kLanes];
    for (int lane = 0; lane < count; lane++) {
      const int source = row_order.empty() ? first + lane : row_order[size_t(first + lane)];
      require(0 <= source && source < out.rows, "row_order must hold row numbers, got " + std::to_string(source));
      rows[lane] = raw + t.row_bytes(out.cols) * size_t(source);
    }
    uint8_t* to = out.data + out.tile_bytes * size_t(tile);
    if (is_float(out.format)) pack_tile_floats(out.format, rows, count, out.cols, to);
    else if (t.format == out.format) t.pack_tile(rows, count, out.blocks(), to);
    else pack_tile_to_q4(t.decode, rows, count, out.blocks(), to);
  }
}

void dequantize_row(const std::string& type, const uint8_t* raw, int row, int cols, float* out) {
  const Type& t = find_type(type, cols);
  t.dequantize(raw + t.row_bytes(cols) * size_t(row), cols, out);
}

void unpack_row(const Packed& w, int row, float* out) {
  if (is_float(w.format)) return unpack_float_row(w, row, out);
  const uint8_t* tile = w.tile(row / kLanes);
  const int lane = row % kLanes;
  if (is_coded(w.format)) return unpack_codes(w, tile, lane, out);
  const uint8_t* scales = tile + kQ8Bytes * size_t(w.blocks());
  for (int b = 0; b < w.blocks(); b++, out += kBlock) {
    Q4Block q4;
    Q8Block q8;
    if (w.format == Format::q4) {
      const uint8_t* p = tile + kQ4Bytes * size_t(b);
      for (int g = 0; g < 4; g++) std::memcpy(q4.q + 4 * g, p + 64 * g + 4 * lane, 4);
      std::memcpy(&q4.d, p + 256 + 2 * lane, 2);
      std::memcpy(&q4.m, p + 288 + 2 * lane, 2);
      scale_codes(nibbles(q4.q), 0, half_bits_to_float(q4.d), half_bits_to_float(q4.m), out);
    } else {
      const uint8_t* p = tile + kQ8Bytes * size_t(b);
      for (int g = 0; g < 8; g++) std::memcpy(q8.q + 4 * g, p + 64 * g + 4 * lane, 4);
      std::memcpy(&q8.d, scales + size_t(2 * kLanes * b + 2 * lane), 2);
      const float d = half_bits_to_float(q8.d);
      for (int i = 0; i < kBlock; i++) out[i] = d * float(q8.q[i]);
    }
  }
}

float half_to_float(uint16_t h) { return half_bits_to_float(h); }
uint16_t float_to_half(float f) { return float_to_half_bits(f); }

}  // namespace quintet
