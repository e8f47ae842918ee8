"""A container's limits, read off the files of both versions of control groups as kernels write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quintet import machine

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


V2 = {
    "proc/self/cgroup": "0::/",
    "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB",
    "sys/fs/cgroup/memory.max": str(GIB),
    "sys/fs/cgroup/memory.current": str(GIB // 2),
    "sys/fs/cgroup/memory.stat": f"anon {GIB // 4}\nfile {GIB // 4}\ninactive_file {GIB // 8}\nactive_file {GIB // 8}",
    "sys/fs/cgroup/cpu.max": "150000 100000",
}
"""A container with its own namespace of control groups: it sees itself as the root."""

V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/",
    "proc/meminfo": V2["proc/meminfo"],
    "sys/fs/cgroup/unified/cgroup.procs": "1",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(8 * GIB),
    "sys/fs/cgroup/memory/docker/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(GIB),
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(GIB // 2),
    "sys/fs/cgroup/memory/docker/abc/memory.stat": f"total_inactive_file {GIB // 8}\ntotal_active_file {GIB // 8}",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
}
"""A process of the host's, in a group of its own."""


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_containers_limits_count_and_files_that_are_cached_are_free(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path, files)
    assert machine.memory_limit(root) == machine.memory_total(root) == GIB
    assert machine.memory_available(root) == GIB * 3 // 4
    assert machine.cpu_quota(root) == 1.5
    assert machine.cpus(root) == min(2, len(os.sched_getaffinity(0)))


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/box",
        "sys/fs/cgroup/kubepods/pod1/memory.max": str(GIB),
        "sys/fs/cgroup/kubepods/pod1/memory.current": str(GIB - 1000),
        "sys/fs/cgroup/kubepods/pod1/cpu.max": "50000 100000",
        "sys/fs/cgroup/kubepods/pod1/box/memory.max": "max",
        "sys/fs/cgroup/kubepods/pod1/box/memory.current": "5",
        "sys/fs/cgroup/kubepods/pod1/box/cpu.max": "max 100000",
    }
    root = tree(tmp_path, files)
    assert (machine.memory_total(root), machine.memory_available(root)) == (GIB, 1000)
    assert (machine.cpu_quota(root), machine.cpus(root)) == (0.5, 1)


@pytest.mark.parametrize(
    "files", [{}, {"proc/self/cgroup": "0::/"}, V2 | {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 1"}]
)
def test_without_limits_the_machine_is_ours(tmp_path: Path, files: dict[str, str]) -> None:
    root = tree(tmp_path, files)
    assert (machine.memory_limit(root), machine.memory_total(root), machine.cpu_quota(root)) == (None, machine.ram(), None)
    assert machine.cpus(root) == len(os.sched_getaffinity(0))


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    root = tree(tmp_path, V2 | {"sys/fs/cgroup/memory.max": str(1 << 50)})
    assert (machine.memory_limit(root), machine.memory_total(root)) == (None, machine.ram())
