#include "pool.h"
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
// Phases last from a few to some hundred microseconds: longer than this and the core is better given away.
constexpr int kSpins = 2000;
}  // namespace

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {
  for (int t = 1; t < size_; t++) threads_.emplace_back([this, t] { loop(t); });
}

Team::~Team() {
  stop_.store(true);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& t : threads_) t.join();
}

void Team::wait(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Team::release(uint32_t epoch) {
  next_.store(0, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  epoch_.store(epoch + 1, std::memory_order_release);
  epoch_.notify_all();
}

void Team::run(const std::function<void(int)>& work) {
  work_ = &work;
  next_.store(0, std::memory_order_relaxed);
  running_.store(size_ - 1, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  work(0);
  // Workers end within one barrier's reach of us: spinning is enough, with a yield for oversubscribed machines.
  for (int i = 0; running_.load(std::memory_order_acquire) != 0; i++) {
    if (i < kSpins) relax();
    else std::this_thread::yield();
  }
}

void Team::loop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait(job_, seen);
    seen = job_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    (*work_)(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace quintet
