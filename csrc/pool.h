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

namespace quintet {

class Team {
 public:
  // phases: most phases of one run.
  Team(int threads, int phases);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // One thread's way through the phases of a run. Every thread must ask for the same phases in the same order: what decides about them
  // must not change during the run, as a thread may be many phases behind.
  class Walk {
   public:
    Walk(Team& team, int thread) : thread(thread), team_(team) {}

    // Do units [0, units), each by one thread; then `serial` by one thread alone; go on when that is done.
    template <class Unit, class Serial> void phase(int units, Unit unit, Serial serial) {
      Phase& p = team_.phases_[size_t(at_++)];
      for (int u; (u = p.next.fetch_add(1, std::memory_order_relaxed)) < units;) {
        unit(u);
        if (p.done.fetch_add(1, std::memory_order_acq_rel) + 1 == units) {
          serial();
          open(p);
          return;
        }
      }
      await(p.open, 0);
    }
    template <class Unit> void phase(int units, Unit unit) { phase(units, unit, [] {}); }

    const int thread;

   private:
    Team& team_;
    int at_ = 0;
  };

  // Run `work` on every thread of the team, the caller being thread 0; returns when all have returned. One caller at a time; `work`
  // must not throw.
  void run(const std::function<void(Walk&)>& work);

  // One phase, for those who need no more.
  template <class Unit> void parallel(int units, Unit unit) {
    if (units > 0) run([&](Walk& walk) { walk.phase(units, unit); });
  }

 private:
  struct alignas(64) Phase {
    std::atomic<int> next{0}, done{0};
    std::atomic<uint32_t> open{0};
  };

  static void open(Phase& p);
  static void await(std::atomic<uint32_t>& value, uint32_t old);
  void loop(int thread);

  const int size_;
  std::vector<Phase> phases_;
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(Walk&)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace quintet
