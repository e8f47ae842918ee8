// Attention over keys and values of 8 bits (attend_bytes.h) with AMX, for 16 rows and more: the same integers, so the same bits. A page's
// keys of 64 dimensions are a tile as they lie; of values, the pages of a block are put together first, so that a tile has 64 tokens.
// Queries and weights are the other operand, upper and lower parts one after the other, with sums of their own.
//
//   for each 16 rows: for each page: upper * keys, lower * keys             -> scores
//                     softmax of each row, as without AMX                   -> weights, while the scores are in the second-level cache
//   for each block: its values together; for each 16 rows: for each 16 dimensions: upper * values, lower * values -> out
//
// What is left of 16 rows begins earlier: some of its rows were done before. A tile whose rows straddle lines takes six times as long to
// load, so all that becomes one begins a line.
#include "kernels/vec_avx512.h"
#include <vector>
#include "kernels/attend_bytes.h"
#include "kernels/products512.h"
#include "kernels/tiles.h"

namespace quintet {
namespace {

constexpr int kTileRows = 16, kDepth = 64;  // rows, and what they are multiplied by in one step: dimensions, or tokens
constexpr int kPages = kDepth / 16;         // of values in a step
constexpr int kKept = 2;                    // products whose sums are in memory
constexpr int kNear = 2;                    // pages from the one whose scores are made to the one that comes near

struct alignas(64) Own {
  TileSums upper[kKept], lower[kKept];
  std::vector<Line> values;  // of a block: [steps][dimensions / 16][16 times 4 tokens][16 dimensions][4]
};
thread_local Own own;

// 16 rows of numbers: where the upper parts are, from where the lower ones are so many bytes on, from row to row, and how many steps of
// kDepth bytes there are.
struct Parts {
  const uint8_t* at;
  size_t lower, stride;
  int steps;
};

// Products of such rows with cells, of which the next is begun before the sums of one are used: begin(0), then for each i begin(i + 1), or
// store(i) for the last one, and sum(i, ...). Rows of up to two steps stay in tiles 4 to 7.
class Ahead {
 public:
  explicit Ahead(Own& own) : own_(own) {}

  void hold(const Parts& rows) {
    rows_ = rows;
    if (held()) load<0>(0);
    if (held() && rows.steps > 1) load<1>(1);
  }
  void store(int i) { tile_store<0>(own_.upper[i % kKept]), tile_store<1>(own_.lower[i % kKept]); }
  // Of the sums of product i - 1 what is in the tiles goes to memory; then those of i are made of tiles of cells, `apart` bytes from one
  // step to the next.
  void begin(int i, const uint8_t* cells, size_t apart) {
    if (i) store(i - 1);
    tile_zero<0>();
    tile_zero<1>();
    for (int s = 0; s < rows_.steps; s++) {
      tile_load_whole<2>(cells + apart * size_t(s), 64);
      if (!held()) load<0>(s);
      if (held() && s) multiply<1>();
      else multiply<0>();
    }
  }
  // The sum of row r and 16 columns, as a float, rounded once.
  __m512 sum(int i, int r, __m512i total) const {
    const __m512i upper = _mm512_sub_epi32(_mm512_load_si512(own_.upper[i % kKept][r]), total);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 7), _mm512_load_si512(own_.lower[i % kKept][r])));
  }

 private:
  bool held() const { return rows_.steps <= 2; }
  template <int place> void load(int step) const {
    tile_load_whole<4 + 2 * place>(rows_.at + kDepth * step, rows_.stride);
    tile_load_whole<5 + 2 * place>(rows_.at + rows_.lower + kDepth * step, rows_.stride);
  }
  template <int place> static void multiply() { tile_dot_unsigned<0, 4 + 2 * place, 2>(), tile_dot_unsigned<1, 5 + 2 * place, 2>(); }

  Own& own_;
  Parts rows_{};
};

// The compiler sees no reads of a tile's load: what was written before it must be in memory.
inline void written() { asm volatile("" : : : "memory"); }

// Where the tiles of rows begin: every 16, the last one early enough.
inline int first_row(int tile, int rows) { return std::min(kTileRows * tile, rows - kTileRows); }
inline int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

struct Scaled {
  int32_t total[kTileRows];
  float scale[kTileRows];
  void set(int r, const Numbers& n) { total[r] = n.total, scale[r] = n.scale; }
};

// Of the tile that begins at row `from` the scores of its rows from `first` on. Keys are read by every tile, so they come from the
// second-level cache, a line with each row.
inline void tile_scores(const Bytes& a, const Room& room, Own& mine, int from, int first) {
  constexpr size_t page_bytes = 16 * kDepth;  // of a step's dimensions
  const int pages = seen_pages<kTileRows>(a, from, 0, room.pages), steps = a.head_dim / kDepth;
  Scaled q;
  for (int r = 0; r < kTileRows; r++) q.set(r, get_numbers(room.query(from + r), a.head_dim));
  Ahead ahead(mine);
  ahead.hold({reinterpret_cast<const uint8_t*>(room.query(from)), size_t(a.head_dim), 4 * room.query_size, steps});
  ahead.begin(0, a.k[0], page_bytes);
  for (int page = 0; page < pages; page++) {
    if (page + 1 < pages) ahead.begin(page + 1, a.k[page + 1], page_bytes);
    else ahead.store(page);
    if (!from)
      for (int line = 0; line < a.head_dim / 4; line++) fetch(nth_read(a, room.pages, page + kBytesAhead) + 64 * line);
    const __m512 of_keys = V::load(room.key_scales + 16 * page);
    const uint8_t* near = a.k[std::min(page + kNear, pages - 1)];
    float* scores = room.scores + size_t(from + first) * room.stride + 16 * page;
    for (int r = first; r < kTileRows; r++, scores += room.stride) {
      for (int s = 0; s < steps; s++) fetch_near(near + page_bytes * size_t(s) + 64 * r);
      V::store(scores, V::mul(V::mul(ahead.sum(page, r, _mm512_set1_epi32(q.total[r])), V::set1(q.scale[r])), of_keys));
    }
  }
}

// The values of `count` pages as tiles; what is missing to a whole step is 0.
inline void gather(const Bytes& a, const Room& room, int page, int count, Line* to) {
  const int across = a.head_dim / 16, steps = (count + kPages - 1) / kPages;
  for (int p = 0; p < steps * kPages; p++) {
    const uint8_t *from = p < count ? a.v[page + p] : nullptr, *ahead = nth_read(a, room.pages, room.pages + page + p + kBytesAhead);
    for (int four = 0; four < 4; four++) {
      Line* line = to + size_t(p / kPages * across) * 16 + size_t(p % kPages * 4 + four);
      for (int i = 64 * across * four; i < 64 * across * (four + 1); i += 64, line += 16) {
        if (from) fetch(ahead + i);
        _mm512_store_si512(line->bytes, from ? _mm512_loadu_si512(from + i) : _mm512_setzero_si512());
      }
    }
  }
}

// What a block adds to all rows.
inline void add_block(const Bytes& a, const Room& room, Own& mine, int page, int count) {
  const int across = a.head_dim / 16, steps = (count + kPages - 1) / kPages;
  int first = 0;  // tiles before it see nothing of the block
  while (seen_pages<kTileRows>(a, first_row(first, a.rows), page, count) <= 0) first++;
  gather(a, room, page, count, mine.values.data());
  written();
  Ahead ahead(mine);
  const auto begin = [&](int i) {
    const float* weights = room.scores + size_t(first_row(first + i / across, a.rows)) * room.stride + 16 * page;
    if (i % across == 0) ahead.hold({reinterpret_cast<const uint8_t*>(weights), size_t(16 * count), 4 * room.stride, steps});
    ahead.begin(i, mine.values[size_t(i % across) * 16].bytes, size_t(across) * 1024);
  };
  const int products = (tiles_of(a.rows) - first) * across;
  begin(0);
  Scaled w;
  for (int i = 0; i < products; i++) {
    if (i + 1 < products) begin(i + 1);
    else ahead.store(i);
    const int tile = first + i / across, from = first_row(tile, a.rows), d = 16 * (i % across);
    if (!d)
      for (int r = 0; r < kTileRows; r++) w.set(r, get_numbers(room.scores + size_t(from + r) * room.stride + 16 * page, 16 * count));
    for (int r = kTileRows * tile - from; r < kTileRows; r++) {
      float* out = a.out[from + r] + d;
      V::store(out, V::fma(ahead.sum(i, r, _mm512_set1_epi32(w.total[r])), V::set1(w.scale[r]), page ? V::load(out) : V::set1(0.0f)));
    }
  }
}

}  // namespace

void attend8_amx(const AttendOver<uint8_t>& a) {
  if (a.rows < kTileRows || a.head_dim % kDepth) return attend_bytes(a);
  configure_tiles(TileShapes::whole);
  Own* mine = &own;
  asm("" : "+r"(mine));  // or else its address would be looked up again, by a call, wherever it is used
  Room room(a);
  const size_t lines = size_t(kBlockPages) * size_t(a.head_dim) / 4;
  if (mine->values.size() < lines) mine->values.resize(lines);
  load_scales(a, room);
  for (int r = 0; r < a.rows; r++) quantize_query(a.q[r], a.head_dim, room.query(r));
  written();
  for (int tile = 0; tile < tiles_of(a.rows); tile++) {
    const int from = first_row(tile, a.rows), next = kTileRows * tile;
    tile_scores(a, room, *mine, from, next - from);
    for (int r = next; r < from + kTileRows; r++) room.inverse[r] = to_weights(a, room, r);
  }
  for (int page = 0, end; page < room.pages; page = end) {
    end = std::min(next_block(a, page), room.pages);
    add_block(a, room, *mine, page, end - page);
  }
  finish(a, room);
}

}  // namespace quintet
