"""What processes of ours know of each other's secrets, and what they leave behind: no keys in a child, no prompts in a core file."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_NAMES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "PATH", "QUINTET_DUMPABLE", "QUINTET_ISA", "TMPDIR", "TZ", "VIRTUAL_ENV", "GLIBC_TUNABLES"}
    | {"SSL_CERT_DIR", "SSL_CERT_FILE"}
)
_BEGINNINGS = ("LC_", "LD_", "DYLD_", "MALLOC_", "PYTHON", "ASAN_", "LSAN_", "TSAN_", "UBSAN_", "COVERAGE_")
_COMPUTING = ("VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "GLOO_", "OMP_", "KMP_", "GOMP_", "TORCH_", "TORCHINDUCTOR_")
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
WITHOUT_BLAS = {"OPENBLAS_NUM_THREADS": "1"}
"""For the environment of a child of ours: nothing of ours multiplies matrices with numpy, whose threads take 60 ms of every CPU to start,
and would not survive a fork."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def environment(**more: str) -> dict[str, str]:
    """What a child gets of this process's environment: what an interpreter and its libraries need to run, and nothing that is not known.

    API keys, tokens of hubs and clouds, and the service manager's socket are not for a process that computes.

    Args:
        more: set as well.
    """
    kept = {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_BEGINNINGS)}
    libraries = {name: value for name, value in os.environ.items() if name.startswith(_COMPUTING) and not name.endswith(_SECRET)}
    return kept | libraries | more


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; at once if it is dead already."""
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def keep_private() -> None:
    """No core file of this process, whoever asks for one, and no look into its memory or environment for others of the same user.

    A limit of 0 is not enough: a core that goes to a program (``|`` in ``core_pattern``) has none. Both end with ``exec``. Whoever wants
    to debug or measure a server says so: ``QUINTET_DUMPABLE=1``.
    """
    if os.environ.get("QUINTET_DUMPABLE") == "1":
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        prctl(_PR_SET_DUMPABLE, 0)


def prctl(option: int, value: int) -> None:
    """Linux's; what the kernel refuses is left as it is."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
