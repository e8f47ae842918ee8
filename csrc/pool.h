// A team of threads that runs one function at a time, in phases.
//
// Work inside a phase is claimed unit by unit, and a phase is over when its units are done, not when every thread has come by: a thread
// that the machine takes away delays at most the unit it holds, and the others go on at full speed without it. The split decides who
// computes a value, never how: results do not depend on the number of threads.
//
// Phases last some microseconds, and a line of the cache takes a tenth of one from core to core. So a thread touches what is shared as
// seldom as can be: it claims its own units on a line of its own, says once that it has done them, and looks at the others' only if the
// phase is not over then.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>
#include "spent.h"

namespace quintet {

class Team {
 public:
  // leave: what every thread calls when its part of a run is done, or null.
  Team(int threads, void (*leave)());
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return int(shares_.size()); }

  // One thread's way through the phases of a run. Every thread must ask for the same phases in the same order: what decides about them
  // must not change during the run, as a thread may be many phases behind.
  class Walk {
   public:
    Walk(Team& team, int thread)
        : thread(thread), team_(team), spent_(team.spent_[size_t(thread)]), phase_(team.walked_.phase), due_(team.walked_.due) {}

    // Do units [0, units), fewer than 2^24, each by one thread; go on when all are done. A thread begins with a run of neighbours, its
    // share, so that what it reads is one stream; then it helps with what is left of the others'.
    template <class Unit> void phase(int units, Unit unit, Work work = Work::other) {
      if (units <= 0) return;
      phase_++;
      due_ += uint64_t(units);
      const bool last = own(units, unit) || help(units, unit);
      spent_.lap(work);
      if (last) team_.end(uint32_t(phase_));
      else team_.await_end(uint32_t(phase_));
      spent_.lap(Work::waiting);
    }

    // The units of a phase that a thread begins with: [first, second).
    std::pair<int, int> share(int units) const { return team_.share(thread, units); }

    const int thread;

   private:
    friend class Team;

    template <class Unit> bool own(int units, Unit unit) {
      uint64_t count = 0;
      for (int u; (u = claim(thread, units)) >= 0; count++) unit(u);
      return count && did(count);
    }
    template <class Unit> bool help(int units, Unit unit) {
      if (team_.over(uint32_t(phase_))) return false;
      for (int i = 1; i < team_.size(); i++)
        for (int u; (u = claim((thread + i) % team_.size(), units)) >= 0;) {
          unit(u);
          if (did(1)) return true;
        }
      return false;
    }
    // A unit that nobody has, of a thread's share; -1 if there is none, as also if the phase has long been over.
    int claim(int share, int units) {
      const auto [from, to] = team_.share(share, units);
      return from == to ? -1 : team_.shares_[size_t(share)].claim(phase_, from, to);
    }
    // Whether the units that are done now were the last.
    bool did(uint64_t count) { return team_.done_.fetch_add(count, std::memory_order_acq_rel) + count == due_; }

    Team& team_;
    Spent& spent_;
    uint64_t phase_, due_;  // the number of the phase, and of the units of all phases until its end
  };

  // Run `work` on every thread of the team, the caller being thread 0; returns when all have returned. One caller at a time; `work` must
  // not throw. `meanwhile`, if there is one, the caller does first, once the others have begun; it must not throw either, nor ask for the
  // team.
  void run(const std::function<void(Walk&)>& work, const std::function<void()>& meanwhile = nullptr);

  // One phase, for those who need no more.
  template <class Unit> void parallel(int units, Unit unit, Work work = Work::other) {
    if (units > 0) run([&](Walk& walk) { walk.phase(units, unit, work); });
  }

  // Count what the threads' time goes into, from now on; and what it was for each of them, the caller of `run` first. Between runs.
  void begin_counting();
  std::vector<Spent::Seconds> end_counting();

 private:
  // How far the units of a thread's share are claimed, in which phase: `phase` << 24 | next unit. Phases have numbers that only grow (and
  // wrap), so nothing has to be set back, and a thread that is behind takes nothing of a later phase. On a line of its own: as long as
  // nobody helps, its thread claims without asking another core.
  class alignas(64) Share {
   public:
    int claim(uint64_t phase, int64_t from, int64_t to) {
      const uint64_t begin = phase << kUnitBits;
      uint64_t now = claimed_.load(std::memory_order_relaxed);
      for (;;) {
        const int64_t next = int64_t(now - begin) < 0 ? from : int64_t(now - begin);
        if (next >= to) return -1;
        if (claimed_.compare_exchange_weak(now, begin + uint64_t(next) + 1, std::memory_order_relaxed)) return int(next);
      }
    }

   private:
    static constexpr int kUnitBits = 24;
    std::atomic<uint64_t> claimed_{0};
  };
  struct Walked {
    uint64_t phase = 0, due = 0;
  };

  bool over(uint32_t phase) const { return int32_t(over_.load(std::memory_order_acquire) - phase) >= 0; }
  std::pair<int, int> share(int thread, int units) const {
    const int64_t size = this->size();
    return {int(units * int64_t(thread) / size), int(units * int64_t(thread + 1) / size)};
  }
  void end(uint32_t phase);
  void await_end(uint32_t phase);
  void loop(int thread);
  void dismiss();

  void (*const leave_)();
  std::vector<Share> shares_;
  std::vector<Spent> spent_;
  alignas(64) std::atomic<uint64_t> done_{0};  // units of all phases
  alignas(64) std::atomic<uint32_t> over_{0};  // the last phase that is over
  alignas(64) std::atomic<uint32_t> job_{0};
  Walked walked_;  // at the end of the last run
  const std::function<void(Walk&)>* work_ = nullptr;
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace quintet
