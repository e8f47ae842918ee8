// The checksum over any CRC of 8 bytes. Each file that includes it has its own, compiled for its own instructions.
#pragma once
#include <bit>
#include <cstring>
#include "checksum.h"

namespace quintet {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr int kLanes = 4;

template <class Crc> uint32_t sum(const uint8_t* data, size_t size) {
  uint32_t lanes[kLanes] = {~0u, ~0u, ~0u, ~0u};
  uint64_t words[kLanes];
  for (; size >= sizeof words; data += sizeof words, size -= sizeof words) {
    std::memcpy(words, data, sizeof words);
    for (int i = 0; i < kLanes; i++) lanes[i] = Crc::step(lanes[i], words[i]);
  }
  if (size) {
    std::memset(words, 0, sizeof words);
    std::memcpy(words, data, size);
    for (int i = 0; i < kLanes; i++) lanes[i] = Crc::step(lanes[i], words[i]);
  }
  for (uint32_t& lane : lanes) lane = ~lane;
  uint32_t out = ~0u;
  for (int i = 0; i < kLanes; i += 2) out = Crc::step(out, uint64_t(lanes[i]) | uint64_t(lanes[i + 1]) << 32);
  return ~out;
}

}  // namespace
}  // namespace quintet
