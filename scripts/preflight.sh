#!/bin/sh
# Say in one sentence what this machine lacks to build Quintet. Usage: preflight.sh PYTHON
set -u
python=$1

fail() {
    echo "error: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "Quintet needs Python 3.11 or newer, and '$python' was not found; install it, or name yours: make PYTHON=/path/to/python3.12"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Quintet needs Python 3.11 or newer, and '$python' is $("$python" -c 'import platform; print(platform.python_version())'); name a newer one: make PYTHON=/path/to/python3.12"

"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "the Python module venv (with ensurepip) is missing; install it (Debian, Ubuntu: apt install python3-venv)"

"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    fail "Python's header file Python.h is missing; install it (Debian, Ubuntu: apt install python3-dev)"

compiler=${CXX:-}
for name in c++ g++ clang++; do
    [ -n "$compiler" ] && break
    command -v "$name" >/dev/null 2>&1 && compiler=$name
done
[ -n "$compiler" ] ||
    fail "a C++ compiler is missing; install g++ 12 or newer, or clang 15 or newer (Debian, Ubuntu: apt install g++)"

# shellcheck disable=SC2086  # CXX may carry options
echo '#include <span>
int main() { return int(std::span<int>().size()); }' | ${compiler} -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
    fail "the C++ compiler '$compiler' does not compile C++20; install g++ 12 or newer, or clang 15 or newer, and name it: make CXX=g++-12"
