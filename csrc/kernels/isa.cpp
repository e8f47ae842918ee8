// Which instruction sets this build has, which of them this CPU runs, and what its first-level cache is like.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include "kernels/kernels.h"
#include "kernels/prefetch.h"
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace quintet {

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avxvnni, kernels_avx512, kernels_amx;
#elif defined(__aarch64__)
extern const Kernels kernels_neon, kernels_i8mm;
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avxvnni() {
#if defined(QUINTET_EMULATE_AVX512)
  return has_avx2();
#else
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0;
#endif
}
bool has_avx512() {
#ifdef QUINTET_EMULATE_AVX512
  return true;
#else
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#endif
}
// Tiles of bytes, which the system must save and this process be allowed to use: a thread's 8 KiB more. The permission is asked for once,
// holds for all threads and for children by fork; a sandbox may refuse it, as may a system before Linux 5.16.
bool has_amx() {
#if defined(QUINTET_EMULATE_AVX512)
  return true;
#elif defined(__linux__)
  unsigned a, b, c, d;
  constexpr unsigned tile = 1u << 24, int8 = 1u << 25;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tile) == 0 || (d & int8) == 0) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
bool has_neon_dot() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & (1UL << 20)) != 0;  // HWCAP_ASIMDDP
#else
  return true;  // every Apple CPU that runs this
#endif
}
bool has_i8mm() {
#if defined(__linux__)
  return has_neon_dot() && (getauxval(AT_HWCAP2) & (1UL << 13)) != 0;  // HWCAP2_I8MM
#else
  return false;
#endif
}
#endif

// AMD's Zen 5 and later, by measurement (docs/decisions/0071-into-the-first-level-cache.md).
bool fetches_near() {
#if defined(__x86_64__)
  unsigned signature, b, c, d, vendor[3];
  if (!__get_cpuid(0, &signature, &vendor[0], &vendor[2], &vendor[1]) || std::memcmp(vendor, "AuthenticAMD", sizeof vendor)) return false;
  constexpr unsigned zen5 = 26, extended = 15;  // of whose families the rest is in another field
  return __get_cpuid(1, &signature, &b, &c, &d) && (signature >> 8 & 15) == extended && extended + (signature >> 20 & 255) >= zen5;
#else
  return false;
#endif
}

// Bytes of a CPU's first-level cache of data; where the system does not say, what the smallest of today's have.
long first_level_cache() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const long size = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  if (size > 0) return size;
#endif
  return 32 << 10;
}

}  // namespace

const bool kFetchesNear = fetches_near();

// They leave a third of it to scores, queries and outputs.
int attend_block_pages(int head_dim) {
  const long bytes = 16 * head_dim * long(sizeof(float));
  return int(std::clamp(first_level_cache() * 2 / 3 / bytes, 4L, long(kAttendPages))) / 4 * 4;
}

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  if (has_amx()) found.push_back(&kernels_amx);
  if (has_avx512()) found.push_back(&kernels_avx512);
  if (has_avxvnni()) found.push_back(&kernels_avxvnni);
  if (has_avx2()) found.push_back(&kernels_avx2);
#elif defined(__aarch64__)
  if (has_i8mm()) found.push_back(&kernels_i8mm);
  if (has_neon_dot()) found.push_back(&kernels_neon);
#endif
  found.push_back(&kernels_portable);
  return found;
}

const Kernels& find_kernels(const std::string& name) {
  const char* forced = std::getenv("QUINTET_ISA");
  const std::string wanted = !name.empty() ? name : forced ? forced : "";
  const auto found = available_kernels();
  if (wanted.empty()) return *found[0];
  std::string names;
  for (const Kernels* k : found) {
    if (wanted == k->name) return *k;
    names += names.empty() ? k->name : std::string(", ") + k->name;
  }
  throw std::invalid_argument("instruction set '" + wanted + "' cannot run here; this CPU and build have: " + names);
}

}  // namespace quintet
