// The processor's own instruction: this file alone is compiled for it, and runs where checksum.cpp has found it.
#include "checksum_impl.h"
#if defined(__x86_64__)
#include <nmmintrin.h>
#else
#include <arm_acle.h>
#endif

namespace quintet {
namespace {

struct Hardware {
#if defined(__x86_64__)
  static uint32_t step(uint32_t crc, uint64_t word) { return uint32_t(_mm_crc32_u64(crc, word)); }
#else
  static uint32_t step(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
#endif
};

}  // namespace

uint32_t checksum_hardware(const uint8_t* data, size_t size) { return sum<Hardware>(data, size); }

}  // namespace quintet
