// AVX-512 intrinsics: the compiler's, or SIMDe's emulation of them, so that the AVX-512 kernels can be tested bit for bit on a CPU
// that lacks the instructions (`make test-emulated`).
#pragma once
#ifdef QUINTET_EMULATE_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#else
#include <immintrin.h>
#endif
