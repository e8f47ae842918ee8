"""A peer's environment in which its libraries find a CPU of AVX2 at most, on one that has more.

Libraries ask a CPU what it has by an instruction, ``cpuid``, that no process can be refused. So in the environment's copies of them
each of these becomes ``ud2``, which raises a signal, and the signal's handler (``avx2_only.cpp``) answers in the CPU's place. Python loads
it before all else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.common.proc import PeerError, lines

SOURCE = Path(__file__).with_name("avx2_only.cpp")
MORE_THAN_AVX2 = frozenset({"avx512f", "avx_vnni", "amx_int8"})
"""One of these in ``/proc/cpuinfo``, and there is something to hide."""
CPUID, UD2 = b"\x0f\xa2", b"\x0f\x0b"
SECTION = re.compile(r"\s*\d+ \.\S+ +([0-9a-f]+)  ([0-9a-f]+)  [0-9a-f]+  ([0-9a-f]+)  ")
"""Size, address and place in the file, of ``objdump --section-headers``."""


def keep_to_avx2(packages: Path, handler: Path, log: Path) -> None:
    """Change every library of an environment, with binutils' objdump.

    Args:
        packages: its ``site-packages``.
        handler: ``avx2_only.cpp`` as a library, which is to stay where it is.

    Raises:
        PeerError: there is no objdump, or it does not read a library as it is.
    """
    if not shutil.which("objdump"):
        raise PeerError("no objdump (binutils)")
    for library in packages.rglob("*.so*"):
        data = bytearray(library.read_bytes())
        if CPUID not in data:
            continue
        for place in _places(library, log):
            if data[place : place + 2] != CPUID:
                raise PeerError(f"{library}: no cpuid at {place:#x}")
            data[place : place + 2] = UD2
        library.write_bytes(data)
    (packages / "avx2_only.pth").write_text(f"import ctypes; ctypes.CDLL({str(handler)!r})\n")


def _places(library: Path, log: Path) -> Iterator[int]:
    """Where in its file a library's ``cpuid`` instructions lie."""
    headers = lines(["objdump", "--section-headers", library], log, 60)
    sections = [[int(part, 16) for part in found.groups()] for line in headers if (found := SECTION.match(line))]
    for line in lines(["objdump", "--disassemble", "--no-show-raw-insn", library], log, 600):
        if line.rstrip().endswith("\tcpuid"):
            address = int(line.partition(":")[0], 16)
            yield next(place + address - begin for size, begin, place in sections if begin <= address < begin + size)
