"""``make test-lowest``: the quick tests, with the lowest versions of the dependencies that pyproject.toml allows.

An environment of its own (``build/lowest``) is made by uv: direct dependencies at their lowest, what they need as they allow it, tools of
tests as they are locked. The highest versions are the lock's, which every other test runs with.

Usage: python -m scripts.lowest [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "build/lowest"
QUICK = (
    "tests/dialects",
    "tests/server",
    "tests/models",
    "tests/guides",
    "tests/inputs",
    "tests/text",
    "tests/service",
    "tests/cli/test_cli.py",
    "tests/listen",
)
"""What between them imports each dependency."""


def direct() -> list[str]:
    """The requirements of the project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["dependencies"])


def run(*words: str | Path) -> None:
    """A command that must succeed.

    Raises:
        SystemExit: it fails.
    """
    code = subprocess.run([str(word) for word in words], cwd=ROOT, env={**os.environ, "VIRTUAL_ENV": str(HOME)}, check=False).returncode
    if code != 0:
        sys.exit(code)


def main(arguments: list[str]) -> None:
    uv, python = HOME / "tools/bin/uv", HOME / "bin/python"
    if not uv.exists():
        run(sys.executable, "-m", "venv", "--clear", HOME)
        run(sys.executable, "-m", "venv", HOME / "tools")
        run(HOME / "tools/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    lowest, tools = HOME / "lowest.txt", HOME / "tools.txt"
    (HOME / "wanted.txt").write_text("\n".join(direct()) + "\n", encoding="utf-8")
    run(uv, "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--python", python, "--output-file", lowest, HOME / "wanted.txt")
    sys.stdout.write(lowest.read_text(encoding="utf-8"))
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*extra["build-system"]["requires"], *extra["project"]["optional-dependencies"]["dev"], "cmake", "ninja"]
    tools.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    run(uv, "pip", "install", "--quiet", "--constraint", lowest, "--requirement", lowest, "--requirement", tools)
    native = f"build-dir={HOME / 'native'}"  # not where the everyday build lies
    run(uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--config-setting", native, "--editable", ROOT)
    run(python, "-m", "pytest", "-q", *(arguments or QUICK))


if __name__ == "__main__":
    main(sys.argv[1:])
