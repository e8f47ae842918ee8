// Which instruction sets this build has, and which of them this CPU runs.
#include <cstdlib>
#include <stdexcept>
#include "kernels/kernels.h"
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace quintet {

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool has_avx512() {
#ifdef QUINTET_EMULATE_AVX512
  return true;
#else
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
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
#endif

}  // namespace

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  if (has_avx512()) found.push_back(&kernels_avx512);
  if (has_avx2()) found.push_back(&kernels_avx2);
#elif defined(__aarch64__)
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
