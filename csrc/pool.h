// A team of threads that runs one function at a time, in phases divided by barriers.
//
// Work inside a phase is claimed unit by unit, so a thread that the machine takes away delays only its own unit. The split decides
// who computes a value, never how: results do not depend on the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quintet {

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Run `work(thread)` on every thread of the team, the caller being thread 0; returns when all have returned.
  // Not reentrant: one caller at a time. `work` must not throw.
  void run(const std::function<void(int)>& work);

  // Inside `work`: claim units [0, units) until none is left. Every thread must call it with the same `units`.
  template <class Unit> void each(int units, Unit unit) {
    for (int u = next_.fetch_add(1, std::memory_order_relaxed); u < units; u = next_.fetch_add(1, std::memory_order_relaxed)) unit(u);
  }

  // Inside `work`: wait for every thread; the last to arrive runs `serial` alone before the others go on.
  template <class Serial> void sync(Serial serial) {
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      serial();
      release(epoch);
    } else {
      wait(epoch_, epoch);
    }
  }
  void sync() { sync([] {}); }

 private:
  void release(uint32_t epoch);
  static void wait(std::atomic<uint32_t>& value, uint32_t old);
  void loop(int thread);

  const int size_;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> job_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace quintet
