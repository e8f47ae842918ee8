"""Print what pip must install before the project itself: build tools, dependencies and the ``dev`` extra of pyproject.toml.

CMake and Ninja come from the system where it has them, else as Python packages.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

CMAKE = (3, 18)  # cmake_minimum_required of CMakeLists.txt


def system_cmake() -> tuple[int, ...]:
    """Version of the ``cmake`` on PATH, ``(0,)`` if there is none."""
    if shutil.which("cmake") is None:
        return (0,)
    said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout.split()
    return tuple(int(part) for part in said[2].split("-")[0].split(".")) if len(said) > 2 else (0,)


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += project["project"]["optional-dependencies"]["dev"]
    if system_cmake() < CMAKE:
        wanted.append("cmake")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    sys.stdout.write("\n".join(dict.fromkeys(wanted)) + "\n")


if __name__ == "__main__":
    main()
