"""The release workflow: nothing in it but what is pinned, no secret, as few rights as it needs, and the configuration that it builds by."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.packaging.tools import ROOT, tool

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_hash_and_every_package_by_its_version(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [one for one in re.findall(r"pip install (.*)", text) for word in one.split() if "==" not in word and "/" not in word] == []
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []


def test_no_secret_is_used_and_rights_are_given_to_jobs_alone() -> None:
    assert "secrets." not in RELEASE
    assert re.search(r"^permissions: \{\}$", RELEASE, re.MULTILINE)
    assert RELEASE.count("id-token: write") == 2


def test_zizmor_finds_nothing() -> None:
    done = subprocess.run([tool("zizmor"), "--offline", "--quiet", str(ROOT / ".github/workflows")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_wheels_are_built_for_every_platform_that_is_promised() -> None:
    """cibuildwheel itself says what it would build."""
    found: set[str] = set()
    for system, arch in (("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")):
        command = [tool("cibuildwheel"), "--print-build-identifiers", "--platform", system, "--archs", arch, str(ROOT)]
        found |= set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    for python in ("cp311", "cp312"):
        for platform in ("manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64", "macosx_arm64"):
            assert f"{python}-{platform}" in found
    scikit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert scikit["wheel"]["py-api"] == "cp312"
