"""The system calls that the unit leaves a service, and a process that has no others.

systemd's own rule is made of the same list by the same library: whoever makes another call is ended by SIGSYS.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.packaging.tools import tool

ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000  # seccomp.h: SCMP_ACT_*
LIBRARY = "libseccomp.so.2"


def calls_of(unit: Path) -> set[str]:
    """Names of all system calls of the unit's ``SystemCallFilter``, which has no exceptions."""
    lines = re.findall(r"^SystemCallFilter=(.+)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    names = " ".join(lines).split()
    assert names and not any(name.startswith("~") for name in names), "an exception is not understood here"
    return _expanded({"@default", *names})  # systemd adds what every program needs


def _expanded(names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name.startswith("@"):
            said = subprocess.run([tool("systemd-analyze"), "syscall-filter", name], capture_output=True, text=True, check=True).stdout
            rows = (line.strip() for line in said.splitlines()[1:])
            found |= _expanded({row for row in rows if row and not row.startswith("#")})
        else:
            found.add(name)
    return found


def restrict(calls: Iterable[str]) -> None:
    """From now on this process, and all that it starts, makes only these."""
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(KILL_PROCESS)))
    assert made
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # else it is another architecture's
            assert library.seccomp_rule_add(made, ctypes.c_uint32(ALLOW), number, 0) == 0, call
    assert library.seccomp_load(made) == 0
