// AMX: one instruction multiplies 16 rows of a block with its 16 columns. What the weights are in memory stays as for the others: a block of
// q8 is a tile as it lies, the other formats are unpacked into such blocks once for all rows of a call. Sums are scaled as AVX-512 scales
// them, 16 rows in 16 registers. docs/decisions/0051-amx.md has what each instruction costs.
#include <utility>
#include "kernels/codes_avx512.h"
#include "kernels/products512.h"
#include "kernels/tiles.h"

namespace quintet {
namespace {

constexpr int kPanel = 16;  // rows side by side
constexpr int kLeast = 12;  // rows from which a panel is faster than AVX-512-VNNI (0051)
constexpr int kAhead = 4;   // products that are under way while one's sums are scaled: neither waits for the other
constexpr int kKept = 8;    // sums in memory

struct alignas(64) Line {
  uint8_t bytes[64];
};
struct alignas(64) Own {  // a thread's; looked up once a call, as that is a call of its own and ends what registers hold
  TileSums sums[kKept];
  std::vector<Line> weights;  // of a tile of 16 columns, as blocks of signed bytes
  bool configured = false;
};
thread_local Own own;

// Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
void configure() {
  TileConfig config;
  for (int t = 0; t < 8; t++) {
    config.rows[t] = t < 6 ? 16 : 8;
    config.row_bytes[t] = t == 4 || t == 5 ? 32 : 64;
  }
  tile_configure(config);
}

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
      __attribute__((always_inline)) { (op.template operator()<r>(), ...); }(std::make_integer_sequence<int, kPanel>());
}

// Where the 16 rows of panel `i` of m begin; the last one's are some of the one before, too, if m is no multiple of 16.
inline int first_row(int i, int m) { return std::min(kPanel * i, m - kPanel); }

// The products of a tile of weights with all panels, one after the other: put(i) does the next one, into sums[i % kKept].
template <int scales> struct Products {
  TileSums* sums;
  const uint8_t *x, *weights;
  size_t stride;
  int m, panels, parts;  // parts: blocks times scales
  const uint8_t* rows;   // of the next product: its panel's first
  int panel = 0, part = 0;

  template <int Sums, int A, int B> void multiply(TileSums& to) const {
    tile_load_rows<A>(rows + 32 * (part / scales), stride);
    tile_load_block<B>(*reinterpret_cast<const TileBytes*>(weights + sizeof(TileBytes) * size_t(part)));
    tile_zero<Sums>();
    tile_dot<Sums, A, B>();
    tile_store<Sums>(to);
  }
  void put(int i) {
    if (panel == panels) return;
    TileSums& to = sums[i % kKept];
    switch (i % 4) {
      case 0: multiply<0, 4, 6>(to); break;
      case 1: multiply<1, 5, 7>(to); break;
      case 2: multiply<2, 4, 6>(to); break;
      default: multiply<3, 5, 7>(to);
    }
    if (++part < parts) return;
    part = 0;
    rows = x + size_t(first_row(++panel, m)) * stride;
  }
};

struct Scales {
  const uint8_t* at;
  size_t step;  // from block to block
};

template <int scales, bool minima> void multiply_all(const Packed& w, const uint8_t* tile, const Scales& from, Products<scales> next,
                                                     float* y, size_t y_stride, bool accumulate) {
  const size_t blocks = size_t(w.blocks()), lines = (w.tile_bytes / 64 + blocks - 1) / blocks, step = next.stride / sizeof(float);
  const int m = next.m, panels = next.panels;
  for (int i = 0; i < kAhead; i++) next.put(i);
  for (int panel = 0, i = 0; panel < panels; panel++) {
    const int first = first_row(panel, m);
    const float* scale = reinterpret_cast<const float*>(next.x + size_t(first) * next.stride + w.cols);
    __m512 f[kPanel];
    each_row([&]<int r>() __attribute__((always_inline)) { f[r] = _mm512_setzero_ps(); });
    // So that 16 rows are as many operands in memory, without 16 registers for their places.
    const float* four[4] = {scale, scale + 4 * step, scale + 8 * step, scale + 12 * step};
    for (size_t b = 0; b < blocks; b++, four[0]++, four[1]++, four[2]++, four[3]++) {
      if (panel == panels - 1)
        for (size_t line = b * lines; line < (b + 1) * lines; line++) fetch(tile + w.tile_bytes + 64 * line);
#pragma GCC unroll 2
      for (int part = 0; part < scales; part++, i++) {
        next.put(i + kAhead);
        const uint16_t* s = reinterpret_cast<const uint16_t*>(from.at + from.step * b) + 16 * part;
        const __m512 d = V::load_half(s), least = minima ? V::load_half(s + 16 * scales) : _mm512_setzero_ps();
        const TileSums& sums = next.sums[i % kKept];
        each_row([&]<int r>() __attribute__((always_inline)) {
          const float* of = four[r / 4] + (r % 4) * step;
          const __m512 product = _mm512_cvtepi32_ps(_mm512_load_si512(sums[r])), x_scale = _mm512_set1_ps(of[0]);
          f[r] = _mm512_fmadd_ps(product, _mm512_mul_ps(d, x_scale), f[r]);
          if (minima && scales == 1) f[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(of[blocks]), f[r]);
          if (minima && scales == 2) {
            Sums of_x;
            std::memcpy(&of_x, of + 2 * blocks, sizeof of_x);
            f[r] = _mm512_fmadd_ps(_mm512_set1_ps(float(of_x.half(part))), _mm512_mul_ps(least, x_scale), f[r]);
          }
        });
      }
    }
    const int seen = kPanel * panel - first;  // rows that the panel before has done
    each_row([&]<int r>() __attribute__((always_inline)) {
      if (r < seen) return;
      float* out = y + size_t(first + r) * y_stride;
      V::store(out, accumulate ? V::add(V::load(out), f[r]) : f[r]);
    });
  }
}

template <Format F> void all_panels(Own& mine, const Packed& w, const uint8_t* tile, const uint8_t* x, size_t x_stride, int m, float* y,
                                    size_t y_stride, bool accumulate) {
  constexpr Coding c = coding(F);
  const uint8_t* weights = F == Format::q8 ? tile : unpack<F>(w, tile, mine.weights);
  const size_t step = c.apart ? 32 : c.block();
  const Scales from = {tile + (c.apart ? c.block() * size_t(w.blocks()) : c.scale_at()), step};
  const Products<c.scales> products = {mine.sums, x, weights, x_stride, m, (m + kPanel - 1) / kPanel, w.blocks() * c.scales, x};
  multiply_all<c.scales, c.minima>(w, tile, from, products, y, y_stride, accumulate);
}

}  // namespace

void gemm_tile_amx(const Packed& w, int tile, const uint8_t* x, size_t x_stride, int m, float* y, size_t y_stride, bool accumulate) {
  const int rest = m % kPanel, panels_rows = m < kPanel ? 0 : rest < kLeast ? m - rest : m;
  if (is_float(w.format) || !panels_rows) return gemm_tile_avx512(w, tile, x, x_stride, m, y, y_stride, accumulate);
  Own& mine = own;
  if (!mine.configured) configure();
  mine.configured = true;
  auto panels = [&]<Format F>() { all_panels<F>(mine, w, w.tile(tile), x, x_stride, panels_rows, y, y_stride, accumulate); };
  if (w.format == Format::q4) panels.template operator()<Format::q4>();
  else if (w.format == Format::q8) panels.template operator()<Format::q8>();
  else for_coded(w.format, panels);
  const size_t done = size_t(panels_rows);
  if (panels_rows < m) gemm_tile_avx512(w, tile, x + done * x_stride, x_stride, m - panels_rows, y + done * y_stride, y_stride, accumulate);
}

void release_tiles() {
  if (own.configured) tile_release();
  own.configured = false;
}

}  // namespace quintet
