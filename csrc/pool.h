// A team of threads that runs one function at a time, in phases.
//
// Work inside a phase is claimed unit by unit, and a phase is over when its units are done, not when every thread has come by: a thread
// that the machine takes away delays at most the unit it holds, and the others go on at full speed without it. The split decides who
// computes a value, never how: results do not depend on the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>
#include "spent.h"

namespace quintet {

class Team {
  struct Phase;

 public:
  // leave: what every thread calls when its part of a run is done, or null.
  Team(int threads, void (*leave)());
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // One thread's way through the phases of a run. Every thread must ask for the same phases in the same order: what decides about them
  // must not change during the run, as a thread may be many phases behind.
  class Walk {
   public:
    Walk(Team& team, int thread) : thread(thread), team_(team), spent_(team.spent_[size_t(thread)]) {}

    // Do units [0, units), each by one thread; go on when all are done. A thread begins with a run of neighbours, its share, so that what it
    // reads is one stream; then it helps with what is left of the others'.
    template <class Unit> void phase(int units, Unit unit, Work work = Work::other) {
      Phase& p = team_.phases_[size_t(at_++)];
      const bool last = claim(p, units, unit);
      spent_.lap(work);
      if (last) open(p);
      else await(p.open, 0);
      spent_.lap(Work::waiting);
    }

    const int thread;

   private:
    // Whether this thread did the last unit.
    template <class Unit> bool claim(Phase& p, int units, Unit unit) {
      const int shares = team_.shares_;
      for (int i = 0; i < shares; i++) {
        const int share = (thread + i) % shares, from = units * share / shares, to = units * (share + 1) / shares;
        for (int u; (u = from + p.claimed[share].fetch_add(1, std::memory_order_relaxed)) < to;) {
          unit(u);
          if (p.done.fetch_add(1, std::memory_order_acq_rel) + 1 == units) return true;
        }
      }
      return false;
    }

    Team& team_;
    Spent& spent_;
    int at_ = 0;
  };

  // Run `work`, which has at most so many phases, on every thread of the team, the caller being thread 0; returns when all have returned.
  // One caller at a time; `work` must not throw.
  void run(int phases, const std::function<void(Walk&)>& work);

  // One phase, for those who need no more.
  template <class Unit> void parallel(int units, Unit unit, Work work = Work::other) {
    if (units > 0) run(1, [&](Walk& walk) { walk.phase(units, unit, work); });
  }

  // Count what the threads' time goes into, from now on; and what it was for each of them, the caller of `run` first. Between runs.
  void begin_counting();
  std::vector<Spent::Seconds> end_counting();

 private:
  static constexpr int kShares = 16;  // one cache line of counters; more threads than that share shares
  struct alignas(64) Phase {
    std::atomic<int> claimed[kShares] = {};
    std::atomic<int> done{0};
    std::atomic<uint32_t> open{0};
  };

  static void open(Phase& p);
  static void await(std::atomic<uint32_t>& value, uint32_t old);
  void loop(int thread);

  const int size_, shares_;
  void (*const leave_)();
  std::vector<Phase> phases_;
  std::vector<Spent> spent_;
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(Walk&)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace quintet
