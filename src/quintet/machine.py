"""What this process may use of the machine: memory and CPUs, as far as a container's limits (cgroups, version 1 or 2) leave them.

The kernel tells the machine's memory and CPUs to everybody; a limit stands in the files of a process's control group and of each one
around it, of which the tightest counts. A container sees its own group as the root. https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
"""Where ``proc`` and ``sys`` are; tests have their own."""

_GROUPS = "sys/fs/cgroup"
_UNLIMITED = 1 << 62  # version 1 says so with a number of about this size


def ram() -> int:
    """Bytes of the machine's memory, whatever of it is ours."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that this process's groups may have; ``None`` = no limit below the machine's memory."""
    found = [limit for limit, _ in _memory(root)]
    return min(found) if found and min(found) < ram() else None


def memory_total(root: Path = ROOT) -> int:
    """Bytes of memory that there are for us."""
    return memory_limit(root) or ram()


def memory_available(root: Path = ROOT) -> int:
    """Bytes a new program may take without swapping; all of it where the system does not say. Cached files count as free."""
    return memory(root)[0]


def memory(root: Path = ROOT) -> tuple[int, int]:
    """``memory_available`` and ``memory_total``, in one look, which takes a third of a millisecond."""
    groups = list(_memory(root))
    total = min((limit for limit, _ in groups), default=ram())
    free = [max(0, limit - used) for limit, used in groups]
    free += [int(line.split()[1]) * 1024 for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    return min(free, default=total), min(total, ram())


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that this process's groups may have; ``None`` = no limit."""
    found = []
    for folder, version in _folders("cpu", root):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # "max" or "-1": none
            found.append(int(quota) / int(period))
    return min(found, default=None)


def cpus(root: Path = ROOT) -> int:
    """Threads worth starting: one per CPU that this process may run on, and no more than it may have the time of."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return there if quota is None else max(1, min(there, math.ceil(quota)))


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each group that has a limit, in bytes; without cached files, which the kernel drops when it needs room."""
    for folder, version in _folders("memory", root):
        if version == 2:
            limit, used, prefix = _text(folder / "memory.max"), _text(folder / "memory.current"), ""
        else:
            limit, used, prefix = _text(folder / "memory.limit_in_bytes"), _text(folder / "memory.usage_in_bytes"), "total_"
        if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
            stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
            cached = sum(int(stat.get(f"{prefix}{kind}_file", "0")) for kind in ("active", "inactive"))
            yield int(limit), max(0, int(used) - cached)


def _folders(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """The folders of this process's group and of those around it that are to be seen, with the version of their files."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            bases, version = (root / _GROUPS, root / _GROUPS / "unified"), 2
        elif controller in names.split(","):
            bases, version = (root / _GROUPS / controller, root / _GROUPS / names), 1
        else:
            continue
        base = next((base for base in bases if base.is_dir()), None)
        if base is not None:
            own = base / path.lstrip("/")
            yield from ((folder, version) for folder in (own, *own.parents) if folder.is_relative_to(base) and folder.is_dir())


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
