// Helpers for short, independent units of work, of which the caller does as many as it can reach itself: a helper that the machine wakes
// late finds nothing left and delays nobody. (A Team's threads all take part in every phase, which suits long ones.)
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quintet {

class Crew {
 public:
  explicit Crew(int helpers);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Run unit(0) to unit(units - 1), in any order and on any thread; returns when all have returned. Callers take turns. `unit` must not
  // throw.
  void each(int units, const std::function<void(int)>& unit);

 private:
  struct Job;
  void loop();

  std::mutex callers_, mutex_;
  std::condition_variable posted_;
  std::shared_ptr<Job> job_;   // guarded by mutex_, as are:
  uint64_t jobs_ = 0;
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace quintet
