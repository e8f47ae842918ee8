"""Print what pip must install before the project itself: requirements.lock, in which each package has its version and its hashes.

CMake and Ninja come from the system where it has them, else as Python packages. ``--wanted`` prints what the lock is made of by ``make
lock``: build tools, dependencies and the ``dev`` extra of pyproject.toml. A lock that lacks one of these is an error.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
CMAKE = (3, 18)  # cmake_minimum_required of CMakeLists.txt


def system_cmake() -> tuple[int, ...]:
    """Version of the ``cmake`` on PATH, ``(0,)`` if there is none."""
    if shutil.which("cmake") is None:
        return (0,)
    said = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout.split()
    return tuple(int(part) for part in said[2].split("-")[0].split(".")) if len(said) > 2 else (0,)


def wanted() -> list[str]:
    """The requirements of pyproject.toml, and the tools that a system may lack."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    found += project["project"]["optional-dependencies"]["dev"]
    return [*dict.fromkeys(found), "cmake", "ninja"]


def name_of(requirement: str) -> str:
    """A requirement's name, spelt as the index spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def locked(text: str) -> dict[str, str]:
    """Name -> its lines, of every package of a lock: a line that is not indented begins one."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\w)", text):
        if re.match(r"\w", entry):  # not the lock's head
            found[name_of(entry)] = found.get(name_of(entry), "") + entry.rstrip("\n") + "\n"
    return found


def main() -> int:
    if "--wanted" in sys.argv[1:]:
        sys.stdout.write("\n".join(wanted()) + "\n")
        return 0
    packages = locked(LOCK.read_text(encoding="utf-8"))
    if lacking := sorted({name_of(one) for one in wanted()} - packages.keys()):
        sys.stderr.write(f"error: {LOCK.name} lacks {', '.join(lacking)}; run make lock\n")
        return 1
    has = {"cmake": system_cmake() >= CMAKE, "ninja": shutil.which("ninja") is not None}
    sys.stdout.write("".join(lines for name, lines in packages.items() if not has.get(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
