#include "pool.h"
#include <algorithm>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quintet {

namespace {
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
// Units last from one to some hundred microseconds: longer than this and the core is better given away.
constexpr int kSpins = 2000;
}  // namespace

Team::Team(int threads, void (*leave)())
    : size_(std::max(1, threads)), shares_(std::min(size_, kShares)), leave_(leave), spent_(size_t(size_)) {
  for (int t = 1; t < size_; t++) threads_.emplace_back([this, t] { loop(t); });
}

Team::~Team() {
  stop_.store(true);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& t : threads_) t.join();
}

void Team::await(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Team::open(Phase& p) {
  p.open.store(1, std::memory_order_release);
  p.open.notify_all();
}

void Team::run(int phases, const std::function<void(Walk&)>& work) {
  if (phases_.size() < size_t(phases)) phases_ = std::vector<Phase>(size_t(phases));  // nobody walks now
  for (Phase& p : phases_) {
    if (!p.open.load(std::memory_order_relaxed)) break;
    for (int i = 0; i < shares_; i++) p.claimed[i].store(0, std::memory_order_relaxed);
    p.done.store(0, std::memory_order_relaxed);
    p.open.store(0, std::memory_order_relaxed);
  }
  work_ = &work;
  running_.store(size_ - 1, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  spent_[0].lap(Work::outside);
  Walk walk(*this, 0);
  work(walk);
  if (leave_) leave_();
  // A worker that is behind only walks past phases that are over.
  for (int i = 0; running_.load(std::memory_order_acquire) != 0; i++) {
    if (i < kSpins) relax();
    else std::this_thread::yield();
  }
  spent_[0].lap(Work::waiting);
}

void Team::begin_counting() {
  for (Spent& spent : spent_) spent.begin();
}

std::vector<Spent::Seconds> Team::end_counting() {
  std::vector<Spent::Seconds> seconds;
  for (Spent& spent : spent_) seconds.push_back(spent.end());
  return seconds;
}

void Team::loop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    await(job_, seen);
    seen = job_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    spent_[size_t(thread)].lap(Work::outside);
    Walk walk(*this, thread);
    (*work_)(walk);
    if (leave_) leave_();
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace quintet
