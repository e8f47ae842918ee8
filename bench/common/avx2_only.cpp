// A CPU of AVX2 at most, for the libraries of a process on one that has more: their `cpuid` instructions have become `ud2` (avx2_only.py), and the signal
// that these raise is answered with what the CPU says, less AVX-512, AVX-VNNI and AMX.
#include <cpuid.h>
#include <csignal>
#include <cstdint>
#include <ucontext.h>

namespace {

constexpr uint32_t bits(auto... at) { return (0u | ... | (1u << at)); }

constexpr uint32_t kEbx = bits(16, 17, 21, 26, 27, 28, 30, 31);  // AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL
constexpr uint32_t kEcx = bits(1, 6, 11, 12, 14);                // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ
constexpr uint32_t kEdx = bits(2, 3, 8, 22, 23, 24, 25);         // 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, AVX-512 FP16, AMX-TILE, AMX-INT8
constexpr uint32_t kSecondEax = bits(4, 5, 21, 23);              // AVX-VNNI, AVX-512 BF16, AMX-FP16, AVX-IFMA
constexpr uint32_t kSecondEdx = bits(4, 5, 8, 10, 19);           // AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX, AVX-VNNI-INT16, AVX10

void answer(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (code[0] != 0x0f || code[1] != 0x0b) {  // another instruction that this CPU does not have: it ends the process when it is run again
    std::signal(SIGILL, SIG_DFL);
    return;
  }
  const auto leaf = uint32_t(registers[REG_RAX]), part = uint32_t(registers[REG_RCX]);
  uint32_t eax, ebx, ecx, edx;
  __cpuid_count(leaf, part, eax, ebx, ecx, edx);
  if (leaf == 7 && part == 0) ebx &= ~kEbx, ecx &= ~kEcx, edx &= ~kEdx;
  if (leaf == 7 && part == 1) eax &= ~kSecondEax, edx &= ~kSecondEdx;
  registers[REG_RAX] = eax, registers[REG_RBX] = ebx, registers[REG_RCX] = ecx, registers[REG_RDX] = edx;
  registers[REG_RIP] += 2;
}

[[gnu::constructor]] void begin() {
  struct sigaction action = {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace
