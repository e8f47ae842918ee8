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
// Between two runs of a step lies the interpreter's part, some 50 to 150 microseconds, and whoever sleeps is late for the next one by as
// much.
constexpr int kSpinsBetweenRuns = 8000;

// Whether it came true in that time.
template <class True> bool spin_until(True comes_true, int spins = kSpins) {
  for (int i = 0; i < spins; i++) {
    if (comes_true()) return true;
    relax();
  }
  return false;
}
}  // namespace

Team::Team(int threads, void (*leave)()) : leave_(leave), shares_(size_t(std::max(1, threads))), spent_(shares_.size()) {
  try {
    for (int t = 1; t < size(); t++) threads_.emplace_back([this, t] { loop(t); });
  } catch (...) {  // the system grants no more of them; those that there are would end the program
    dismiss();
    throw;
  }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
  stop_.store(true);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& t : threads_) t.join();
}

void Team::end(uint32_t phase) {
  over_.store(phase, std::memory_order_release);
  over_.notify_all();
}

void Team::await_end(uint32_t phase) {
  if (spin_until([&] { return over(phase); })) return;
  for (uint32_t now; int32_t((now = over_.load(std::memory_order_acquire)) - phase) < 0;) over_.wait(now, std::memory_order_acquire);
}

void Team::run(const std::function<void(Walk&)>& work, const std::function<void()>& meanwhile) {
  work_ = &work;
  running_.store(size() - 1, std::memory_order_relaxed);
  Walk walk(*this, 0);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  if (meanwhile) meanwhile();
  spent_[0].lap(Work::outside);
  work(walk);
  if (leave_) leave_();
  // A worker that is behind only walks past phases that are over.
  const auto returned = [&] { return running_.load(std::memory_order_acquire) == 0; };
  if (!spin_until(returned))
    while (!returned()) std::this_thread::yield();
  walked_ = {walk.phase_, walk.due_};
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
    const auto called = [&] { return job_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called, kSpinsBetweenRuns)) job_.wait(seen, std::memory_order_acquire);
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
