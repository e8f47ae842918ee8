// Checksums of large pieces of memory, at the speed at which it is read.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quintet {

// Four CRC-32C (Castagnoli, RFC 3720) side by side, since a processor's instruction for one waits for the step before: word i of 8 bytes
// goes to CRC i mod 4, zeros fill the last 32 bytes; the sum is the CRC of the four, as little-endian bytes. The same on every machine.
uint32_t checksum(const uint8_t* data, size_t size);
uint32_t checksum_portable(const uint8_t* data, size_t size);  // likewise, by tables
uint32_t checksum_hardware(const uint8_t* data, size_t size);  // likewise, where the processor has an instruction for it

}  // namespace quintet
