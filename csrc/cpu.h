// What one engine computes on. Its model, the scores and the draws share it: there is no other thread, and no other choice of kernels.
#pragma once
#include <algorithm>
#include <mutex>
#include <string>
#include "kernels/kernels.h"
#include "pool.h"

namespace quintet {

struct Cpu {
  // isa: see find_kernels, which throws. threads: from 1 to 256.
  Cpu(const std::string& isa, int threads) : kernels(find_kernels(isa)), team(std::clamp(threads, 1, 256), kernels.leave) {}

  const Kernels& kernels;
  Team team;
  std::mutex turn;  // of whoever runs the team
};

}  // namespace quintet
