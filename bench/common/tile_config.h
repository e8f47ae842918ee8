// Read before each source of llama.cpp (install.py). g++ 12's _tile_loadconfig says that it reads 8 of a configuration's 64 bytes; what is
// stored into the others is then left out, and llama.cpp, built for a CPU with AMX, ends at its first product of tiles: SIGILL.
#pragma once
#ifdef __AMX_TILE__
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
