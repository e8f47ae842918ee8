// AMX: one instruction multiplies 16 rows of a block with its 16 columns. What the weights are in memory stays as for the others: a block
// of q8 is a tile as it lies, the other formats are unpacked into such blocks once for all rows of a call. Sums are scaled as AVX-512
// scales them, 16 rows in 16 registers. docs/decisions/0051-amx.md has what each instruction costs.
#include <utility>
#include "kernels/codes_avx512.h"
#include "kernels/prefetch.h"
#include "kernels/products512.h"
#include "kernels/tiles.h"

namespace quintet {
namespace {

constexpr int kAhead = 3;  // products that are begun while one's sums are scaled: neither waits for the other
constexpr int kKept = 4;   // sums in memory
constexpr int kSteps = 4;  // in which a product is begun
constexpr int kEvery = 3;  // one before every third row that is scaled: among operations that multiply they find room, together they wait

struct alignas(64) Own {  // a thread's; looked up once a call, as that is a call of its own and ends what registers hold
  TileSums sums[kKept];
  std::vector<Line> weights;  // of a tile of 16 columns, as blocks of signed bytes
  TileShapes shapes = TileShapes::none;
};
thread_local Own own;

// Blocks of the products: a block of weights, or of formats with a scale for each 16 values two, in which the other 16 are 0. So one shape
// of tile serves all formats; how deep a tile is costs nothing.
template <Format F> const uint8_t* unpack(const Packed& w, const uint8_t* tile, std::vector<Line>& lines) {
  constexpr Coding c = coding(F);
  lines.resize(std::max(lines.size(), size_t(8 * c.scales * w.blocks())));
  Line* to = lines.data();
  const __m512i table = table_of<F>(), too_large = _mm512_set1_epi8(char(kTooLarge<F>));
  for (int b = 0; b < w.blocks(); b++, tile += c.block())
    for (int part = 0; part < c.scales; part++, to += 8)
#pragma GCC unroll 8
      for (int g = 0; g < 8; g++) {
        const bool zero = c.scales == 2 && g / 4 != part;
        const __m512i v = zero ? _mm512_setzero_si512() : _mm512_sub_epi8(codes_of<F>(tile, g / 4, g % 4, table), too_large);
        _mm512_store_si512(to[g].bytes, v);
      }
  return lines.data()->bytes;
}

// op<r>() for each row of a panel. Not a loop: its sums stay in registers only if every place of theirs is known from the start.
template <class Op> [[gnu::always_inline]] inline void each_row(Op op) {
  [&]<int... r>(std::integer_sequence<int, r...>)
      __attribute__((always_inline)) { (op.template operator()<r>(), ...); }(std::make_integer_sequence<int, kPanelRows>());
}

// The products of a tile of weights with all panels, one after the other, a block after a block. The CPU renames tiles as it does
// registers, so one of activations and one of weights are enough for products that overlap. Sums have two in turns: a product's are stored
// while the next but one begins, as stores that wait for their sums keep others from being issued.
template <int scales> struct Products {
  TileSums* sums;
  const PanelBlock* rows;  // of the next product
  const uint8_t* weights;
  int parts, left;  // blocks times scales; products that are not begun
  int part = 0;

  // begin<T, More>() for the i-th, whose sums are in tile T; without More there is none, and only others' sums are stored.
  template <class Begin> [[gnu::always_inline]] void next(int i, Begin begin) {
    if (left && i % 2 == 0) begin.template operator()<0, true>();
    else if (left) begin.template operator()<3, true>();
    else if (i % 2 == 0) begin.template operator()<0, false>();
    else begin.template operator()<3, false>();
  }

  // To begin the i-th, in the order of the steps. The third stores the sums of the next but one before it, in sums[its number % kKept].
  template <int Step, int T, bool More> [[gnu::always_inline]] void step(int i) {
    if constexpr (Step == 0 && More) tile_load_rows<1>(*rows);
    if constexpr (Step == 1 && More) tile_load_block<2>(*reinterpret_cast<const TileBytes*>(weights + sizeof(TileBytes) * size_t(part)));
    if constexpr (Step == 2) tile_store<T>(sums[(i + kKept - 2) % kKept]);
    if constexpr (Step == 3 && More) {
      tile_zero<T>();
      tile_dot<T, 1, 2>();
      left--;
      if (scales == 1 || part % 2) rows++;
      if (++part == parts) part = 0;
    }
  }
};

struct Scales {
  const uint8_t* at;
  size_t step;  // from block to block
};

// A sum as a float, by an addition to the bits of 2^23 * 1.5, which makes them those of 2^23 * 1.5 + sum: a conversion takes the one unit
// that multiplies while tiles are in use, additions have another. Exact, as sums are below 2^22.
inline __m512 to_float(__m512i sum) {
  const __m512 shifted = _mm512_castsi512_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(0x4b400000)));
  return _mm512_sub_ps(shifted, _mm512_set1_ps(12582912.0f));
}

template <int scales, bool minima> void multiply_all(const Packed& w, const uint8_t* tile, const Scales& from, Products<scales> products,
                                                     int m, float* y, size_t y_stride, bool accumulate) {
  const size_t blocks = size_t(w.blocks());
  // The next tile's lines for each block of this one: one in each of the last panels, more if these are fewer. All in the last panel would
  // be as many as memory gives a thread at most.
  const int lines = int((w.tile_bytes / 64 + blocks - 1) / blocks), panels = (m + kPanelRows - 1) / kPanelRows;
  const int at_once = (lines + panels - 1) / panels, fetching = (lines + at_once - 1) / at_once;
  const PanelBlock* x = products.rows;
  const uint8_t* ahead = tile + w.tile_bytes;
  for (int i = 0; i < kAhead; i++)
    products.next(i, [&]<int T, bool More>() __attribute__((always_inline)) {
      each_row([&]<int r>() __attribute__((always_inline)) {
        if constexpr (r < kSteps) products.template step<r, T, More>(i);
      });
    });
  int i = 0;
  const auto panel = [&]<bool Fetch>(int first) __attribute__((always_inline)) {
    __m512 f[kPanelRows];
    each_row([&]<int r>() __attribute__((always_inline)) { f[r] = _mm512_setzero_ps(); });
    const float* result = y + size_t(first) * y_stride;
    const uint8_t* scale = from.at;
    for (size_t b = 0; b < blocks; b++, x++, scale += from.step) {
      if (b < kPanelRows) {  // a result's line a block: all at once would wait for room among the lines on their way
        fetch_near(result);
        result += y_stride;
      }
      if constexpr (Fetch)
        for (int line = 0; line < at_once; line++, ahead += 64) fetch(ahead);
#pragma GCC unroll 2
      for (int part = 0; part < scales; part++, i++) {
        const uint16_t* s = reinterpret_cast<const uint16_t*>(scale) + 16 * part;
        const __m512 d = V::load_half(s), least = minima ? V::load_half(s + 16 * scales) : _mm512_setzero_ps();
        const TileSums& sums = products.sums[i % kKept];
        const auto scale_row = [&]<int r>() __attribute__((always_inline)) {
          const __m512 x_scale = _mm512_set1_ps(x->scale[r]);
          f[r] = _mm512_fmadd_ps(to_float(_mm512_load_si512(sums[r])), _mm512_mul_ps(d, x_scale), f[r]);
          if (minima && scales == 1) f[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(x->minimum[r]), f[r]);
          if (minima && scales == 2)
            f[r] = _mm512_fmadd_ps(_mm512_set1_ps(float(x->sum[r].half(part))), _mm512_mul_ps(least, x_scale), f[r]);
        };
        products.next(i + kAhead, [&]<int T, bool More>() __attribute__((always_inline)) {
          each_row([&]<int r>() __attribute__((always_inline)) {
            if constexpr (r % kEvery == 0 && r / kEvery < kSteps) products.template step<r / kEvery, T, More>(i + kAhead);
            scale_row.template operator()<r>();
          });
        });
      }
    }
    each_row([&]<int r>() __attribute__((always_inline)) {
      if (first + r >= m) return;
      float* out = y + size_t(first + r) * y_stride;
      V::store(out, accumulate ? V::add(V::load(out), f[r]) : f[r]);
    });
  };
  int first = 0;
  for (; first < kPanelRows * (panels - fetching); first += kPanelRows) panel.template operator()<false>(first);
  for (; first < m; first += kPanelRows) panel.template operator()<true>(first);
}

template <Format F> void all_panels(Own& mine, const Packed& w, const uint8_t* tile, const uint8_t* panels, int m, float* y,
                                    size_t y_stride, bool accumulate) {
  constexpr Coding c = coding(F);
  const uint8_t* weights = F == Format::q8 ? tile : unpack<F>(w, tile, mine.weights);
  const size_t step = c.apart ? 32 : c.block();
  const Scales from = {tile + (c.apart ? c.block() * size_t(w.blocks()) : c.scale_at()), step};
  const int parts = w.blocks() * c.scales, count = (m + kPanelRows - 1) / kPanelRows;
  const Products<c.scales> products = {mine.sums, reinterpret_cast<const PanelBlock*>(panels), weights, parts, count * parts};
  multiply_all<c.scales, c.minima>(w, tile, from, products, m, y, y_stride, accumulate);
}

}  // namespace

void gemm_panels_amx(const Packed& w, int tile, const uint8_t* panels, int m, float* y, size_t y_stride, bool accumulate) {
  configure_tiles(TileShapes::product);
  Own& mine = own;
  auto all = [&]<Format F>() { all_panels<F>(mine, w, w.tile(tile), panels, m, y, y_stride, accumulate); };
  if (w.format == Format::q4) all.template operator()<Format::q4>();
  else if (w.format == Format::q8) all.template operator()<Format::q8>();
  else for_coded(w.format, all);
}

// Of products tiles 0 and 3 are sums, 1 activations, 2 weights; attention has eight whole ones.
void configure_tiles(TileShapes shapes) {
  if (own.shapes == shapes) return;
  own.shapes = shapes;
  TileConfig config;
  for (int t = 0; t < 8; t++) {
    config.rows[t] = shapes == TileShapes::product && t == 2 ? 8 : 16;
    config.row_bytes[t] = shapes == TileShapes::product && t == 1 ? 32 : 64;
  }
  tile_configure(config);
}

void release_tiles() {
  if (own.shapes != TileShapes::none) tile_release();
  own.shapes = TileShapes::none;
}

}  // namespace quintet
