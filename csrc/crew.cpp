#include "crew.h"
#include <cstdint>

namespace quintet {

struct Crew::Job {
  const int units;
  const std::function<void(int)>& unit;   // the caller's, who waits for every unit that was claimed
  std::atomic<int> next{0}, done{0};

  Job(int n, const std::function<void(int)>& f) : units(n), unit(f) {}

  void work() {
    for (int u = next.fetch_add(1); u < units; u = next.fetch_add(1)) {
      unit(u);
      if (done.fetch_add(1) + 1 == units) done.notify_all();
    }
  }
};

Crew::Crew(int helpers) { for (int i = 0; i < helpers; i++) helpers_.emplace_back([this] { loop(); }); }

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void Crew::each(int units, const std::function<void(int)>& unit) {
  const std::lock_guard turn(callers_);
  const auto job = std::make_shared<Job>(units, unit);
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
    jobs_++;
  }
  posted_.notify_all();
  job->work();
  for (int done = job->done; done < units; done = job->done) job->done.wait(done);
}

void Crew::loop() {
  uint64_t seen = 0;
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return stop_ || jobs_ != seen; });
      if (stop_) return;
      seen = jobs_;
      job = job_;
    }
    job->work();
  }
}

}  // namespace quintet
