#include "checksum.h"
#include <array>
#include "checksum_impl.h"
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace quintet {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reversed

// Tables for 8 bytes at a time ("slicing by 8", Kounavis and Berry 2008).
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> t{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ kPolynomial : c >> 1;
    t[0][i] = c;
  }
  for (size_t k = 1; k < 8; k++)
    for (size_t i = 0; i < 256; i++) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
  return t;
}();

struct Portable {
  static uint32_t step(uint32_t crc, uint64_t word) {
    word ^= crc;
    uint32_t out = 0;
    for (size_t k = 0; k < 8; k++) out ^= kTables[7 - k][word >> (8 * k) & 255];
    return out;
  }
};

bool has_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#elif defined(__aarch64__) && defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
  return true;  // every processor of Apple's
#endif
}

}  // namespace

uint32_t checksum_portable(const uint8_t* data, size_t size) { return sum<Portable>(data, size); }

uint32_t checksum(const uint8_t* data, size_t size) {
  static const bool instruction = has_instruction();
  return instruction ? checksum_hardware(data, size) : checksum_portable(data, size);
}

}  // namespace quintet
