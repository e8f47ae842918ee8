// The machine's limits, with 1 and with N threads: read bandwidth; multiply-adds of int8 and of floats; and those of int8 where the sums of
// each 32 become floats and are scaled as docs/decisions/0002 has it (a conversion, a product of both scales, two FMAs), which use the same
// units; of int8 also with AMX's tiles, which take 16 rows at once. Prints one JSON object.
// Build: g++ -O3 -march=native -std=c++20 -pthread machine.cpp -o machine; run: ./machine [threads]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__AMX_INT8__) && defined(__AVX512F__)
#include <sys/syscall.h>
#include <unistd.h>
#define QUINTET_BENCH_TILES "amx: tdpbssd"
#define QUINTET_BENCH_TILE_BLOCKS "amx: tdpbssd of 32 features; for each of 16 rows vpaddd, vsubps, vmulps, 2 vfmaddps"
#endif

namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr int kPasses = 6;
constexpr std::int64_t kRounds = 24'000'000;
#if defined(__AVX512VNNI__)
constexpr int kSums = 12;  // independent sums: two a cycle with a latency of 5 need 10; of 16, g++ 12 keeps some in memory
#else
constexpr int kSums = 6;  // they hide the latency, and with the operands they still fit in 16 registers
#endif

using Work = std::uint64_t (*)(const std::uint8_t *data, std::size_t bytes);

std::atomic<std::uint64_t> sink{0};  // keeps the results alive

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Wall seconds of `threads` copies of `work`, each over its own part of `data`, from a common start.
double timed(Work work, const std::uint8_t *data, std::size_t bytes, int threads) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  const std::size_t part = bytes / static_cast<std::size_t>(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      sink.fetch_add(work(data + static_cast<std::size_t>(t) * part, part));
    });
  }
  while (ready.load() < threads) std::this_thread::yield();
  const double begin = seconds();
  go.store(true);
  for (auto &thread : pool) thread.join();
  return seconds() - begin;
}

double best(Work work, const std::uint8_t *data, std::size_t bytes, int threads) {
  double least = 1e9;
  for (int i = 0; i < kPasses; ++i) least = std::min(least, timed(work, data, bytes, threads));
  return least;
}

#if defined(__AVX2__)
std::uint64_t read_all(const std::uint8_t *data, std::size_t bytes) {
  __m256i a[8];
  for (auto &x : a) x = _mm256_setzero_si256();
  for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      a[j] = _mm256_xor_si256(a[j], _mm256_load_si256(reinterpret_cast<const __m256i *>(data + i + 32 * static_cast<std::size_t>(j))));
    }
  }
  for (int j = 1; j < 8; ++j) a[0] = _mm256_xor_si256(a[0], a[j]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(a[0], 0));
}
#else
std::uint64_t read_all(const std::uint8_t *data, std::size_t bytes) {
  const auto *words = reinterpret_cast<const std::uint64_t *>(data);
  std::uint64_t a[8] = {};
  for (std::size_t i = 0; i + 8 <= bytes / 8; i += 8) {
    for (int j = 0; j < 8; ++j) a[j] ^= words[i + static_cast<std::size_t>(j)];
  }
  return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}
#endif

// Multiply-adds with all operands in registers. The empty asm makes the operands opaque,
// so that the compiler can neither fold the loop nor hoist the products out of it.
#if defined(__AVX512VNNI__)
constexpr const char *kName8 = "avx512-vnni: vpdpbusd";
constexpr std::int64_t kMacs8 = kSums * 64;
std::uint64_t mac8(const std::uint8_t *, std::size_t) {
  __m512i a[kSums], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-5);
  for (auto &v : a) v = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < kRounds; ++i) {
    asm volatile("" : "+v"(x), "+v"(y));
    for (auto &v : a) v = _mm512_dpbusd_epi32(v, x, y);
  }
  for (int j = 1; j < kSums; ++j) a[0] = _mm512_add_epi32(a[0], a[j]);
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi32(a[0]));
}
#define QUINTET_BENCH_BLOCKS "avx512-vnni: 8 vpdpbusd; vcvtdq2ps, vmulps, 2 vfmaddps"
constexpr int kRows = 12;  // with the sums they fill the registers
constexpr std::int64_t kMacsBlocks = kRows * 64;
std::uint64_t blocks(const std::uint8_t *, std::size_t) {
  __m512 f[kRows], d = _mm512_set1_ps(0.5f), m = _mm512_set1_ps(0.25f), scale = d;
  __m512i a[kRows], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-5);
  for (auto &v : f) v = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < kRounds; i += 8) {
    for (auto &v : a) v = _mm512_setzero_si512();
    for (int j = 0; j < 8; ++j) {
      for (auto &v : a) {
        asm volatile("" : "+v"(x), "+v"(y));
        v = _mm512_dpbusd_epi32(v, x, y);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      asm volatile("" : "+v"(scale));
      f[r] = _mm512_fmadd_ps(m, scale, _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r]), _mm512_mul_ps(d, scale), f[r]));
    }
  }
  for (int r = 1; r < kRows; ++r) f[0] = _mm512_add_ps(f[0], f[r]);
  return static_cast<std::uint64_t>(_mm512_reduce_add_ps(f[0]));
}
#elif defined(__AVX2__)
std::uint64_t total(const __m256i *a) {
  __m256i s = a[0];
  for (int j = 1; j < kSums; ++j) s = _mm256_add_epi32(s, a[j]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(s, 0) + _mm256_extract_epi64(s, 2));
}
#if defined(__AVXVNNI__)
constexpr const char *kName8 = "avx-vnni: vpdpbusd";
#else
constexpr const char *kName8 = "avx2: vpmaddubsw, vpmaddwd, vpaddd";
#endif
constexpr std::int64_t kMacs8 = kSums * 32;
std::uint64_t mac8(const std::uint8_t *, std::size_t) {
  __m256i a[kSums], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
  [[maybe_unused]] const __m256i one = _mm256_set1_epi16(1);
  for (auto &v : a) v = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < kRounds; ++i) {
    for (auto &v : a) {
      asm volatile("" : "+x"(x), "+x"(y));
#if defined(__AVXVNNI__)
      v = _mm256_dpbusd_avx_epi32(v, x, y);
#else
      v = _mm256_add_epi32(v, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
#endif
    }
  }
  return total(a);
}
#if !defined(__AVXVNNI__)
// 4-bit weights leave room in 16 bits: 8 products of pairs (at most 8 x 2 x 15 x 127) are added before one widening.
#define QUINTET_BENCH_MAC4 "avx2: vpmaddubsw, vpaddw; vpmaddwd once in 8"
constexpr std::int64_t kMacs4 = kSums * 32;
std::uint64_t mac4(const std::uint8_t *, std::size_t) {
  __m256i a[kSums], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
  const __m256i one = _mm256_set1_epi16(1);
  for (auto &v : a) v = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < kRounds; i += 8) {
    for (auto &v : a) {
      __m256i s = _mm256_setzero_si256();
      for (int j = 0; j < 8; ++j) {
        asm volatile("" : "+x"(x), "+x"(y));
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(x, y));
      }
      v = _mm256_add_epi32(v, _mm256_madd_epi16(s, one));
    }
  }
  return total(a);
}
#endif
#if defined(__FMA__)
#if defined(__AVXVNNI__)
#define QUINTET_BENCH_BLOCKS "avx-vnni: 8 vpdpbusd; vcvtdq2ps, vmulps, 2 vfmaddps"
#else
#define QUINTET_BENCH_BLOCKS "avx2, 4 bits: 8 vpmaddubsw, 8 vpaddw; vpmaddwd, vcvtdq2ps, vmulps, 2 vfmaddps"
#endif
constexpr int kRows = 4;  // with the sums they fill the registers
constexpr std::int64_t kMacsBlocks = kRows * 32;
std::uint64_t blocks(const std::uint8_t *, std::size_t) {
  __m256 f[kRows], d = _mm256_set1_ps(0.5f), m = _mm256_set1_ps(0.25f), scale = d;
  __m256i a[kRows], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
  [[maybe_unused]] const __m256i one = _mm256_set1_epi16(1);
  for (auto &v : f) v = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < kRounds; i += 8) {
    for (auto &v : a) v = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      for (auto &v : a) {
        asm volatile("" : "+x"(x), "+x"(y));
#if defined(__AVXVNNI__)
        v = _mm256_dpbusd_avx_epi32(v, x, y);
#else
        v = _mm256_add_epi16(v, _mm256_maddubs_epi16(x, y));
#endif
      }
    }
    for (int r = 0; r < kRows; ++r) {
      asm volatile("" : "+x"(scale));
#if !defined(__AVXVNNI__)
      a[r] = _mm256_madd_epi16(a[r], one);
#endif
      f[r] = _mm256_fmadd_ps(m, scale, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[r]), _mm256_mul_ps(d, scale), f[r]));
    }
  }
  for (int r = 1; r < kRows; ++r) f[0] = _mm256_add_ps(f[0], f[r]);
  return static_cast<std::uint64_t>(_mm256_cvtss_f32(f[0]));
}
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr const char *kName8 = "neon: sdot";
constexpr std::int64_t kMacs8 = kSums * 16;
std::uint64_t mac8(const std::uint8_t *, std::size_t) {
  int8x16_t x = vdupq_n_s8(3), y = vdupq_n_s8(-5);
  int32x4_t a[kSums];
  for (auto &v : a) v = vdupq_n_s32(0);
  for (std::int64_t i = 0; i < kRounds; ++i) {
    asm volatile("" : "+w"(x), "+w"(y));
    for (auto &v : a) v = vdotq_s32(v, x, y);
  }
  for (int j = 1; j < kSums; ++j) a[0] = vaddq_s32(a[0], a[j]);
  return static_cast<std::uint64_t>(vaddvq_s32(a[0]));
}
#define QUINTET_BENCH_BLOCKS "neon: 8 sdot; scvtf, fmul, 2 fmla"
constexpr int kRows = 12;  // with the sums they fill the registers
constexpr std::int64_t kMacsBlocks = kRows * 16;
std::uint64_t blocks(const std::uint8_t *, std::size_t) {
  int8x16_t x = vdupq_n_s8(3), y = vdupq_n_s8(-5);
  float32x4_t f[kRows], d = vdupq_n_f32(0.5f), m = vdupq_n_f32(0.25f), scale = d;
  int32x4_t a[kRows];
  for (auto &v : f) v = vdupq_n_f32(0);
  for (std::int64_t i = 0; i < kRounds; i += 8) {
    for (auto &v : a) v = vdupq_n_s32(0);
    for (int j = 0; j < 8; ++j) {
      for (auto &v : a) {
        asm volatile("" : "+w"(x), "+w"(y));
        v = vdotq_s32(v, x, y);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      asm volatile("" : "+w"(scale));
      f[r] = vfmaq_f32(vfmaq_f32(f[r], vcvtq_f32_s32(a[r]), vmulq_f32(d, scale)), m, scale);
    }
  }
  for (int r = 1; r < kRows; ++r) f[0] = vaddq_f32(f[0], f[r]);
  return static_cast<std::uint64_t>(vaddvq_f32(f[0]));
}
#else
constexpr const char *kName8 = "portable C++";
constexpr std::int64_t kMacs8 = kSums;
std::uint64_t mac8(const std::uint8_t *, std::size_t) {
  std::int32_t a[kSums] = {};
  std::int32_t x = 3, y = -5;
  for (std::int64_t i = 0; i < kRounds; ++i) {
    asm volatile("" : "+r"(x), "+r"(y));
    for (auto &v : a) v += x * y;
  }
  std::uint64_t s = 0;
  for (const auto v : a) s += static_cast<std::uint64_t>(v);
  return s;
}
#endif

// AMX: products of 16 rows with 16 columns. What is loaded and stored is left out, as everywhere here.
#if defined(QUINTET_BENCH_TILES)
struct TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Whether the system lets this process use tiles.
bool tiles_allowed() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

void configure(int features) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<std::uint8_t>(t == 7 ? features / 4 : 16);
    config.row_bytes[t] = static_cast<std::uint16_t>(t == 6 ? features : 64);
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

constexpr std::int64_t kTileRounds = 16;  // of kRounds for one of tiles, which take as much longer
constexpr std::int64_t kMacsTiles = 4 * 16 * 16 * 64 / kTileRounds;
std::uint64_t tiles(const std::uint8_t *, std::size_t) {
  configure(64);
  for (std::int64_t i = 0; i < kRounds; i += kTileRounds) {
    asm volatile("tdpbssd %%tmm7, %%tmm6, %%tmm0\n tdpbssd %%tmm7, %%tmm6, %%tmm1" : :);
    asm volatile("tdpbssd %%tmm7, %%tmm6, %%tmm2\n tdpbssd %%tmm7, %%tmm6, %%tmm3" : :);
  }
  asm volatile("tilerelease");
  return 1;
}

constexpr int kTileRows = 16;
constexpr std::int64_t kMacsTileBlocks = 16 * 16 * 32 / kTileRounds;
std::uint64_t tile_blocks(const std::uint8_t *, std::size_t) {
  configure(32);
  __m512 f[kTileRows], d = _mm512_set1_ps(0.5f), m = _mm512_set1_ps(0.25f), scale = d;
  __m512i sum = _mm512_set1_epi32(3);
  const __m512i shift = _mm512_set1_epi32(0x4b400000);  // a sum becomes a float by two additions, as conversions take the unit that multiplies
  for (auto &v : f) v = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < kRounds; i += kTileRounds) {
    asm volatile("tilezero %%tmm0\n tdpbssd %%tmm7, %%tmm6, %%tmm0" : :);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      asm volatile("" : "+v"(scale), "+v"(sum));
      const __m512 shifted = _mm512_castsi512_ps(_mm512_add_epi32(sum, shift));
      f[r] = _mm512_fmadd_ps(m, scale, _mm512_fmadd_ps(_mm512_sub_ps(shifted, _mm512_castsi512_ps(shift)), _mm512_mul_ps(d, scale), f[r]));
    }
  }
  asm volatile("tilerelease");
  for (int r = 1; r < kTileRows; ++r) f[0] = _mm512_add_ps(f[0], f[r]);
  return static_cast<std::uint64_t>(_mm512_reduce_add_ps(f[0]));
}
#endif

// Multiply-adds of floats, likewise.
#if defined(__AVX512F__)
using Floats = __m512;
#define QUINTET_BENCH_FLOATS "avx512: vfmaddps"
#elif defined(__FMA__)
using Floats = __m256;
#define QUINTET_BENCH_FLOATS "avx2: vfmaddps"
#elif defined(__aarch64__)
using Floats = float32x4_t;
#define QUINTET_BENCH_FLOATS "neon: fmla"
#endif
#if defined(QUINTET_BENCH_FLOATS)
constexpr int kFloatSums = 12;
constexpr std::int64_t kMacsFloats = kFloatSums * sizeof(Floats) / sizeof(float);
std::uint64_t floats(const std::uint8_t *, std::size_t) {
  Floats a[kFloatSums] = {}, x = Floats{} + 0.5f, y = Floats{} + 0.25f;
  for (std::int64_t i = 0; i < kRounds; ++i) {
    for (auto &v : a) {
#if defined(__x86_64__)
      asm volatile("" : "+x"(x), "+x"(y));
#else
      asm volatile("" : "+w"(x), "+w"(y));
#endif
      v += x * y;  // the compiler contracts it
    }
  }
  for (int j = 1; j < kFloatSums; ++j) a[0] += a[j];
  return static_cast<std::uint64_t>(a[0][0]);
}
#endif

/// 10^9 multiply-adds per second.
double rate(Work work, std::int64_t macs, int threads) {
  return static_cast<double>(kRounds) * static_cast<double>(macs) * threads / best(work, nullptr, 0, threads) / 1e9;
}

}  // namespace

int main(int argc, char **argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  auto *data = static_cast<std::uint8_t *>(std::aligned_alloc(4096, kBytes));
  if (data == nullptr) return 1;
  for (std::size_t i = 0; i < kBytes; ++i) data[i] = static_cast<std::uint8_t>(i * 31 >> 3);
  std::printf("{\"read_GBps\": {\"1\": %.2f, \"%d\": %.2f}, ", kBytes / best(read_all, data, kBytes, 1) / 1e9,
              threads, kBytes / best(read_all, data, kBytes, threads) / 1e9);
  std::printf("\"int8\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", kName8, rate(mac8, kMacs8, 1), threads, rate(mac8, kMacs8, threads));
#if defined(QUINTET_BENCH_MAC4)
  std::printf(", \"int4x8\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", QUINTET_BENCH_MAC4, rate(mac4, kMacs4, 1), threads,
              rate(mac4, kMacs4, threads));
#endif
#if defined(QUINTET_BENCH_BLOCKS)
  std::printf(", \"int8 in blocks\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", QUINTET_BENCH_BLOCKS, rate(blocks, kMacsBlocks, 1), threads,
              rate(blocks, kMacsBlocks, threads));
#endif
#if defined(QUINTET_BENCH_TILES)
  if (tiles_allowed()) {
    std::printf(", \"int8 in tiles\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", QUINTET_BENCH_TILES, rate(tiles, kMacsTiles, 1), threads,
                rate(tiles, kMacsTiles, threads));
    std::printf(", \"int8 in tiles in blocks\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", QUINTET_BENCH_TILE_BLOCKS,
                rate(tile_blocks, kMacsTileBlocks, 1), threads, rate(tile_blocks, kMacsTileBlocks, threads));
  }
#endif
#if defined(QUINTET_BENCH_FLOATS)
  std::printf(", \"float\": {\"how\": \"%s\", \"1\": %.1f, \"%d\": %.1f}", QUINTET_BENCH_FLOATS, rate(floats, kMacsFloats, 1), threads,
              rate(floats, kMacsFloats, threads));
#endif
  std::printf("}\n");
  std::free(data);
  return sink.load() == 42 ? 2 : 0;
}
