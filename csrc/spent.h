// Where the time of a team's threads goes, by kind of work; counted only while somebody asks for it.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>

namespace quintet {

// outside: between two runs of the team. waiting: for the other threads of a phase. norms: of whole rows, with what quantises them; of a
// few rows that is the product's. rotation: norms, rotation and storing of heads, where units of attention do not do it. heads: quantising
// what attention makes, where heads are no whole blocks. gate_up: with activation and quantising.
enum class Work {
  outside,
  waiting,
  norms,
  qkv,
  rotation,
  attention,
  heads,
  attention_out,
  gate_up,
  down,
  experts,
  logits,
  sampling,
  scoring,
  other
};
constexpr const char* kWorks[] = {"outside", "waiting", "norms",   "qkv",    "rotation", "attention", "heads", "attention_out",
                                  "gate_up", "down",    "experts", "logits", "sampling", "scoring",   "other"};

// One thread's: a lap is the time since its last one.
class alignas(64) Spent {
 public:
  using Seconds = std::array<double, std::size(kWorks)>;

  void begin() {
    seconds_ = {};
    last_ = Clock::now();
    counting_ = true;
  }
  Seconds end() {
    counting_ = false;
    return seconds_;
  }
  void lap(Work work) {
    if (!counting_) return;
    const auto now = Clock::now();
    seconds_[size_t(work)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool counting_ = false;
  Clock::time_point last_;
  Seconds seconds_ = {};
};

}  // namespace quintet
