// What the tile shim counts; without it, as where the instructions are, both stay 0.
#pragma once
#include <atomic>
#include <cstdint>

namespace quintet {

inline std::atomic<int> tiles_held{0};  // threads with configured tiles: none when their work is done
inline std::atomic<int64_t> tile_products{0};

}  // namespace quintet
