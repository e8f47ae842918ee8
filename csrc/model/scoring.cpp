// Model::score: the output matrix, log-softmax and the most likely tokens of many rows, a block of rows at a time.
//
//   phase   unit              of the block
//   1       chunk of tokens   logits, and each row's maximum of them while they are in the cache
//   2       row               its maximum, its mass, log-sum-exp, the target's, the most likely
//
// A mass is a sum of exp(x - maximum of the row), so phase 2 cannot begin before phase 1 has ended, and the logits of a block must be kept
// until then: docs/decisions/0050-scoring.md has why they are not computed twice, nor masses with a running maximum, and what it cost to
// take masses chunk by chunk too.
#include <algorithm>
#include "kernels/row_passes.h"
#include "model/model.h"
#include "model/pass.h"
#include "model/scoring.h"

namespace quintet {
namespace {

constexpr int kTiles = kChunk / 16;

}  // namespace

void Model::score_chunk(Scoring& s, const Activations::View& rows, int count, int chunk) const {
  const Packed& w = output_matrix();
  const size_t stride = size_t(vocab_stride());
  const int from = chunk * kTiles, to = std::min(w.tiles(), from + kTiles);
  act_.multiply(w, from, to - from, rows, count, s.logits.data() + 16 * from, stride, false);
  for (int r = 0; r < count; r++) {
    float* row = s.logits.data() + size_t(r) * stride;
    finish_logits(row + 16 * from, 16 * (to - from));
    s.sound[size_t(chunk * kBlock + r)] = chunk_maximum(k_, row, config_.vocab, chunk, s.maxima[size_t(r)][size_t(chunk)]);
  }
}

void Model::score(const uint8_t* rows, int n, const int32_t* targets, const Scores& to) {
  const int vocab = config_.vocab, chunks = chunks_of(vocab);
  const size_t stride = size_t(vocab_stride());
  if (!scoring_) scoring_ = std::make_unique<Scoring>();
  Scoring& s = *scoring_;
  const Activations::View in = act_.view(rows, n, config_.hidden, panels_);
  grow(s.logits, size_t(std::min(n, kBlock)) * stride);
  s.maxima.resize(kBlock, std::vector<float>(size_t(chunks)));
  s.masses.resize(kBlock);
  s.sound.resize(size_t(chunks * kBlock));
  const auto finish = [&](size_t r, int i) {
    const float* row = s.logits.data() + r * stride;
    bool sound = true;
    for (int c = 0; c < chunks; c++) sound = sound && s.sound[size_t(c * kBlock) + r];
    score_with(k_, row, vocab, s.maxima[r], sound, targets[i], s.masses[r], false, to.row(size_t(i)));
  };
  team_.run([&](Team::Walk& walk) {
    for (int first = 0; first < n; first += kBlock) {
      const int count = std::min(kBlock, n - first);
      walk.phase(chunks, [&](int c) { score_chunk(s, act_.from(in, config_.hidden, size_t(first)), count, c); }, Work::scoring);
      walk.phase(count, [&](int r) { finish(size_t(r), first + r); }, Work::scoring);
    }
  });
}

}  // namespace quintet
