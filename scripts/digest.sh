#!/usr/bin/env bash
# Compares the bits of the native core between builds: scripts/digest.sh sanitize | emulated | neon
# Each builds csrc/tests/digest.cpp, runs it, and compares what it prints with a plain build's output.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?usage: scripts/digest.sh sanitize|emulated|neon}

need() { command -v "$1" >/dev/null || { echo "needs $1 (Debian: apt-get install $2)" >&2; exit 1; }; }
need cmake cmake

build() { # folder, options
  cmake -S . -B "build/$1" -DQUINTET_PYTHON=OFF -DQUINTET_DIGEST=ON -DCMAKE_BUILD_TYPE=Release "${@:2}" >/dev/null
  cmake --build "build/$1" --parallel "$(nproc)" >/dev/null  # without a number make begins all at once, some of which need a gigabyte
}

build digest
build/digest/csrc/digest >build/digest/plain.txt
case $kind in
  sanitize)
    build digest-asan -DQUINTET_SANITIZE=ON
    build/digest-asan/csrc/digest >build/digest/$kind.txt
    build digest-tsan -DQUINTET_SANITIZE=thread
    build/digest-tsan/csrc/digest | diff build/digest/plain.txt - ;;
  emulated)
    [ -e /usr/include/simde/x86/avx512.h ] || { echo "needs SIMDe (Debian: apt-get install libsimde-dev)" >&2; exit 1; }
    build digest-emulated -DQUINTET_EMULATE_AVX512=ON
    build/digest-emulated/csrc/digest >build/digest/$kind.txt ;;
  neon)
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
    need qemu-aarch64 qemu-user
    build digest-neon -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
    qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu build/digest-neon/csrc/digest >build/digest/$kind.txt ;;
  *) echo "unknown: $kind" >&2; exit 2 ;;
esac
diff build/digest/plain.txt build/digest/$kind.txt && echo "$kind: the same bits in $(wc -l <build/digest/$kind.txt) digests"
