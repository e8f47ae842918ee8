// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Key = seed, counter =
// position, both low word first; a draw therefore depends on nothing but its own sequence.
#pragma once
#include <array>
#include <cstdint>

namespace quintet {

using PhiloxWords = std::array<uint32_t, 4>;

constexpr PhiloxWords philox(PhiloxWords c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key1, uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The known answers published with Random123.
static_assert(philox({0, 0, 0, 0}, 0, 0) == PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
static_assert(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == PhiloxWords{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
static_assert(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u) ==
              PhiloxWords{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u});

// What the words of a position's block are for; the others are free.
enum class Purpose { token = 0, exclude_top_choices = 1 };

// A float uniform in [0, 1) with 24 bits.
constexpr float uniform(uint64_t seed, uint64_t position, Purpose purpose) {
  const PhiloxWords c = philox({uint32_t(position), uint32_t(position >> 32), 0, 0}, uint32_t(seed), uint32_t(seed >> 32));
  return float(c[size_t(purpose)] >> 8) * 0x1p-24f;
}

}  // namespace quintet
