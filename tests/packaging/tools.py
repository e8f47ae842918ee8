"""Tools that only tests of what is shipped need: from the system, or from the environment that ``make test-packaging`` fills."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
BIN = ROOT / "build/packaging/bin"


def tool(name: str) -> str:
    """Its path; without it the test is skipped, but fails under ``make test-packaging``."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin:/sbin")
    if found is None and "QUINTET_TEST_PACKAGING" in os.environ:
        pytest.fail(f"{name} is not installed")
    if found is None:
        pytest.skip(f"{name} is not installed; make test-packaging needs it")
    return found


def packaging_python() -> str:
    """The Python of that environment, which has Helm's library and Kubernetes' schemas; likewise."""
    python = BIN / "python"
    if not python.exists() and "QUINTET_TEST_PACKAGING" not in os.environ:
        pytest.skip("make test-packaging has not made its environment")
    return str(python)
