// What AMX's instructions take, and what others take beside them: nanoseconds, the best of many runs. Prints one JSON object.
// Build: g++ -O3 -march=native -std=c++20 tiles.cpp -o tiles
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>

namespace {

constexpr int kRuns = 30, kTurns = 20'000;

struct Config {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

alignas(4096) std::uint8_t memory[1 << 18];
bool first = true;

template <class Work> void show(const char *name, int count, Work work) {
  double least = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0; turn < kTurns; ++turn) work();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("%s\"%s\": %.2f", first ? "{" : ", ", name, least / kTurns / count * 1e9);
  first = false;
}

// 64 instructions whose operands do not wait for each other, in text.
#define FOUR(what, a, b, c, d) what ",%%zmm" #a "\n" what ",%%zmm" #b "\n" what ",%%zmm" #c "\n" what ",%%zmm" #d "\n"
#define SIXTEEN(what) FOUR(what, 2, 3, 4, 5) FOUR(what, 6, 7, 8, 9) FOUR(what, 10, 11, 12, 13) FOUR(what, 14, 15, 16, 17)
#define MANY(what) SIXTEEN(what) SIXTEEN(what) SIXTEEN(what) SIXTEEN(what)

void products(const std::uint8_t *from, long rows, std::uint8_t *sums) {
  asm volatile(
      "tileloadd (%0,%1,1),%%tmm1\n tileloadd (%0,%2,1),%%tmm2\n tilestored %%tmm0,(%3,%2,1)\n tilezero %%tmm0\n tdpbssd %%tmm2,%%tmm1,%%tmm0\n"
      :
      : "r"(from), "r"(rows), "r"(64L), "r"(sums)
      : "memory");
}

}  // namespace

int main() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) return 1;
  Config config;
  for (int t = 0; t < 4; ++t) {
    config.rows[t] = t == 2 ? 8 : 16;
    config.row_bytes[t] = t == 1 ? 32 : 64;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
  std::uint8_t *sums = memory + (1 << 17);
  const auto multiply = [] { asm volatile(MANY("vmulps %%zmm0,%%zmm1") : : :); };
  show("64 multiplications", 1, multiply);
  show("64 additions of integers", 1, [] { asm volatile(MANY("vpaddd %%zmm0,%%zmm1") : : :); });
  show("64 multiplications and a tile cleared", 1, [] { asm volatile("tilezero %%tmm0\n" MANY("vmulps %%zmm0,%%zmm1") : : :); });
  show("64 additions of integers and a tile cleared", 1, [] { asm volatile("tilezero %%tmm0\n" MANY("vpaddd %%zmm0,%%zmm1") : : :); });
  show("64 additions of floats and a tile cleared", 1, [] { asm volatile("tilezero %%tmm0\n" MANY("vaddps %%zmm0,%%zmm1") : : :); });
  show("tdpbssd of 32 features, always of one tile", 1, [] { asm volatile("tilezero %%tmm0\n tdpbssd %%tmm2,%%tmm1,%%tmm0" : : :); });
  show("a whole tile stored", 1, [&] { asm volatile("tilestored %%tmm0,(%0,%1,1)" : : "r"(sums), "r"(64L) : "memory"); });
  show("two loads, product and store, always of the same tiles", 1, [&] { products(memory, 32, sums); });
  show("64 multiplications while tiles hold sums", 1, multiply);
  for (const int offset : {0, 16})
    show(offset ? "a whole tile loaded, rows that straddle lines" : "a whole tile loaded, rows that are lines", 1,
         [&] { asm volatile("tileloadd (%0,%1,1),%%tmm3" : : "r"(memory + offset), "r"(6016L)); });
  asm volatile("tilerelease");
  std::printf("}\n");
}
